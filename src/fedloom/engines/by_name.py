"""Engines by name: each is imported when it is asked for, so a run on this machine loads none that needs others."""

from __future__ import annotations

import multiprocessing
import os
import sys
from importlib import import_module
from typing import Literal

import torch

from fedloom.core.errors import SettingError
from fedloom.engines.engine import Engine

EngineName = Literal["auto", "loop", "stacked", "workers", "stacks", "gloo", "mpi", "devices"]
ENGINES = {
    "loop": "fedloom.engines.loop:Loop",
    "stacked": "fedloom.engines.stacked:Stacked",
    "workers": "fedloom.engines.workers:Workers",
    "stacks": "fedloom.engines.stacks:Stacks",
    "gloo": "fedloom.ranks.rank_engine:Gloo",
    "mpi": "fedloom.ranks.rank_engine:MPI",
    "devices": "fedloom.deploy.server.devices:Devices",
}
# Variables with the number of ranks, and their engine: of torchrun, Open MPI, MPICH and srun. `SLURM_NTASKS` is set in
# batch scripts too.
_SIZES = {"WORLD_SIZE": "gloo", "OMPI_COMM_WORLD_SIZE": "mpi", "PMI_SIZE": "mpi", "SLURM_STEP_NUM_TASKS": "gloo"}


def engine_named(name: str) -> type[Engine]:
    """Return the engine of a name in `ENGINES`."""
    module, _, kind = ENGINES[name].partition(":")
    found: type[Engine] = getattr(import_module(module), kind)
    return found


def why_no_fork() -> str | None:
    """Return why this process cannot fork children that compute; None if it can."""
    if sys.platform != "linux":
        return f"processes that compute cannot be forked safely on {sys.platform}"
    if multiprocessing.current_process().daemon:
        return "this process is itself a daemon, which may have no children"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "this process uses CUDA, which does not survive a fork"
    return None


def check_alone(name: EngineName) -> None:
    """Raise SettingError if the engine is "auto" and several ranks would each compute the whole run."""
    if name != "auto":
        return
    for variable, which in _SIZES.items():
        if (text := os.environ.get(variable, "")).isdecimal() and int(text) > 1:
            raise SettingError(
                f"with {variable} = {text} each of {text} ranks would compute the whole run: distribute it with "
                f"--engine {which} (docs/ranks.md), or give --engine loop for independent runs"
            )


def only_computes(name: EngineName) -> bool:
    """Return whether this process computes clients for another one, which has the numbers and the files of the run.

    Raises:
        SettingError: the engine is "auto", and there are several ranks; or this process was not launched as it must be.
    """
    check_alone(name)
    return name != "auto" and engine_named(name).only_computes()
