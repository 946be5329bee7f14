"""Devices in the process of their server, for tests: bytes go in, bytes come out."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import FedloomError, SettingWarning
from fedloom.data import Partition
from fedloom.deploy.device import Controller, ModelManager
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.devices import Devices
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime
from fedloom.ranks.communication import Connections


class InProcess(Connections):
    """Server's end of wires to functions of this process: the i-th is rank i + 1.

    A function that returns None does not answer. One that raises `EOFError` or a `FedloomError` is gone.
    """

    expected = 0

    def __init__(self, answering: Sequence[Callable[[bytes], bytes | None]]) -> None:
        self.answering, self.expected = list(answering), len(answering)
        self.answers: dict[int, deque[bytes]] = {rank: deque() for rank in range(1, len(answering) + 1)}
        self.failures: dict[int, str] = {}  # error of each rank that is gone

    def come(self, answering: Callable[[bytes], bytes | None]) -> int:
        """Add one more device, and return its rank."""
        self.answering.append(answering)
        rank = len(self.answering)
        self.answers[rank] = deque()
        return rank

    def arrivals(self) -> list[int]:
        return [*self.answers]

    def post(self, rank: int, message: bytes) -> None:
        try:
            answer = self.answering[rank - 1](message)
        except (EOFError, FedloomError) as error:
            self.failures[rank] = str(error)
            return
        if answer is not None:
            self.answers[rank].append(answer)

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        return [rank for rank in ranks if self.answers[rank] or rank in self.failures]

    def take(self, rank: int) -> memoryview:
        if not self.answers[rank]:
            raise EOFError
        return memoryview(self.answers[rank].popleft())


def fleet_of(devices: Mapping[str, Callable[[bytes], bytes]], audit: Audit | None = None) -> RankFleet:
    """Return a fleet of devices in this process, by name, in the order of client numbers."""
    fleet = RankFleet(InProcess([*devices.values()]), audit or Audit())
    fleet.names, fleet.tokens = tuple(devices), {name: token_of(name) for name in devices}
    fleet.ranks = {name: rank for rank, name in enumerate(devices, 1)}
    return fleet


def token_of(name: str) -> str:
    """Return the token of a device of this process."""
    return f"token of {name}"


def population_of(population: Population, client: int) -> Population:
    """Return the population that a client's own device has: this client and its examples."""
    f, name = population.federation, population.assignment[client]
    parts = {role: getattr(f, role) for role in ("partition", "local_test", "local_val")}
    rows = {role: part.rows(client) for role, part in parts.items() if part is not None}
    ends = np.cumsum([0, *map(len, rows.values())])
    partitions: dict[str, Any] = {
        role: Partition.from_lists([range(a, b)]) for role, (a, b) in zip(rows, itertools.pairwise(ends), strict=True)
    }
    federation = dataclasses.replace(
        f, train=f.train.select(np.concatenate(list(rows.values()))), test=None, largest_elsewhere=f.largest,
        **partitions,
    )  # fmt: skip
    return dataclasses.replace(population, federation=federation, assignment=(name,), first=client)


class DevicesInProcess(Devices):
    """Devices in this process, one for each client, each with its state in its own folder."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.folder = Path(tempfile.mkdtemp(prefix="fedloom-devices-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.controllers: dict[int, Controller] = {}
        names = [f"device {k}" for k in range(self.population.num_clients)]
        self.fleet = fleet_of({name: self._device(k) for k, name in enumerate(names)})

    def _device(self, client: int) -> Callable[[bytes], bytes]:
        """Return a function that answers as a device, which is made at its first request."""

        def answer(data: bytes) -> bytes:
            if client not in self.controllers:
                self.controllers[client] = self.controller(client)
            return self.controllers[client](data)

        return answer

    def controller(self, client: int, folder: Path | None = None) -> Controller:
        """Return the device of a client, which starts with the states in a folder."""
        assert self.fleet is not None
        name = self.fleet.names[client]
        population = population_of(self.population, client)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SettingWarning)  # as on a device
            algorithm = self.algorithm.bind(population.federation, population.models)
        o = self.options
        runtime = Runtime(
            population, algorithm, compilation=o.compilation, bf16=o.bf16, encoders=o.encoders, gradients=o.gradients
        )
        where = folder or self.folder / str(client)
        models = None if o.counts_states else ModelManager(where, runtime.fresh(0))
        masks = None
        if (link := self.adding) is not None:
            from fedloom.deploy.device.device_masks import DeviceMasks  # which needs cryptography

            masks = DeviceMasks(link.asked, runtime)
        return Controller(name, self.fleet.tokens[name], runtime, models, masks=masks)

    def all_states(self) -> dict[int, Any]:
        """Return the states of all clients, on the server or on devices, and the server's rows and pools."""
        out = dict(self.states)
        for k in (k for k in out if k < self.population.num_clients):
            if (version := self.version(k)) is not None:
                models = self.controllers[k].models
                assert models is not None
                out[k] = models.state(version)
        return out

    def close(self) -> None:
        self.controllers.clear()
