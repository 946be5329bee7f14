"""Ranks that a test launches, each a process of its own, and what became of them."""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "attack"))

import runs


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {**os.environ, **{name: str(n) for name, n in told.items()}, "MASTER_ADDR": "127.0.0.1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Forked:
    """What `python PROGRAM ...` does, in a process that finds PyTorch imported: it starts in milliseconds, not seconds.

    To be used as a `subprocess.Popen` whose output is text.
    """

    def __init__(self, program: Sequence[str], told: Mapping[str, str]) -> None:
        self.stdout = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 -- closed by `ended`
        self.process = runs.forkserver().Process(target=_as_python, args=(list(program), dict(told), self.stdout.name))
        self.process.start()

    def poll(self) -> int | None:
        return self.process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise TimeoutError(f"no end within {timeout:g} s")
        return int(self.process.exitcode)

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()


def _as_python(program: list[str], told: dict[str, str], output: str) -> None:
    with open(output, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(told)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")


def gloo(programs: Sequence[Sequence[str]], port: int | None = None) -> list[Forked]:
    """A rank for each program, without a launcher that would end them all when one dies."""
    port = port or free_port()
    return [Forked(program, environment(rank, len(programs), port)) for rank, program in enumerate(programs)]


def mpi(program: Sequence[str], size: int = 3) -> list[subprocess.Popen[str]]:
    """What `mpirun` starts, as one process; the test is skipped where there is none."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    folder = Path(sys.executable).parent
    mpirun = shutil.which("mpirun", path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpirun is None:
        pytest.skip("there is no mpirun")
    library = f"{folder.parent / 'lib'}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [
        subprocess.Popen(
            [mpirun, "--oversubscribe", "-np", str(size), sys.executable, *program],
            env={**os.environ, **allowed, "LD_LIBRARY_PATH": library},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    ]


def ended(processes: Sequence[subprocess.Popen[str] | Forked], timeout: float = 300) -> list[tuple[int, str]]:
    """(exit status, what it printed) of each; those that do not end are killed."""
    try:
        return [(p.wait(timeout), p.stdout.read() if p.stdout else "") for p in processes]
    finally:
        for p in processes:
            p.kill()
            if p.stdout:
                p.stdout.close()
