"""Engines on several machines: ranks over Gloo or MPI. Rank 0 runs the rounds, the others compute clients."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import RankError, SettingError
from fedloom.core.fold.execution import threads
from fedloom.engines.engine_options import DEFAULTS, Options
from fedloom.engines.population import Population
from fedloom.engines.processes import Processes
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import Service
from fedloom.ranks.communication import CLOSED, LOOK, CommunicationManager, Transport
from fedloom.ranks.launched import communication, rank_here

COMING = 1800.0  # seconds for all ranks to connect and to name their job
_ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of an object whose class says nothing else of it
HEAD = b"#"  # first byte of an answer that names a rank's job
# Variables with the number of a rank on its host, of torchrun, Open MPI, MPICH and Slurm.
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


class Ranks(Processes):
    """Engine that all ranks make alike: rank 0 opens it and sends requests, the others `serve` until it is closed.

    While it is not open, as in a replay, clients are computed here with the same bits. A lost rank is not replaced.
    Over Gloo the run continues with the remaining ranks, and with the lost one once it is started again. Over MPI the
    job ends. With a `chunk` a rank computes that number of clients as a stack, with the bits of `stacked` on one thread
    with this chunk.
    """

    uses = Processes.uses | {"chunk"}
    transport: ClassVar[Transport]
    requests_ahead = 1  # otherwise a rank waits for rank 0, which waits for a core

    def __init__(
        self, population: Population, algorithm: Algorithm[Any, Any], options: Options = DEFAULTS, **more: Any
    ) -> None:
        self.stacked = options.chunk is not None
        super().__init__(population, algorithm, options, **more)
        self.ranks: list[int] | None = None  # the connected ranks, while the engine is open
        self._job = ""  # digest of this job, while the engine is open
        self._informed: set[int] = set()  # ranks that were sent this job
        self._unconfirmed: set[int] = set()  # of these, ranks that have not named their job yet

    @classmethod
    def only_computes(cls) -> bool:
        return rank_here(cls.transport) > 0

    def clients_per_request(self, architecture: str) -> int:
        return self.options.chunk or 1

    @property
    def wires(self) -> CommunicationManager:
        return communication(self.transport)

    def open(self) -> None:
        self.wires.at_work = True
        self._agree_on_job()

    def idle_processes(self, count: int) -> list[int] | None:
        if self.ranks is None:
            return None
        self._admit_arrivals()
        return [rank for rank in self.ranks if rank not in self._sent][:count]

    def replace_process(self, process: int) -> tuple[str, list[int]]:
        self.ranks = [rank for rank in self.ranks or () if rank != process]
        return f"rank {self.wires.launched_as(process)} is gone, {len(self.ranks)} are left", []

    def abandon(self, process: int) -> bool:
        return True

    def close(self) -> None:
        """Dismiss the other ranks, and wait for the receipts of those that are not late."""
        if self.ranks:
            self._send_job()
            self.wires.dismiss([*self.ranks, *self._unconfirmed], {*self._sent, *self._unconfirmed})
        self.ranks = None
        self._sent.clear()  # late answers are dropped when it is opened again
        self._newest_broadcast.clear()

    def serve(self) -> None:
        """Answer requests, at the other ranks, until rank 0 closes this engine.

        Raises:
            RankError: rank 0 is gone.
            SettingError: it runs another job.
        """
        manager = self.wires
        try:
            opening = json.loads(bytes(manager.receive()))
            manager.at_work = True
            job = self._job_digest()
            manager.answer(HEAD + job.encode())
            population = replace(self.population, device=own_device(self.population.device))
            runtime = Runtime(
                population, self.algorithm, stacked=opening["stacked"], compilation=opening["compilation"],
                bf16=opening["bf16"], programs=self.runtime.programs, encoders=self.options.encoders,
                gradients=self.options.gradients,
            )  # fmt: skip
            service = Service(runtime, trusted=True, bound=self.bound)
            with threads(1):
                while message := manager.receive():
                    manager.answer(service(message))
            manager.at_work = False
            manager.answer(CLOSED)
            _check_same_job(job, opening["about"])
        except EOFError:
            raise RankError(
                f"rank 0, which runs the rounds, is gone, so rank {manager.rank} ends: continue with --resume"
            ) from None

    # ---- check that all ranks run the same job

    def _agree_on_job(self) -> None:
        """Wait for all ranks, and check that they run this job.

        Raises:
            RankError: one has not connected in time, or does not name its job.
            SettingError: one runs another job.
        """
        wires, until = self.wires, time.monotonic() + COMING
        while len(arrivals := wires.arrivals()) < wires.expected:
            if time.monotonic() > until:
                raise RankError(
                    f"{len(arrivals) + 1} of {wires.expected + 1} ranks have connected in {COMING:g} s: start the "
                    "others with the same address and port, or launch fewer"
                )
            time.sleep(LOOK)
        self._job, self._informed, self._unconfirmed = self._job_digest(), set(), set()
        self._send_job()
        jobs: dict[int, str] = {}
        while self._unconfirmed:
            if not wires.wait(self._unconfirmed, max(0.0, until - time.monotonic())):
                raise RankError(
                    f"rank {min(self._unconfirmed)} is connected and has not named its job in {COMING:g} s: look at "
                    "its output, and start it again"
                )
            jobs |= self._receive_jobs()
        self.ranks = sorted(jobs)
        for job in jobs.values():
            _check_same_job(self._job, job)

    def _admit_arrivals(self) -> None:
        """Admit ranks that were gone and have connected again."""
        self._send_job()
        for rank, job in self._receive_jobs().items():
            if job == self._job:
                self.ranks = [*(self.ranks or ()), rank]
            else:  # it ends, and reports the difference itself
                self.wires.dismiss([rank], [rank])
                self.wires.at_work = True

    def _send_job(self) -> None:
        """Send this job to new ranks."""
        o = self.options
        opening = {"about": self._job, "stacked": self.stacked, "compilation": o.compilation, "bf16": o.bf16}
        for rank in self.wires.arrivals():
            if rank not in self._informed:
                self._informed.add(rank)
                self._unconfirmed.add(rank)
                self.wires.post(rank, json.dumps(opening).encode())

    def _receive_jobs(self) -> dict[int, str]:
        """Return the digest of the job of each rank that has named it."""
        jobs: dict[int, str] = {}
        for rank in self.wires.wait(self._unconfirmed, 0.0) if self._unconfirmed else ():
            answer = HEAD
            with contextlib.suppress(EOFError):
                answer = bytes(self.wires.take(rank))
                if answer[:1] == HEAD:
                    jobs[rank] = answer[1:].decode()
            if answer[:1] == HEAD:  # else a late answer to an engine before this one
                self._unconfirmed.discard(rank)
        return jobs

    def _job_digest(self) -> str:
        """Return a digest of everything that must be the same at all ranks."""
        p = self.population
        o = self.options
        chosen = (
            self.algorithm, p.seed, str(p.dtype), p.assignment, p.task, p.measures, o.bound, o.encoders, o.gradients,
        )  # fmt: skip
        digest = hashlib.sha256(_ADDRESS.sub("", repr(chosen)).encode())
        for name in p.models:
            digest.update(f"{name} {self.runtime.digest(name)}".encode())
        for part in (p.federation.partition, p.federation.local_val, p.federation.local_test):
            if part is not None:
                for rows in (part.indices, part.indptr):  # a million clients have hundreds of MB, which are not copied
                    digest.update(np.ascontiguousarray(rows).data)
        digest.update(f"{p.federation.arrives} {p.federation.drift}".encode() * p.federation.changes)
        train = p.federation.train
        for tensor in (train.y, train.x[:100]):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
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
    """Return `device`; for "cuda" without a number, the GPU of this rank.

    The GPU is that of the rank's number on its host, modulo the number of GPUs.
    """
    if device.type != "cuda" or device.index is not None:
        return device
    here = next((os.environ[name] for name in _LOCAL if name in os.environ), "0")
    return torch.device("cuda", int(here) % torch.cuda.device_count())


def _check_same_job(job: str, other_job: str) -> None:
    if other_job != job:
        raise SettingError(
            "all ranks must run the same job, and two differ in algorithm, task, seed, data, networks, initial "
            "weights, encoders, gradients or bound: launch them with the same arguments on the same files"
        )
