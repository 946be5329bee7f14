"""Joining of devices: they get the settings, register, and get a number, a token and public examples."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.core.errors import RefusedError, SettingError
from fedloom.data import Examples
from fedloom.data.inputs import describe_inputs
from fedloom.data.schema import Schema
from fedloom.deploy.device_statistics import MAX_BYTES, FirstStatistics
from fedloom.deploy.registration import Registration, cap_of, check_versions, versions
from fedloom.deploy.server.device_registry import Registry, check_alike
from fedloom.deploy.server.fleet import RankFleet
from fedloom.deploy.server.statistics_exchange import CommonStatistics, exchange_statistics
from fedloom.engines.message_bytes import pack
from fedloom.storage.strict_json import parse
from fedloom.tables.statistics import CommonPreparation, Summary


def register_devices(
    fleet: RankFleet,
    path: Path,
    settings: Mapping[str, Any],
    models: Sequence[str],
    *,
    test: str = "",
    cap: int | None = None,
    public: bool = False,
    start: bool = False,
    moments: bool = False,
    check_fit: Callable[[], object] = lambda: None,
    wait: float | None = None,
    min_devices: int | None = None,
) -> Registry:
    """Register the devices at all ranks in the file `path`, or admit those that it names, and send each its number.

    `models`: the architectures that devices may have. `cap`: the most examples of a device that count; None: as when
    the run began, at first `cap_of` the devices. `public`: whether public examples follow, see `send_public`.
    `start`: whether the initial tensors of networks follow, see `RankFleet.send_start`; a device that cannot take them
    is refused. `moments`: whether the task asks for mean and deviation of the targets. `check_fit`: raises SettingError
    if the run cannot begin with the devices in `path` and `fleet.names`. `wait`: after this number of seconds the run
    begins with the registered devices, if there are at least `min_devices` (None: all that are not refused), who must
    also answer what is asked once in the run (None: as many as when it began). A device of the registry that connects
    later is admitted then.

    Raises:
        SettingError: no device could be registered, too few connected, their examples differ in kind, or they do not
            fit the run. The devices are sent the reason, and a new file `path` is deleted.
    """
    previous = Registry.read(path) if path.exists() else None
    _check_cap(cap, previous)
    if previous is not None and test not in ("", previous.test):
        raise SettingError(
            f"--test must stay {previous.test or 'away'}, as when this run began, got {test}: leave it out, and take "
            "fedloom evaluate for other examples"
        )
    run = secrets.token_hex(16) if previous is None else previous.run
    fleet.manager.limit = MAX_BYTES
    registrations: dict[int, Registration] = {}
    statistics: dict[int, FirstStatistics] = {}
    refusals: dict[int, str] = {}
    ids: dict[int, str] = {}  # of the devices that have registered so far, by rank
    refused_at_once = set[int]()
    hello = json.dumps({"run": run, "settings": settings, "versions": versions()}).encode()

    def enough(answers: dict[int, bytes]) -> bool:
        for rank in ids.keys() - answers.keys():  # it may come again
            fleet.audit.tell("left", ids.pop(rank), fleet.manager.reason(rank))
        for rank, data in [(rank, data) for rank, data in answers.items() if rank not in ids]:
            try:
                its = _read_new_registration(data, (), start, moments, fleet.manager.name_of(rank))[0]
                ids[rank], fleet.versions[its.id] = its.id, its.fedloom
                fleet.audit.tell("registered", its.id, name=its.name, examples=sum(its.train), fedloom=its.fedloom)
            except RefusedError as error:  # it would wait for nothing
                del answers[rank]
                refused_at_once.add(rank)
                fleet.refuse(rank, str(error), data)
        if (expected := fleet.manager.expected) is not None:
            return len(answers) + len(refused_at_once) >= expected
        return len({ids[rank] for rank in answers}) >= (min_devices or 1)  # others come when they like, or never

    answers, taken = fleet.handshake(hello, wait, enough), set[str]()
    for rank, data in sorted(answers.items()):
        try:
            registrations[rank], first = _read_new_registration(
                data, taken, start, moments, fleet.manager.name_of(rank)
            )
            taken.add(registrations[rank].id)
            if first is not None:
                statistics[rank] = first
        except RefusedError as error:
            refusals[rank] = str(error)
    if cap is not None:
        max_examples = cap
    elif previous is not None:
        max_examples = previous.cap
    else:  # the default depends on all devices
        max_examples = cap_of([*registrations.values()])
    for rank, registration in list(registrations.items()):
        try:
            registrations[rank] = _with_cap(fleet, registration, max_examples)
            if previous is not None:
                entry = _admitted(previous, fleet, rank, registrations[rank], statistics.get(rank))
                if not previous.has(entry):  # which the run goes on with
                    fleet.waiting[rank] = registrations.pop(rank)
        except RefusedError as error:
            del registrations[rank]
            refusals[rank] = str(error)
    for rank, why in sorted(refusals.items()):
        fleet.note_refusal(rank, why, answers[rank])
    fleet.audit.names = {each.id: each.name for each in registrations.values()}
    try:
        common = CommonStatistics()
        if previous is None and statistics.keys() & registrations.keys():
            check_alike([*registrations.values()], features=False)  # whose sums are added
            own = {r: statistics.get(r) or FirstStatistics(sum(each.train)) for r, each in registrations.items()}
            common, lost = exchange_statistics(fleet, {r: (registrations[r], own[r]) for r in own}, wait)
            registrations = {rank: each for rank, each in registrations.items() if rank not in lost}
            refusals |= lost
        begins_with = min_devices
        if begins_with is None:
            expected = fleet.manager.expected
            begins_with = 1 if expected is None else expected - len(refusals) - len(refused_at_once)
        if (there := len(registrations) + len(fleet.waiting)) < begins_with:
            raise SettingError(
                f"a run begins with at least {begins_with} devices, got {there} within "
                f"{0 if wait is None else wait:g} s: wait longer (--wait), or begin with fewer "
                f"(--least {max(1, there)})"
            )
        registry = previous or Registry.of(
            run, list(registrations.values()), models, test, max_examples,
            preparation=common.preparation, moments=common.moments, least=begins_with,
        )  # fmt: skip
        registry.save(path)
        fleet.names, fleet.least = registry.names, registry.least if min_devices is None else min_devices
        fleet.audit.names = {device.id: device.name for device in registry.devices}
        check_fit()
    except SettingError as error:
        if previous is None:
            path.unlink(missing_ok=True)
        ranks = [*registrations, *fleet.waiting]
        _turn_away(fleet, dict.fromkeys(ranks, f"the run does not begin: {error}") | refusals)
        raise
    fleet.tokens = {name: secrets.token_hex(16) for name in registry.names}
    for rank, registration in registrations.items():
        _send_welcome(fleet, registry, rank, registration.id, public, start)
    _turn_away(fleet, refusals)
    fleet.admit, fleet.wait = Admission(fleet, registry, public, start, moments), wait
    return registry


class Admission:
    """Welcome to devices that connect while a run goes on.

    Those that the `registry` does not know, or not with these examples, wait until the run goes on with them. For the
    others see `register_devices`. `closed`: why the run does not go on with them; "" if it does.
    """

    closed = ""

    def __init__(self, fleet: RankFleet, registry: Registry, public: bool, start: bool, moments: bool) -> None:
        self.fleet, self.registry = fleet, registry
        self._public, self._start, self._moments = public, start, moments

    def __call__(self, rank: int, data: bytes) -> None:
        """Take what a rank has registered."""
        fleet = self.fleet
        drop_gone(fleet)
        try:
            there = {*fleet.ranks, *(each.id for each in fleet.waiting.values())}
            registration, statistics = _read_new_registration(
                data, there, self._start, self._moments, fleet.manager.name_of(rank)
            )
            counted = _with_cap(fleet, registration, self.registry.cap)
            fleet.versions[counted.id] = counted.fedloom
            entry = _admitted(self.registry, fleet, rank, counted, statistics)
        except RefusedError as error:
            fleet.refuse(rank, str(error), data)
            return
        if self.registry.has(entry):
            self.welcome(rank, entry.id)
        elif self.closed:
            fleet.refuse(rank, self.closed, data)
        else:
            fleet.waiting[rank] = counted
            fleet.audit("waits", entry.id, name=entry.name, examples=sum(entry.train), fedloom=counted.fedloom)

    def welcome(self, rank: int, id: str) -> None:
        """Send a device of the registry its number, its architecture and its token."""
        _send_welcome(self.fleet, self.registry, rank, id, self._public, self._start)


def drop_gone(fleet: RankFleet) -> None:
    """Forget those that wait and are gone: no message of theirs is due."""
    for rank in fleet.manager.wait([*fleet.waiting], 0.0) if fleet.waiting else ():
        fleet.audit("left", fleet.waiting.pop(rank).id, fleet.manager.reason(rank))


def _read_new_registration(
    data: bytes, connected: Collection[str], start: bool, moments: bool, key_of: str | None
) -> tuple[Registration, FirstStatistics | None]:
    """Return the registration of a device that is not connected yet, and its statistics where it sends some.

    `key_of`: the name with which its key is registered, which is the device's if it says none.

    Raises:
        RefusedError: it is no registration, or its device is connected already, takes no `start`, sends no sums of its
            targets for `moments` or sends some without, or has another name than its key.
    """
    registration, statistics = _read_registration(data, start)
    if key_of == "":
        raise RefusedError(f"device {registration.label} has no key that is registered any more: register it again")
    if key_of is not None and registration.name not in ("", key_of):
        raise RefusedError(
            f"the key of this device is registered with the name {key_of!r}, and it says {registration.name!r}: join "
            f"with --name {key_of}"
        )
    registration = registration if key_of is None else replace(registration, name=key_of)
    if moments and (statistics is None or statistics.targets is None):
        raise RefusedError(
            f"device {registration.label} has an earlier version of fedloom, which sends no sums of targets: install a "
            "newer one there, or take a task that standardises nothing"
        )
    if not moments and statistics is not None and statistics.targets is not None:
        raise RefusedError(
            f"device {registration.label} sends sums of targets, and this task asks for none: install the server's "
            "version of fedloom there"
        )
    if registration.id in connected:
        raise RefusedError(f"device {registration.label} has joined at another rank")
    return registration, statistics


def _admitted(
    registry: Registry, fleet: RankFleet, rank: int, registration: Registration, statistics: FirstStatistics | None
) -> Registration:
    """Return the entry of a device that joins a run again, by the key with which it began, or that comes later.

    Raises:
        RefusedError: as of `Registry.admit`, its columns differ from those that are prepared, its key is registered
            with another name, or is that of another device of the run.
    """
    _check_columns(registry, registration, statistics)
    entry, key_of = registry.admit(registration), fleet.manager.name_of(rank)
    owner = next((each for each in registry.devices if key_of and each.name == key_of), None)
    if entry.id not in registry.numbers:
        if owner is not None:
            raise RefusedError(
                f"the key of {key_of!r} is that of device {owner.id} in this run, and this one is {entry.id}: bring "
                "its own state folder back, or register a key of another name for a new device"
            )
        return entry
    if key_of not in (None, entry.name):
        raise RefusedError(
            f"device {entry.label} has begun this run with the key of {entry.name!r}, and this is that of {key_of!r}: "
            "bring its own state folder, or register its key with that name"
        )
    return entry


def _check_columns(registry: Registry, device: Registration, statistics: FirstStatistics | None) -> None:
    """Refuse a table whose columns are not those that the run's preparation knows."""
    made = None if registry.preparation is None else registry.read_preparation()
    if not isinstance(made, CommonPreparation):
        return
    own = Summary(0, {}, {}) if statistics is None or statistics.summary is None else statistics.summary
    table = Schema(f"on {device.label}", (*own.numbers, *own.words))
    if (told := made.differs_from(table, "when the run began")) is not None:
        raise RefusedError(f"a table has the columns with which the run began: {told}")


def _with_cap(fleet: RankFleet, device: Registration, cap: int) -> Registration:
    """Return a registration limited to the examples that count.

    Raises:
        RefusedError: not all count, and its statistics are of all of them.
    """
    if (counted := device.with_cap(cap)) != device:
        if device.statistics_digest and counted.train != device.train:
            raise RefusedError(
                f"statistics of a device are over examples that all count, got {sum(device.train)} of which "
                f"{sum(counted.train)} count: start the server with --most-examples {sum(device.train)}, or use fewer"
            )
        fleet.audit(
            "capped",
            device.id,
            f"it holds {sum(device.train)} examples, of which {sum(counted.train)} count",
        )
    return counted


def _send_welcome(fleet: RankFleet, registry: Registry, rank: int, id: str, public: bool, start: bool) -> None:
    """Send a device its number, its architecture and its token; from now on it can take requests."""
    client = registry.numbers[id]
    fleet.ranks[id] = rank
    registration = registry.devices[client]
    welcome = {
        "client": client, "model": registration.model, "token": fleet.tokens[id], "public": public, "start": start,
        "largest": registry.largest,
    }  # fmt: skip
    welcome |= {n: of for n in ("preparation", "moments") if (of := getattr(registry, n)) is not None}
    fleet.send_notice(rank, json.dumps(welcome).encode())
    if fleet.public is not None:
        fleet.send_notice(rank, fleet.public)
    if fleet.start is not None:
        fleet.offer(rank)
    fleet.audit(
        "joined", id, client=client, examples=sum(registration.train), model=registration.model,
        fedloom=fleet.versions.get(id, ""),
    )  # fmt: skip


def _check_cap(cap: int | None, previous: Registry | None) -> None:
    if cap is None:
        return
    if cap < 1:
        raise SettingError(f"--most-examples must be at least 1, got {cap}: raise it")
    if previous is not None and previous.cap != cap:
        raise SettingError(
            f"--most-examples must stay {previous.cap}, with which this run began and its devices registered, got "
            f"{cap}: leave it out"
        )


def _turn_away(fleet: RankFleet, reasons: Mapping[int, str]) -> None:
    for rank, words in reasons.items():
        fleet.send_notice(rank, json.dumps({"refused": words}).encode())
    fleet.settle()


def send_public(fleet: RankFleet, public: Examples, *, labels: bool) -> None:
    """Send the public examples, with or without labels, to connected devices, and to others once they connect."""
    head = {"normalise": describe_inputs(public.normalise), "labels": labels}
    fleet.public = pack(head, {"x": public.x} | ({"y": public.y} if labels else {}))
    for rank in list(fleet.ranks.values()):
        fleet.send_notice(rank, fleet.public)
    fleet.settle()


def _read_registration(data: bytes, start: bool = False) -> tuple[Registration, FirstStatistics | None]:
    try:
        message = parse(data, MAX_BYTES)
    except ValueError as error:
        raise RefusedError(f"it has not registered: {error!s:.80}") from None
    there = check_versions(message.get("versions"), "this device", "the server")
    registration = replace(Registration.of(message), statistics_digest="", fedloom=there)
    if start and message.get("start") is not True:
        raise RefusedError(
            f"device {registration.label} has an earlier version of fedloom, which cannot be sent a start: "
            "install a newer one there, or leave start out of the settings"
        )
    if "statistics" not in message:
        return registration, None
    outputs = 0 if registration.has_classes else registration.num_outputs
    statistics = FirstStatistics.read(message["statistics"], sum(registration.train), outputs)
    return replace(registration, statistics_digest=statistics.digest()), statistics
