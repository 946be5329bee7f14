"""Devices of a run that change while it goes on: in this process, each with a folder and arrays of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedloom import Uniform
from fedloom.coordinator.history import History
from fedloom.core.task import needs_moments
from fedloom.data import NEVER, Arrival, Federation, by_lists, from_arrays
from fedloom.deploy.device import Membership
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_changes import ChangedDevices, ChangingFleet, DeviceChanges
from fedloom.deploy.server.joining import register_devices
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.testing.in_process import InProcess
from two_folders import arrays

WORDS: dict[str, Any] = {
    "algorithm": "fedavg", "model": "logistic", "data.classes": 3, "local.epochs": 2, "local.batch_size": 5,
    "run.rounds": 6, "run.cohort_size": 2, "run.compilation": "none",
}  # fmt: skip
HELD_OUT, MOST = 6, 60  # examples of a device that it tests on, and that it ever has
FIRST = 24  # to train on, at first


class Wires(InProcess):
    """Devices of this process that come when they like. `keys`: names that are registered now; None: there are none."""

    expected: int | None = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__([])
        self.expected = None
        self.keys: set[str] | None = None
        self.names: dict[int, str] = {}

    def name_of(self, rank: int) -> str | None:
        return None if self.keys is None else self.names[rank]

    def listed(self) -> Collection[str] | None:
        return self.keys


class Place:
    """A server in a folder, and its devices. `words`: settings of the run."""

    def __init__(self, folder: Path, words: Mapping[str, Any] | None = None) -> None:
        self.folder, self.words = folder, WORDS | dict(words or {})
        self.wires, self.said = Wires(), list[str]()
        self.ranks: dict[int, int] = {}

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def device(self, k: int, count: int = FIRST, **more: Any) -> Membership:
        """Return device k with so many examples to train on, the first of those that it ever has."""
        x, y = arrays(k, [0, 1, 2], MOST)
        state, file = self.folder / f"state{k}", self.folder / f"{k}.npz"
        state.mkdir(exist_ok=True, parents=True)
        (state / "id").write_text(f"{k:032x}")
        own = slice(HELD_OUT, HELD_OUT + count)
        np.savez(file, x_train=x[own], y_train=y[own], x_test=x[:HELD_OUT], y_test=y[:HELD_OUT])
        return Membership(str(file), state, name=f"site{k}", **more)

    def come(self, k: int, member: Callable[[bytes], bytes | None] | None = None, **more: Any) -> None:
        """Connect device k, anew if it is connected."""
        if (rank := self.ranks.get(k)) is not None:
            self.wires.failures[rank] = "it has left"
        member = self.device(k, **more) if member is None else member
        self.ranks[k] = self.wires.come(member)
        self.wires.names[self.ranks[k]] = f"site{k}"

    def coming(self, k: int, **more: Any) -> Callable[[], object]:
        """Return what connects device k."""
        return partial(self.come, k, **more)

    def refused(self, k: int) -> str:
        """Return why device k was refused."""
        return self.wires.failures[self.ranks[k]]

    def changes(self, least: int) -> DeviceChanges:
        """Return the changes of a server that has registered its devices; a run that there is goes on."""
        path = self.out / "devices.json"
        path.parent.mkdir(exist_ok=True)
        whole = Experiment().with_all(
            self.words | {"run.engine": "devices", "run.on_nonfinite": "refuse", "data.source": f"devices:{path}"}
        )
        theirs, models = whole.changed("data.source", Experiment().data.source), whole.model.split(",")
        fleet = self.fleet = ChangingFleet(self.wires, Audit(self.folder / "audit.jsonl"))
        moments = needs_moments(catalogue.task(whole.task))
        register_devices(fleet, path, theirs.described(), models, wait=5.0, min_devices=least, moments=moments)
        job = dataclasses.replace(whole.job(), fleet=fleet)
        return DeviceChanges(job, self.out, lambda of: whole.job(whole.federation_of(of)), models, self.said.append)

    def run(
        self, least: int, then: Mapping[int, Callable[[], object]] | None = None, *, resume: bool = False
    ) -> History:
        """Run the rounds; `then`: what happens after which round, once."""
        changes, later = self.changes(least), dict(then or {})
        if changes.are_there:
            changes.apply()

        def watch(history: History) -> None:
            later.pop(history.metrics[-1]["round"], int)()
            changes.look(history)

        while True:
            try:
                return changes.job.run(self.out, resume=resume, on_round=watch)
            except ChangedDevices:
                changes.apply()
                resume = True

    def events(self) -> list[tuple[Any, ...]]:
        """Return round, kind and client of each event of the registry."""
        registry = json.loads((self.out / "devices.json").read_text())
        return [(each["round"], each["event"], each["client"]) for each in registry.get("events", ())]

    def audit(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "audit.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """Sampler of a simulation: uniformly among those who are there. `there`: by client, from which round to before."""

    there: tuple[tuple[int, int], ...]

    def __call__(self, round: int, sizes: Any, cohort_size: int) -> list[int]:
        here = [k for k, (since, until) in enumerate(self.there) if since <= round + 1 < until]
        return [here[i] for i in Uniform(seed=0)(round, sizes[here], min(cohort_size, len(here)))]


@dataclasses.dataclass(frozen=True)
class Brought(Arrival):
    """Rule by which the examples behind the first `FIRST` of a client with `size` in all are there from a round on."""

    size: int
    since: int

    def times(self, place: Any, size: Any) -> tuple[Any, Any]:
        late = (size == self.size) & (place >= FIRST)
        return np.where(late, self.since - 1, 0), np.full_like(place, NEVER)

    def order(self, size: int) -> Any:
        return np.arange(size)


def simulated(
    words: Mapping[str, Any],
    devices: Mapping[int, int],
    there: Mapping[int, tuple[int, int]] | None = None,
    arrives: Arrival | None = None,
    lost: Collection[tuple[int, int]] = (),
    sampler: Any = None,
) -> History:
    """Return the simulation of devices with so many examples each, by numbers as of `Place.device`.

    `there`: of clients, in the order of `devices`, the first round and that before which they leave. `lost`: rounds and
    clients that do not answer in them. `sampler`: another one.
    """
    parts, x, y, end = [], [], [], 0
    for k, count in devices.items():
        own = arrays(k, [0, 1, 2], MOST)
        x.append(own[0][: HELD_OUT + count])
        y.append(own[1][: HELD_OUT + count])
        parts.append((range(end + HELD_OUT, end + HELD_OUT + count), range(end, end + HELD_OUT)))
        end += HELD_OUT + count
    train = from_arrays(np.concatenate(x), np.concatenate(y), num_classes=3)
    rows = [by_lists([part[role] for part in parts]) for role in (0, 1)]
    federation = Federation(train, rows[0], None, rows[1], arrives=arrives)
    alone = {"run.engine": "loop", "run.threads": 1}
    job = Experiment().with_all(WORDS | dict(words) | alone).job(federation)
    if sampler is None:
        sampler = Scheduled(tuple((there or {}).get(k, (1, NEVER)) for k in range(len(devices))))

    def faults(round: int, exchange: int, client: int) -> str | None:
        return "lost" if (round + 1, client) in lost else None

    return dataclasses.replace(job, sampler=sampler, faults=faults if lost else None).run()
