"""Changes of the devices of a run: between two rounds it goes on with those that have come, or bring other examples.

    round r is done      devices wait, or the list of keys is another one: a checkpoint is written
    then                 events are added to the registry and a run of all is tried: who does not fit is refused
    round r + 1          the run goes on from that checkpoint, as one that is resumed does

So a device that comes is one of a longer run, which was there from the first round on and was not asked until now, as
are new clients of a simulation. A server that is killed finds the events in the registry.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fedloom.coordinator import Job
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import History
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.errors import FedloomError, RefusedError
from fedloom.deploy.registration import Registration
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_events import BACK, CAME, REMOVED, RENEWED_DATA, Event, away
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.server.joining import Admission, drop_gone
from fedloom.engines.engine import Engine
from fedloom.ranks.communication import Connections

MOST = 10_000  # changes of a run
_OF_EACH = ("none", "local")  # kinds of privacy that do not depend on who else is there


class ChangedDevices(Exception):  # noqa: N818  # no error
    """Signal that a run goes on with other devices, or with other examples of some, from its newest checkpoint on."""


class ChangingFleet(RankFleet):
    """Fleet of a run that goes on with other devices where some wait, or keys are removed or registered again.

    `gone`: the devices that the registry of the run knows as removed. `is_due`: whether the newest checkpoint was
    written for a change.
    """

    def __init__(self, manager: Connections, audit: Audit) -> None:
        super().__init__(manager, audit)
        self.gone: Collection[str] = ()
        self.is_due = False

    def changes(self) -> bool:
        self._drop_stale()
        super()._admit_registered(0.0)
        drop_gone(self)
        self.is_due = bool(self.waiting) or bool(self.keys_changed())
        return self.is_due

    def keys_changed(self) -> set[str]:
        """Return the devices that were removed, or are back, since the registry was written."""
        removed = {*self.removed()}
        return removed ^ {*self.gone} if len(removed) < len(self.names) else set()

    def _admit_registered(self, seconds: float) -> None:
        super()._admit_registered(seconds)
        if self.waiting and not self.ranks:  # nobody else is there, so no round ends for which they could wait
            raise ChangedDevices


class DeviceChanges:
    """Changes of a run in the folder `out`, which `look` looks for after each round and `apply` makes.

    `job`: of the run as it is. `make`: returns the job of a registry. `models`: the architectures that devices may
    have. `say`: tells the server's owner. `expect`: called with the devices after a change.
    """

    def __init__(
        self,
        job: Job,
        out: Path,
        make: Callable[[Registry], Job],
        models: Sequence[str],
        say: Callable[[str], object],
        expect: Callable[[Sequence[Registration]], object] = lambda devices: None,
    ) -> None:
        fleet = job.fleet
        assert isinstance(fleet, ChangingFleet)
        assert isinstance(fleet.admit, Admission)
        self.job, self.fleet, self.admission = job, fleet, fleet.admit
        self._out, self._make, self._models, self._say = out, make, models, say
        self._expect = expect
        if (rule := job.settings.asynchrony) != "none":
            self.admission.closed = (
                "no device comes later to this run or brings other examples while requests are under way "
                f"(asynchrony = {rule}): begin a new run with it"
            )
        self._note_gone()

    @property
    def are_there(self) -> bool:
        """True if devices wait, or keys have changed, before the run goes on."""
        return bool(self.fleet.waiting) or bool(self.fleet.keys_changed())

    def look(self, history: History) -> None:
        """Raise ChangedDevices where the run goes on with other devices after a round."""
        is_last = history.stopped is not None or history.metrics[-1]["round"] >= self.job.settings.rounds
        if self.fleet.is_due and not is_last:
            raise ChangedDevices

    def apply(self) -> Job:
        """Return the job of the run with the devices that wait and fit; the others are refused."""
        fleet, before = self.fleet, self.admission.registry
        files = RunDirectory(self._out)
        done = max(files.checkpoints.rounds(), default=0) if files.begun else 0
        drop_gone(fleet)
        waiting, fleet.waiting, fleet.is_due = dict(fleet.waiting), {}, False
        waiting = dict(sorted(waiting.items(), key=lambda item: item[1].id))
        try:  # thousands may come at once, and to try a run takes long
            self._take([*waiting.values()], done, files)
            taken = {rank: device.id for rank, device in waiting.items()}
        except FedloomError:
            taken = {rank: device.id for rank, device in waiting.items() if self._takes(rank, device, done, files)}
        registry = self.admission.registry
        for id in sorted(fleet.keys_changed()):
            kind = BACK if id in fleet.gone else REMOVED
            registry = registry.with_event(Event(done + 1, kind, registry.names.index(id)))
        if len(registry.events) > len(before.events):
            self.admission.registry, self.job = registry, self._of(registry)
        fleet.names = registry.names
        fleet.audit.names = {device.id: device.name for device in registry.devices}
        fleet.tokens = {id: fleet.tokens.get(id) or secrets.token_hex(16) for id in registry.names}
        self._expect(registry.devices)
        for event in registry.events[len(before.events) :]:
            device = registry.devices[event.client]
            self._say(event.told(device.label))
            fleet.audit(event.kind, device.id, round=event.round, client=event.client)
        for rank, id in taken.items():
            self.admission.welcome(rank, id)
        self._note_gone()
        return self.job

    def _takes(self, rank: int, device: Registration, done: int, files: RunDirectory) -> bool:
        """Take one device, or refuse it; return whether the run can go on with it."""
        fleet, said = self.fleet, json.dumps({"id": device.id, "name": device.name}).encode()
        try:
            self._take([device], done, files)
            return True
        except RefusedError as error:
            fleet.refuse(rank, str(error), said)
        except FedloomError as error:  # with paths of the server
            fleet.note_refusal(rank, str(error), said)
            words = "this run does not go on with this device: the audit log of its server says why"
            fleet.send_notice(rank, json.dumps({"refused": words}).encode())
        return False

    def _take(self, devices: Sequence[Registration], done: int, files: RunDirectory) -> None:
        """Add an event of each of some devices to the registry, if the run can go on with all of them.

        Raises:
            FedloomError: it cannot; a RefusedError says why to the device.
        """
        if not devices:
            return
        made, events = self.admission.registry, list[Event]()
        for device in devices:
            events.append(self._event(made, device, done))
            made = made.with_event(events[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run says them
            job = self._of(made)
            before, after = (Coordinator(each, trains=False).engine for each in (self.job, job))
            self._check_states(events, before, after)
            if files.begun and files.checkpoints.rounds():
                job.restore(self._out)
        self.admission.registry, self.job = made, job

    def _event(self, registry: Registry, device: Registration, done: int) -> Event:
        """Return the event of a device that waits.

        Raises:
            RefusedError: there can be none.
        """
        rounds = self.job.settings.rounds
        if self.admission.closed:
            raise RefusedError(self.admission.closed)
        if done >= rounds:
            raise RefusedError(f"all {rounds} rounds of this run are done, so nobody comes later")
        if len(registry.events) >= MOST:
            raise RefusedError(f"the devices of a run change at most {MOST:,} times: begin a new run")
        entry = registry.admit(device)
        if entry.id in registry.numbers:
            return Event(done + 1, RENEWED_DATA, registry.numbers[entry.id], entry)
        return Event(done + 1, CAME, len(registry.names), registry.newcomer(entry, self._models))

    def _of(self, registry: Registry) -> Job:
        return dataclasses.replace(self._make(registry), fleet=self.fleet)

    def _check_states(self, events: Sequence[Event], before: Engine, after: Engine) -> None:
        """Refuse changes after which states would be others; `before` and `after` them."""
        method, run = type(self.job.algorithm).__name__, self.job.settings
        if run.privacy.partition(":")[0] not in _OF_EACH:
            raise RefusedError(
                f"no device comes later to this run or brings other examples, since privacy = {run.privacy} counts on "
                "those with which it began: begin a new run with it"
            )
        if any(event.kind == CAME for event in events) and (kept := [*before.keys.rows, *before.keys.pools]):
            raise RefusedError(
                f"no device comes later to this run, since {method} keeps {', '.join(kept)} at the server, with places "
                "for those with which it began: begin a new run with it"
            )
        if not tree.same_structure(ours := before.init(), theirs := after.init()):
            raise RefusedError(
                f"no device comes later to this run, since the server's state of {method} has places for those with "
                f"which it began ({tree.unlike(theirs, ours)}): begin a new run with it"
            )
        renewed = {event.client: event.device for event in events if event.kind == RENEWED_DATA}
        for k, device in {0: events[0].device, **renewed}.items():
            assert device is not None
            if not tree.same_structure(ours := before.runtime.fresh(k), theirs := after.runtime.fresh(k)):
                raise RefusedError(
                    f"{device.label} brings {sum(device.train):,} examples to train on, and a state of {method} has "
                    f"places for those with which the run began ({tree.unlike(theirs, ours)}): bring as many, or begin "
                    "a new run"
                )

    def _note_gone(self) -> None:
        registry = self.admission.registry
        self.fleet.gone = {registry.names[k] for k in away(registry.described())}
