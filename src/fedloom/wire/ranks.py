"""Clients on several machines: ranks over Gloo or MPI, of which rank 0 runs the rounds and the others compute."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import replace
from typing import Any, ClassVar

import torch

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import RankError, SettingError
from fedloom.engines.engine_options import DEFAULTS, Options
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.wire.communication import CLOSED, LOOK, CommunicationManager, Transport, communication
from fedloom.wire.processes import Processes, threads
from fedloom.wire.service import Service

COMING = 1800.0  # seconds in which all ranks must have come and said which job they run
HEAD = b"#"  # of an answer that says which job a rank runs
# The number of a rank on its host, as torchrun, Open MPI, MPICH and Slurm say it.
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


class Ranks(Processes):
    """All ranks make the same engine; rank 0 opens it and asks, and the others `serve` until it is closed.

    Where it is not open, as for a replay, clients are computed here: the bits are the same. A rank that is lost is not
    replaced: over Gloo the run goes on with those that are left, and with it once it is started again; over MPI the job
    ends. With a `chunk` a rank computes that number of clients as a stack, with the bits of `stacked` on one thread and
    this chunk.
    """

    transport: ClassVar[Transport]
    ahead = 1  # or a rank waits for rank 0, which waits for a core

    def __init__(
        self, population: Population, algorithm: Algorithm[Any, Any], options: Options = DEFAULTS, **more: Any
    ) -> None:
        self.stacked, self.together = options.chunk is not None, options.chunk or 1
        if self.stacked and options.partial_sums is not None:
            raise SettingError("partial_sums is for clients that are computed one by one: leave it out, or chunk")
        super().__init__(population, algorithm, options, **more)
        self.ranks: list[int] | None = None  # those that are left, once the engine is open
        self._mine = ""  # which job this is, since it is open
        self._told: set[int] = set()  # who was told of it
        self._silent: set[int] = set()  # and has not said yet which job it runs

    @property
    def wires(self) -> CommunicationManager:
        return communication(self.transport)

    def open(self) -> None:
        self.wires.at_work = True
        self._agree()

    def idle(self, count: int) -> list[int] | None:
        if self.ranks is None:
            return None
        self._let_in()
        return [rank for rank in self.ranks if rank not in self._asked][:count]

    def replaced(self, process: int) -> tuple[str, list[int]]:
        self.ranks = [rank for rank in self.ranks or () if rank != process]
        return f"rank {process} is gone, {len(self.ranks)} are left", []

    def left(self, process: int) -> bool:
        return True

    def close(self) -> None:
        """Let go of the other ranks, and wait until those that are not late have heard of it."""
        if self.ranks:
            self._tell()
            self.wires.dismiss([*self.ranks, *self._silent], {*self._asked, *self._silent})
        self.ranks = None
        self._asked.clear()  # whoever opens it again drops what is late first
        self._holds.clear()

    def serve(self) -> None:
        """Answer, at the other ranks, until rank 0 closes this engine.

        Raises:
            RankError: rank 0 is gone.
            SettingError: it runs another job.
        """
        manager = self.wires
        try:
            asked = json.loads(bytes(manager.receive()))
            manager.at_work = True
            mine = self._about()
            manager.answer(HEAD + mine.encode())
            people = replace(self.population, device=own_device(self.population.device))
            runtime = Runtime(
                people, self.algorithm, stacked=asked["stacked"], compilation=asked["compilation"],
                bf16=asked["bf16"], programs=self.runtime.programs,
            )  # fmt: skip
            service = Service(runtime, trusted=True, norm_bound=self.options.norm_bound)
            with threads(1):
                while message := manager.receive():
                    manager.answer(service(message))
            manager.at_work = False
            manager.answer(CLOSED)
            _compare(mine, asked["about"])
        except EOFError:
            raise RankError(
                f"rank 0, which runs the rounds, is gone, so that rank {manager.rank} ends: go on with --resume"
            ) from None

    # ---- whether all ranks run the same job

    def _agree(self) -> None:
        """Begin with the ranks that are there, which must run this job.

        Raises:
            RankError: one has not come in time, or has come and says nothing.
            SettingError: one runs another job.
        """
        wires, until = self.wires, time.monotonic() + COMING
        while len(came := wires.came()) < wires.size - 1:
            if time.monotonic() > until:
                raise RankError(
                    f"{len(came) + 1} of {wires.size} ranks have come in {COMING:g} s: start the others with the same "
                    "address and port, or launch fewer"
                )
            time.sleep(LOOK)
        self._mine, self._told, self._silent = self._about(), set(), set()
        self._tell()
        found: dict[int, str] = {}
        while self._silent:
            if not wires.wait(self._silent, max(0.0, until - time.monotonic())):
                raise RankError(
                    f"rank {min(self._silent)} has come and has not said in {COMING:g} s which job it runs: look at "
                    "its output, and start it again"
                )
            found |= self._said()
        self.ranks = sorted(found)
        for theirs in found.values():
            _compare(self._mine, theirs)

    def _let_in(self) -> None:
        """Go on also with the ranks that have come since, which were gone and are back."""
        self._tell()
        for rank, theirs in self._said().items():
            if theirs == self._mine:
                self.ranks = [*(self.ranks or ()), rank]
            else:  # it hears that it is over, and finds out why
                self.wires.dismiss([rank], [rank])
                self.wires.at_work = True

    def _tell(self) -> None:
        """Tell the ranks that have come about this job."""
        o = self.options
        about = {"about": self._mine, "stacked": self.stacked, "compilation": o.compilation, "bf16": o.bf16}
        for rank in self.wires.came():
            if rank not in self._told:
                self._told.add(rank)
                self._silent.add(rank)
                self.wires.post(rank, json.dumps(about).encode())

    def _said(self) -> dict[int, str]:
        """Return the job of each rank that was told of this one, as far as it has said so."""
        found: dict[int, str] = {}
        for rank in self.wires.wait(self._silent, 0.0) if self._silent else ():
            answer = HEAD
            with contextlib.suppress(EOFError):
                answer = bytes(self.wires.take(rank))
                if answer[:1] == HEAD:
                    found[rank] = answer[1:].decode()
            if answer[:1] == HEAD:  # else it is late, to an engine before this one
                self._silent.discard(rank)
        return found

    def _about(self) -> str:
        """Return a digest of what all ranks must have in common."""
        p = self.population
        digest = hashlib.sha256(repr((self.algorithm, p.seed, str(p.dtype), p.assignment)).encode())
        for name in p.models:
            digest.update(f"{name} {self.runtime.digest(name)}".encode())
        for part in (p.federation.partition, p.federation.local_val, p.federation.local_test):
            if part is not None:
                digest.update(part.indices.tobytes() + part.indptr.tobytes())
        train = p.federation.train
        digest.update(train.y.cpu().numpy().tobytes() + train.x[:100].cpu().numpy().tobytes())
        return digest.hexdigest()


class Gloo(Ranks):
    """Ranks over Gloo, launched by torchrun."""

    name = "gloo"
    transport = "gloo"


class MPI(Ranks):
    """Ranks over MPI, launched by mpirun."""

    name = "mpi"
    transport = "mpi"


def own_device(device: torch.device) -> torch.device:
    """Return `device`, or the GPU of this rank where `device` names none.

    The rank takes the GPU of its number on its host, in turn where there are fewer.
    """
    if device.type != "cuda" or device.index is not None:
        return device
    here = next((os.environ[name] for name in _LOCAL if name in os.environ), "0")
    return torch.device("cuda", int(here) % torch.cuda.device_count())


def _compare(mine: str, theirs: str) -> None:
    if theirs != mine:
        raise SettingError(
            "all ranks must run the same job, and two of them differ in algorithm, seed, data, networks or the weights "
            "that these start from: launch them with the same arguments on the same files"
        )
