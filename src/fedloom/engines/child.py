"""A forked process that answers messages: it has what the parent had when it was made, and shares nothing after."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch


def why_no_fork() -> str | None:
    """Why this process cannot fork children that compute; None if it can."""
    if sys.platform != "linux":
        return f"processes that compute cannot be forked safely on {sys.platform}"
    if multiprocessing.current_process().daemon:
        return "this process is itself a daemon, which may have no children"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "this process uses CUDA, which does not survive a fork"
    return None


class Child:
    """A process that gives `answer(message)` for each message that it is sent, on one thread, until it is closed.

    It holds no file of its parent's but its end of the pipe: no lock outlives the parent in it, and where the parent is
    killed the pipe ends, and the child with it. Ctrl-C is the parent's affair.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            # Python warns of a fork beside other threads. Those are PyTorch's, which a child on one thread never asks.
            warnings.simplefilter("ignore", DeprecationWarning)
            context = multiprocessing.get_context("fork")
            self.process = context.Process(target=_serve, args=(theirs, answer), daemon=True)
            self.process.start()
        theirs.close()
        _children.add(self)
        self._end = weakref.finalize(self, _end, self.pipe, self.process, os.getpid())

    def send(self, message: bytes) -> None:
        """Ask; `EOFError` if the process has died."""
        try:
            self.pipe.send_bytes(message)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> bytes:
        """Wait for the answer; `EOFError` if the process has died."""
        try:
            return self.pipe.recv_bytes()
        except OSError as error:
            raise EOFError from error

    @property
    def epitaph(self) -> str:
        """What a process that has died died of."""
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
    process.join(1)
    if process.is_alive():  # in the middle of a request that nobody waits for any more
        process.kill()
        process.join()


def _serve(pipe: Connection, answer: Callable[[bytes], bytes]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for sibling in list(_children):
        sibling.pipe.close()
    ours = pipe.fileno()
    os.closerange(3, ours)
    os.closerange(ours + 1, os.sysconf("SC_OPEN_MAX"))
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe, or is gone
        while True:
            pipe.send_bytes(answer(pipe.recv_bytes()))
    os._exit(0)
