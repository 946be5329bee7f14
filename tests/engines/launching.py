"""Ranks that a test launches, each a process of its own, and what became of them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {**os.environ, **{name: str(n) for name, n in told.items()}, "MASTER_ADDR": "127.0.0.1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def gloo(program: Sequence[str], size: int = 3) -> list[subprocess.Popen[str]]:
    """Ranks without a launcher that would end them all when one dies."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *program],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


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


def ended(processes: Sequence[subprocess.Popen[str]], timeout: float = 300) -> list[tuple[int, str]]:
    """(exit status, what it printed) of each; those that do not end are killed."""
    try:
        return [(p.wait(timeout), p.stdout.read() if p.stdout else "") for p in processes]
    finally:
        for p in processes:
            p.kill()
            if p.stdout:
                p.stdout.close()
