"""Forked process that answers messages. It starts with the parent's objects, and shares nothing afterwards."""

from __future__ import annotations

import contextlib
import io
import mmap
import multiprocessing
import os
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch

from fedloom.core.errors import SettingError

SHARED = 64 << 20  # bytes of memory that a process shares with its parent; the system gives them when they are used
_LENGTH = 8


class Child:
    """Process that sends `answer(message)` for each message, on one thread, until it is closed.

    Of its parent's files it keeps its end of the pipe alone, so that no lock outlives the parent. Where the parent is
    killed, the pipe ends and the child with it. It ignores Ctrl-C, which the parent handles.
    """

    def __init__(self, answer: Callable[[memoryview], bytes]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.shared = mmap.mmap(-1, SHARED)
        with warnings.catch_warnings():
            # Python warns of a fork beside other threads. These are PyTorch's, which a child on one thread never uses.
            warnings.simplefilter("ignore", DeprecationWarning)
            context = multiprocessing.get_context("fork")
            self.process = context.Process(target=_serve, args=(theirs, self.shared, answer), daemon=True)
            self.process.start()
        theirs.close()
        _children.add(self)
        self._end = weakref.finalize(self, _end, self.pipe, self.process, os.getpid())

    def send(self, message: bytes) -> None:
        """Send a message to the process; raise `EOFError` if it has died."""
        try:
            _put(self.pipe, self.shared, message)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> memoryview:
        """Wait for the answer, which is valid until the next request; raise `EOFError` if the process has died."""
        try:
            return _get(self.pipe, self.shared)
        except OSError as error:
            raise EOFError from error

    @property
    def exit_reason(self) -> str:
        """Cause of death of a process that has died."""
        self.process.join(5)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"it ended with status {code}"

    def close(self) -> None:
        """End the process."""
        self._end()


_children: weakref.WeakSet[Child] = weakref.WeakSet()  # of this process, or of the one that forked it


def _end(pipe: Connection, process: multiprocessing.process.BaseProcess, owner: int) -> None:
    if os.getpid() != owner:  # a sibling that was forked later holds a copy
        return
    pipe.close()
    end = time.monotonic() + 1
    while process.is_alive() and time.monotonic() < end:  # `join(1)` has no end: a child closes what it waits for
        time.sleep(0.002)
    process.kill()  # it may be in the middle of an abandoned request
    process.join()


def _put(pipe: Connection, shared: mmap.mmap, message: bytes) -> None:
    """Put a message into shared memory and its length into the pipe; a message that is too long into the pipe."""
    if len(message) > len(shared):
        pipe.send_bytes(message)
    else:
        shared[: len(message)] = message
        pipe.send_bytes(len(message).to_bytes(_LENGTH, "little"))


def _get(pipe: Connection, shared: mmap.mmap) -> memoryview:
    data = pipe.recv_bytes()
    return memoryview(data) if len(data) > _LENGTH else memoryview(shared)[: int.from_bytes(data, "little")]


class _NoTerminal(io.TextIOBase):
    """Standard input of a process that no terminal reaches, where a debugger would read."""

    @staticmethod
    def refuse(*_: object, **__: object) -> NoReturn:
        raise SettingError(
            "a debugger or input() needs a terminal, got a process of the engine workers, which has none: compute the "
            "clients one by one in this process with --debug (fedloom.run(..., debug=True))"
        )

    readline = read = fileno = refuse


def _serve(pipe: Connection, shared: mmap.mmap, answer: Callable[[memoryview], bytes]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for sibling in list(_children):
        sibling.pipe.close()
    nothing = os.open(os.devnull, os.O_RDWR)  # a file that is closed twice closes another one of the same number
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2 and number not in (nothing, pipe.fileno()):
            with contextlib.suppress(OSError):
                os.dup2(nothing, number)
    torch.set_num_threads(1)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # the compiler's pool of processes is the parent's
    compiler: Any = sys.modules.get("torch._inductor.config")
    if compiler is not None:
        compiler.compile_threads = 1
    sys.stdin = _NoTerminal()
    if os.environ.get("PYTHONBREAKPOINT") != "0":  # which turns breakpoints off
        sys.breakpointhook = _NoTerminal.refuse
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while True:
            _put(pipe, shared, answer(_get(pipe, shared)))
    os._exit(0)
