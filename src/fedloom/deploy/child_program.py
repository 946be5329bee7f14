"""A program and all that it starts, ended with the process that started it, however that ends: `python -m` this module.

A process that is killed ends nothing itself. So a guard stands between it and the program. The guard takes in what the
program starts and leaves behind (Linux: subreaper), and ends all of it once its standard input closes or it is asked
to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

GRACE = 10.0  # seconds that programs have to end after SIGTERM
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ChildProgram:
    """A running program, which ends with this process. `log`: the file to which it writes."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, grace: float = GRACE) -> None:
        self._grace = grace
        with log.open("ab") as file:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "fedloom.deploy.child_program", str(grace), *command],
                stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, env=dict(env), start_new_session=True,
            )  # fmt: skip

    @property
    def has_ended(self) -> bool:
        """True once the program and all that it started have ended."""
        return self._guard.poll() is not None

    def wait(self, timeout: float) -> int:
        """Return the exit status; raise `TimeoutError` if it does not end."""
        try:
            return self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it did not end within {timeout:g} s") from None

    def close(self) -> None:
        """End the program and all that it started."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        try:
            self._guard.wait(self._grace + GRACE)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


def descendants(of: int) -> list[int]:
    """Return all processes that a process has started, directly or not, and that have not ended, by their ids."""
    children: dict[int, list[int]] = {}
    ended = set[int]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry.name))
                if state == "Z":  # it has children as long as one of its threads lives
                    ended.add(int(entry.name))
    found, parents = list[int](), [of]
    while parents:
        found += (parents := [child for parent in parents for child in children.get(parent, ())])
    return [process for process in found if process not in ended]


def _signal(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process, number)


def main(command: Sequence[str], grace: float) -> int:
    """Run a program until it or standard input ends; return its exit status."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    asked = list[int]()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    )
    while child.poll() is None and not asked and not select.select([0], [], [], 0.2)[0]:
        pass
    end, status = time.monotonic() + grace, child.poll()
    _signal([child.pid] if status is None else descendants(os.getpid()), signal.SIGTERM)
    while (processes := descendants(os.getpid())) or child.poll() is None:
        if child.poll() is not None:
            _signal(processes, signal.SIGTERM)  # what the program has left behind
        if time.monotonic() > end:
            _signal(processes, signal.SIGKILL)
        time.sleep(0.05)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # else the system has to
            pass
    return child.returncode


if __name__ == "__main__":
    sys.exit(abs(main(sys.argv[2:], float(sys.argv[1]))))
