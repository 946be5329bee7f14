"""Clients on several machines: ranks over Gloo or MPI, of which rank 0 runs the rounds and the others compute."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from fedloom.core.errors import RankError, SettingError
from fedloom.engines.communication import CLOSED, CommunicationManager, Transport, communication
from fedloom.engines.processes import Processes, threads
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import Service

HEAD = b"#"  # of an answer that says which job a rank runs


class Rank:
    """A rank that computes clients, as rank 0 sees it."""

    epitaph = "its wire ended"

    def __init__(self, manager: CommunicationManager, number: int) -> None:
        self.manager, self.number = manager, number

    def send(self, message: bytes) -> None:
        self.manager.post(self.number, message)

    def receive(self) -> memoryview:
        self.manager.wait([self.number], None)
        return self.manager.take(self.number)


class Ranks(Processes[Rank]):
    """All ranks make the same engine; rank 0 opens it and asks, and the others `serve` until it is closed.

    Where it is not open, as for a replay, clients are computed here: the bits are the same. A rank that is lost is not
    replaced: over Gloo the run goes on with those that are left, over MPI the job ends.
    """

    transport: ClassVar[Transport]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.ranks: list[Rank] | None = None  # those that are left, once the engine is open

    def open(self) -> None:
        manager = communication(self.transport)
        manager.at_work = True
        self._agree([Rank(manager, number) for number in range(1, manager.size)])

    def idle(self, count: int) -> list[Rank] | None:
        if self.ranks is None:
            return None
        return [rank for rank in self.ranks if rank not in self._overdue][:count]

    def ready(self, peers: Sequence[Rank], timeout: float | None) -> Sequence[Rank]:
        there = communication(self.transport).wait([rank.number for rank in peers], timeout)
        return [rank for rank in peers if rank.number in there]

    def replaced(self, peer: Rank) -> None:
        self.ranks = [rank for rank in self.ranks or () if rank is not peer]

    def left(self, peer: Rank) -> bool:
        return True

    def close(self) -> None:
        """Let go of the others, and wait until those that are not late have heard of it."""
        if self.ranks:
            late = [rank.number for rank in self._overdue]
            communication(self.transport).dismiss([rank.number for rank in self.ranks], late)
        self.ranks = None
        self._overdue.clear()  # whoever opens it again drops what is late first
        self._holds.clear()

    def serve(self) -> None:
        """At the other ranks: answer until rank 0 closes this engine.

        Raises:
            RankError: rank 0 is gone.
            SettingError: it runs another job.
        """
        manager = communication(self.transport)
        try:
            asked = json.loads(bytes(manager.receive()))
            manager.at_work = True
            mine = self._about()
            manager.answer(HEAD + mine.encode())
            runtime = Runtime(
                self.population, self.algorithm, compilation=asked["compilation"], bf16=asked["bf16"],
                programs=self.runtime.programs,
            )  # fmt: skip
            service = Service(runtime, trusted=True)
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

    def _agree(self, ranks: list[Rank]) -> None:
        """Begin with those that are there, which must run this job."""
        mine = self._about()
        about = {"about": mine, "compilation": self.compilation, "bf16": self.bf16}
        for rank in ranks:
            rank.send(json.dumps(about).encode())
        found: dict[Rank, str] = {}
        for rank in ranks:
            with contextlib.suppress(EOFError):
                while (answer := bytes(rank.receive()))[:1] != HEAD:  # late, to an engine before this one
                    pass
                found[rank] = answer[1:].decode()
        self.ranks = list(found)
        for theirs in found.values():
            _compare(mine, theirs)

    def _about(self) -> str:
        """What all ranks must have in common, as a digest."""
        p = self.population
        digest = hashlib.sha256(repr((self.algorithm, p.seed, str(p.dtype), p.assignment)).encode())
        for model in p.models.values():
            digest.update(repr(sorted((n, t.shape) for n, t in model.skeleton().named_parameters())).encode())
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


def _compare(mine: str, theirs: str) -> None:
    if theirs != mine:
        raise SettingError(
            "all ranks must run the same job, and two of them differ in algorithm, seed, data or networks: launch "
            "them with the same arguments on the same files"
        )
