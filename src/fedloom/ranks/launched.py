"""The ranks that were launched together: which of them this process is, and its CommunicationManager."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from fedloom.core.errors import EngineWarning, SettingError, warn
from fedloom.ranks.communication import CommunicationManager, Transport
from fedloom.ranks.over_gloo import over_gloo
from fedloom.ranks.over_mpi import MPIManager
from fedloom.wording import install

_PLACE = "RANK (0 of the server, then 1, 2, ...), WORLD_SIZE (how many), MASTER_ADDR and MASTER_PORT (of the server)"
_managers: dict[str, CommunicationManager] = {}  # of this process


def communication(transport: Transport) -> CommunicationManager:
    """Return the CommunicationManager of this process; over Gloo other ranks wait here for rank 0."""
    if transport not in _managers:
        if transport == "gloo" and "TORCHELASTIC_RUN_ID" in os.environ and takes_c10d(_launched_by()):
            warn(
                "torchrun must connect ranks by its static rendezvous, got c10d: anyone who can reach its port can run "
                "code here; give --master-port=29500, on several hosts with --node-rank and --master-addr, and neither "
                "--rdzv-backend nor --standalone",
                EngineWarning,
            )
        _managers[transport] = over_gloo() if transport == "gloo" else MPIManager()
    return _managers[transport]


def takes_c10d(words: Sequence[str]) -> bool:
    """Return whether torchrun with this command line connects its ranks by c10d.

    The state of c10d is a pickle that anyone may write. torchrun chooses it on request, and on one host if no port is
    named.
    """
    line = " ".join(words).replace("_", "-")

    def option_value(option: str) -> str | None:
        found = re.search(rf"--{option}[= ](\S+)", line)
        return found and found[1]

    backend = option_value("rdzv-backend") or os.environ.get("PET_RDZV_BACKEND", "static")
    on_one_host = option_value("nnodes") in (None, "1", "1:1") and not (
        option_value("master-port") or option_value("rdzv-endpoint")
    )
    return "--standalone" in words or backend == "c10d" or (backend == "static" and on_one_host)


def _launched_by() -> list[str]:
    """Return the parent's command line; where the system does not show it, one that names a port."""
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ["--master-port", "?"]


def rank_here(transport: Transport, *, of_devices: bool = False) -> int:
    """Return the rank of this process, before there is a connection. `of_devices`: in `fedloom serve` or `join`.

    Raises:
        SettingError: it was not launched with others, or a requirement of the transport is missing.
    """
    if transport == "mpi":
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise SettingError(f"engine = 'mpi' needs mpi4py ({error}): {install('mpi')}") from None
        rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
        alone, beside = "mpirun -np 3 fedloom run ...", "mpirun -np 1 fedloom serve ... : -np 2 fedloom join ..."
    else:
        rank, size = (_number(name) for name in ("RANK", "WORLD_SIZE"))
        variables = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        alone = (
            f"torchrun --master-port=29500 --nproc-per-node=3 -m fedloom run ..., or set {variables} for each, as it "
            "does"
        )
        beside = (
            f"fedloom serve with RANK=0 and fedloom join with 1, 2, ..., where {variables} are set (docs/devices.md), "
            "or over the internet (--transport flower or nats)"
        )
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if size > 1 and missing:
            raise SettingError(f"ranks over Gloo need {_PLACE}, and {missing[0]} is not set: set all four")
    if size < 2:
        what, launch = (f"--transport {transport}", beside) if of_devices else (f"engine = {transport!r}", alone)
        raise SettingError(f"{what} needs at least 2 ranks (rank 0 is the server), got {size}: launch them by {launch}")
    return rank


def meeting_point(transport: Transport) -> str:
    """Return where ranks find each other."""
    return "MPI" if transport == "mpi" else f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdecimal():
        raise SettingError(f"{name} is a whole number that is at least 0, got {text!r}: set {_PLACE}")
    return int(text)
