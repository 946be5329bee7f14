"""Devices in the process of their server, for tests: bytes go in, bytes come out."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.data import Partition
from fedloom.device import Controller, ModelManager
from fedloom.engines.devices import Devices
from fedloom.engines.fleet import Audit, Fleet, Lost
from fedloom.engines.population import Population
from fedloom.engines.runtime import Runtime


class InProcess(Fleet):
    """`devices`: what answers, by name, in the order of client numbers; a name without one is not there."""

    def __init__(self, devices: Mapping[str, Callable[[bytes], bytes] | None], audit: Audit | None = None) -> None:
        self.devices, self.audit = dict(devices), audit or Audit()
        self.names = tuple(devices)
        self.tokens = {name: f"token of {name}" for name in self.names}

    def there(self) -> Collection[str]:
        return [name for name, device in self.devices.items() if device is not None]

    def ask(self, requests: Mapping[str, bytes], deadline: float | None) -> Iterator[tuple[str, memoryview | Lost]]:
        for name, message in requests.items():
            device = self.devices[name]
            yield name, Lost("it is not there") if device is None else memoryview(device(message))


def alone(population: Population, client: int) -> Population:
    """One client as it is on a device of its own, with its own examples."""
    f, name = population.federation, population.assignment[client]
    parts = {role: getattr(f, role) for role in ("partition", "local_test", "local_val")}
    rows = {role: part.rows(client) for role, part in parts.items() if part is not None}
    ends = np.cumsum([0, *map(len, rows.values())])
    own: dict[str, Any] = {
        role: Partition.from_lists([range(a, b)]) for role, (a, b) in zip(rows, itertools.pairwise(ends), strict=True)
    }
    mine = dataclasses.replace(f, train=f.train.select(np.concatenate(list(rows.values()))), test=None, **own)
    return dataclasses.replace(
        population, federation=mine, models={name: population.models[name]}, assignment=(name,), first=client
    )


class Keeping(Devices):
    """Every client is a device in this process, which keeps its state in a folder of its own."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.folder = Path(tempfile.mkdtemp(prefix="fedloom-devices-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.controllers: dict[int, Controller] = {}
        names = [f"device {k}" for k in range(self.population.num_clients)]
        self.fleet = InProcess({name: self._device(k) for k, name in enumerate(names)})

    def _device(self, client: int) -> Callable[[bytes], bytes]:
        """Made when it is asked first."""

        def answer(data: bytes) -> bytes:
            if client not in self.controllers:
                self.controllers[client] = self.controller(client)
            return self.controllers[client](data)

        return answer

    def controller(self, client: int, folder: Path | None = None) -> Controller:
        """The device of a client, as it begins with what is in a folder."""
        assert self.fleet is not None
        name = self.fleet.names[client]
        runtime = Runtime(alone(self.population, client), self.algorithm, compilation=self.compilation, bf16=self.bf16)
        where = folder or self.folder / str(client)
        models = None if self.counts_states else ModelManager(where, runtime.fresh(0))
        return Controller(name, self.fleet.tokens[name], runtime, models)

    def all_states(self) -> dict[int, Any]:
        """The states of all clients, wherever they are, and what the server keeps."""
        out = dict(self.states)
        for k in (k for k in out if k < self.population.num_clients):
            if (version := self._version(k)) is not None:
                models = self.controllers[k].models
                assert models is not None
                out[k] = models.state(version)
        return out

    def close(self) -> None:
        self.controllers.clear()
