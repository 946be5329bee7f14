"""Devices of this process whose answers come in an order that a test has written."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import fedloom as fl
from fedloom.coordinator.history import History
from fedloom.coordinator.part import encoders_of
from fedloom.deploy.device import Controller, ModelManager
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.message_bytes import head_of
from fedloom.engines.runtime import Runtime
from fedloom.testing.in_process import InProcess, population_of, token_of
from tiny import federation, mlp

PEOPLE = federation(val_fraction=0.2)
MODELS = {"net": mlp}


class InTurn(InProcess):
    """Wires whose trainings are answered when their turn comes: the next of `order` that is under way.

    What is under way and not in the order comes once nobody else does. A client in `gone` loses its connection with its
    next training, one in `silent` never answers it.
    """

    def __init__(self, answering: Sequence[Callable[[bytes], bytes | None]], order: Sequence[int]) -> None:
        super().__init__(answering)
        self.order, self.held = deque(order), dict[int, bytes]()
        self.gone, self.silent = set[int](), set[int]()
        self.withheld: dict[int, bytes] = {}  # answers of those who are silent
        self.asked: list[tuple[int, int]] = []  # trainings: (client, version)

    def post(self, rank: int, message: bytes) -> None:
        head = head_of(memoryview(message)[16:], 1 << 30)
        if head.get("method") != "local_update":
            return super().post(rank, message)
        client = rank - 1
        self.asked.append((client, head["round"]))
        assert len(self.asked) < 1000, "it asks without end"
        if client in self.gone:
            self.failures[rank] = "it was killed"
        elif (answer := self.answering[client](message)) is not None:
            (self.withheld if client in self.silent else self.held)[client] = answer
        return None

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        ready = super().wait(ranks, timeout)
        if ready or not timeout or not self.held:
            return ready
        client = next((k for k in self.order if k in self.held), None)
        if client is None:
            client = min(self.held)
        else:
            self.order.remove(client)
        self.answers[client + 1].append(self.held.pop(client))
        return super().wait(ranks, timeout)


class Arriving:
    """Six devices with folders of their own, and the job of their server, which does not wait."""

    def __init__(self, folder: Path, algorithm: Any, order: Sequence[int], **more: Any) -> None:
        self.folder, self.algorithm = folder, algorithm
        folder.mkdir(exist_ok=True)
        self.registry = Registry.of("a" * 32, registrations(), ["net"])
        self.settings = fl.RunSettings(
            **{
                "rounds": 6, "cohort_size": 4, "engine": "devices", "compilation": "none", "on_nonfinite": "refuse",
                "asynchrony": "fedbuff:size=2", "threads": 1, "eval_every": 100,
            }
            | more
        )  # fmt: skip
        self.begin(order)

    def begin(self, order: Sequence[int]) -> None:
        """The devices, and the server, start."""
        people = fl.Job(
            algorithm=self.algorithm, federation=PEOPLE, model=MODELS,
            settings=fl.RunSettings(engine="loop", cohort_size=3, measures=self.settings.measures),
        ).population  # fmt: skip
        self.devices: list[Any] = []
        for k, name in enumerate(self.registry.names):
            runtime = Runtime(population_of(people, k), self.algorithm, encoders=encoders_of(self.settings))
            models = ModelManager(self.folder / str(k), runtime.fresh(0))
            self.devices.append(Controller(name, token_of(name), runtime, models))
        self.wires = InTurn(self.devices, order)
        self.fleet = RankFleet(self.wires, Audit(self.folder / "audit.jsonl"))
        self.fleet.names = self.registry.names
        self.fleet.tokens = {name: token_of(name) for name in self.registry.names}
        self.fleet.ranks = {name: rank for rank, name in enumerate(self.registry.names, 1)}
        self.fleet.wait = 0.0

    def job(self) -> fl.Job:
        whole = self.registry.federation(PEOPLE.test)
        return fl.Job(
            algorithm=self.algorithm, federation=whole, model=MODELS, settings=self.settings, fleet=self.fleet
        )

    def run(self, **more: Any) -> History:
        return self.job().run(self.folder / "out", **more)

    def replayed(self, **more: Any) -> History:
        """The simulation by the log."""
        return self.simulation(**more).run(self.folder / f"replay{len([*self.folder.glob('replay*')])}")

    def simulation(self, **more: Any) -> fl.Job:
        text = f"{self.settings.asynchrony},arrivals={self.folder / 'out'}"
        settings = dataclasses.replace(self.settings, **{"engine": "loop", "asynchrony": text, "deadline": None} | more)
        return fl.Job(algorithm=self.algorithm, federation=PEOPLE, model=MODELS, settings=settings)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out" / "arrivals.jsonl").read_text().splitlines()]

    def arrivals(self) -> list[list[tuple[int, int]]]:
        """Who came in each version that counts, and from which version."""
        found: Mapping[int, Any] = {line["version"]: line for line in self.log() if "arrivals" in line}
        return [[(k, since) for k, since in line["arrivals"]] for line in found.values()]


def registrations() -> list[Registration]:
    """The six clients of the tests, as they would register."""
    f = PEOPLE
    found = []
    for k in range(f.num_clients):
        parts = (f.partition, f.local_test, f.local_val)
        counts = [tuple(map(int, part.counts(f.train.y, 3)[k])) for part in parts if part is not None]
        found.append(Registration(f"{k:032x}", *counts, (4,), "float32"))
    return found
