"""Runs that are attacked: six algorithms, three architectures (one with BatchNorm), faults, states on disk, records of
each client, new clients, a server that goes on alone, examples that arrive and leave, rounds that do not wait.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import unittest.mock
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # `tiny`, where this is run as a script

import torch
from torch import nn

from fedloom import (
    SGD,
    Digest,
    FedAvg,
    FedNTD,
    History,
    Job,
    KTpFL,
    NewClients,
    PFedSD,
    RunSettings,
    Scaffold,
    Unreliable,
)
from fedloom.core import tree
from fedloom.data import Window
from small import ONE_SHOT
from tiny import CLASSES, LOCAL, examples, federation, linear, mlp

ALGORITHMS = ("fedavg", "scaffold", "fedntd", "pfedsd", "kt_pfl", "dense")
UNWAITED = {"fedbuff": "fedbuff:size=3", "fedasync": "fedasync:alpha=0.6", "deadline": "deadline:seconds=0.6"}
ENGINES = ("loop", "stacked", "workers")


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


def wide() -> nn.Module:
    """Its states go beyond a budget of 1 MiB."""
    return mlp(20_000)


def algorithm(name: str) -> Any:
    if name == "dense":
        return dataclasses.replace(ONE_SHOT[name], local=LOCAL)
    if name == "kt_pfl":
        return KTpFL(local=LOCAL, num_public=12, distill=Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.1)))
    kinds = {"fedavg": FedAvg, "scaffold": Scaffold, "fedntd": FedNTD, "pfedsd": PFedSD, "fedbuff": PFedSD}
    return kinds.get(name, FedAvg)(local=LOCAL)


def phase(name: str) -> int:
    """From which round on a run is attacked: of a one-shot method, once the clients have uploaded."""
    return 1 if name in ONE_SHOT else 0


def job(name: str, engine: str, rounds: int, seed: int = 0) -> Job:
    """The run of an algorithm on an engine."""
    models: dict[str, Any] = {"linear": linear, "normed": normed, "wide": wide if name == "pfedsd" else mlp}
    settings = RunSettings(
        rounds=rounds, cohort_size=5, seed=seed, engine=engine, threads=1, keep_every=7, state_memory_mib=1,
        per_client=True, stateless=name == "pfedsd",
    )  # type: ignore[arg-type]  # fmt: skip
    if name in UNWAITED:
        models = {"wide": wide} if name == "fedbuff" else {"normed": normed}
        clock = "lognormal:example=0.01,spread=1,down=20,up=5"
        settings = dataclasses.replace(settings, asynchrony=UNWAITED[name], clock=clock)
    faults = Unreliable(declined=0.1, lost=0.1, late=0.1)
    # The same window whatever `rounds` is, since a run of 9 rounds is one of 12 that has not ended.
    arriving = {"arrives": Window(0.5, 9)} if name in ("pfedsd", "scaffold", "fedbuff") else {}
    data = federation(12, public=examples(24, seed=5), val_fraction=0.2, **arriving)
    new = NewClients(2) if name in ("pfedsd", "kt_pfl", "fedbuff") else None
    return Job(algorithm=algorithm(name), federation=data, model=models, settings=settings, faults=faults, new=new)


def same(a: Any, b: Any) -> bool:
    """Whether two trees have the same bits."""
    return all(torch.equal(s, t) for s, t in zip(tree.leaves(a), tree.leaves(b), strict=True))


def same_end(a: History, b: History) -> bool:
    """Whether two runs ended with the same bits: server, every client's state, every metric."""

    states = sorted(a.clients) == sorted(b.clients) and all(same(a.clients[k], b.clients[k]) for k in a.clients)
    return states and same(a.server, b.server) and a.metrics == b.metrics and a.per_client == b.per_client


def cases() -> Iterator[tuple[str, str]]:
    return ((name, engine) for name in (*ALGORITHMS, *UNWAITED) for engine in ENGINES)


@functools.cache
def forkserver() -> Any:
    """Processes that start in milliseconds, since what they import is there, also what torch imports at first use."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["runs_preloaded"])
    # It is sought with the path of the environment: before 3.12.8, sys.path is forgotten (CPython issue 117378).
    with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        multiprocessing.forkserver.ensure_running()
    return context


def quiet() -> None:
    """In a child: no warnings, nothing on the terminal, one thread."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
