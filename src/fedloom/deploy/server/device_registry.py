"""Registry of a run's devices, in the order of their client numbers, and the federation that it makes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.core.errors import RefusedError, SettingError, SettingWarning, StorageError, warn
from fedloom.data import Drift, Examples, Federation, Partition, Tokens
from fedloom.data.inputs import describe_inputs
from fedloom.data.schema import Schema
from fedloom.deploy.device_statistics import read_moments, read_preparation
from fedloom.deploy.registration import CAP, DTYPES, TARGETS, Registration, check_id, describe_targets
from fedloom.deploy.server.device_events import RENEWED, Event, after
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST, document, parse
from fedloom.tables.preparation import Preparation, preparation_of
from fedloom.tables.statistics import CommonPreparation
from fedloom.tables.vocabulary import TextPreparation
from fedloom.wording import some_of

_SHOWN = 5  # names in a message
_DIGITS, _CUT = 8, 48  # of an id, and characters of a name before them, where several devices have one name


def check_alike(devices: Sequence[Registration], features: bool = True) -> None:
    """Raise SettingError where the examples of devices differ.

    Args:
        devices: as they have registered.
        features: False: classes and targets are compared alone.
    """
    first = devices[0].schema(features)
    for device in devices[1:]:
        if (told := device.schema(features).differs_from(first)) is not None:
            raise SettingError(told)


def _with_unique_names(devices: Sequence[Registration]) -> list[Registration]:
    """Return devices of which no two have one name: the first digits of their ids stand behind names that are shared.

    Names are what devices say, so nobody keeps a name that another device has claimed too. One whose longer name is
    another's already has none.
    """
    shared = Counter(device.name for device in devices if device.name)
    out = [replace(d, name=f"{d.name[:_CUT]}-{d.id[:_DIGITS]}") if shared[d.name] > 1 else d for d in devices]
    taken = Counter(device.name for device in out)
    out = [replace(d, name="") if taken[d.name] > 1 else d for d in out]
    for name in (name for name, count in shared.items() if count > 1):
        called = [new.name or new.id for old, new in zip(devices, out, strict=True) if old.name == name]
        warn(
            f"a name is of one device, got {len(called)} called {name!r}: they are {some_of(called, _SHOWN)}; "
            "give each its own (fedloom join --name)",
            SettingWarning,
        )
    return out


@dataclass(frozen=True, eq=False)
class RemoteExamples(Examples):
    """Examples on devices, of which only the labels are here, as registered by class.

    `registry`: the content of `devices.json`.
    """

    registry: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Skip the checks of `Examples`: `x` is one zero, expanded."""

    @property
    def remote(self) -> Mapping[str, Any]:
        return self.registry

    def drifted(self, rule: Drift, clients: npt.NDArray[np.int64], round: int) -> Examples:
        return replace(self, y=rule.labels(self.y, clients, round, self.num_classes))

    def select(self, rows: npt.NDArray[np.int64] | Tensor) -> Examples:
        return Examples.select(replace(self, preparation=None), rows)  # whose columns are on the devices

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"absent {self.num_classes} {self.x.dtype} {tuple(self.x.shape)}".encode())
        digest.update(self.y.numpy().data if self.has_classes else str(self.y.dtype).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Registry:
    """Devices of a run; the i-th is client i. A server that resumes reads them from the file.

    Attributes:
        run: the id of the run, by which devices separate the states of their runs.
        devices: as they are now, in the order of their ids, so that numbers do not depend on the order of arrival;
            behind them those that have come later.
        test: source of the test examples of the global model, as for `--data`; "" for none.
        cap: the most examples of a device that count.
        preparation: of the devices' tables by their common statistics, as JSON has it; None if there is none.
        moments: mean and deviation of each target over all devices; None where no task asks for them.
        least: the fewest devices that must answer what is asked once in the run.
        events: what has changed since the run began, `devices` by then being `first`.
        first: those devices; empty where nothing has changed.
    """

    run: str
    devices: tuple[Registration, ...]
    test: str = ""
    cap: int = CAP
    preparation: Mapping[str, Any] | None = None
    moments: Mapping[str, Sequence[float]] | None = None
    least: int = 0
    events: tuple[Event, ...] = ()
    first: tuple[Registration, ...] = ()

    assignment = parts = ()  # devices have architectures in turn, and a run's parts are those of its settings

    @classmethod
    def of(
        cls,
        run: str,
        registrations: Sequence[Registration],
        models: Sequence[str],
        test: str = "",
        cap: int = CAP,
        *,
        preparation: Mapping[str, Any] | None = None,
        moments: Mapping[str, Sequence[float]] | None = None,
        least: int = 0,
    ) -> Registry:
        """Return the registry of a new run.

        Devices that name no architecture get those of `models` in turn.

        Raises:
            SettingError: there is no device, or they differ in shape, type, classes or columns of their examples.
        """
        made = cls(run, (), test, cap, preparation, moments, least)
        devices = _with_unique_names(sorted(map(made._with_features, registrations), key=lambda device: device.id))
        if not devices:
            raise SettingError(
                "a run needs at least 1 device, got none that could be registered: the audit log has the reasons"
            )
        check_alike(devices)
        chosen = [replace(d, model=d.model or models[k % len(models)]) for k, d in enumerate(devices)]
        if unknown := [d for d in chosen if d.model not in models]:
            raise SettingError(
                f"devices must have an architecture of the settings, {', '.join(models)}, got {unknown[0].model!r:.80} "
                f"on {unknown[0].label}: leave --model out there, or name one of these"
            )
        return replace(made, devices=tuple(chosen))

    def _with_features(self, registration: Registration) -> Registration:
        """Return a registration with the features that the common preparation makes of the device's columns."""
        if self.preparation is None:
            return registration
        made = self.read_preparation()
        if isinstance(made, TextPreparation):
            inputs = describe_inputs(Tokens(made.padding, vocabulary=made.size))
            return replace(registration, inputs=inputs, vocabulary=made.size if registration.vocabulary else 0)
        names = tuple(made.get_feature_names_out())
        return replace(registration, shape=(len(names),), columns=names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Ids of the devices."""
        return tuple(device.id for device in self.devices)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each device by its id."""
        return {device.id: k for k, device in enumerate(self.devices)}

    @cached_property
    def largest(self) -> int:
        """The most training examples of a device."""
        return max(sum(device.train) for device in self.devices)

    def has(self, entry: Registration) -> bool:
        """Return whether a device is of the run, with these examples."""
        return (k := self.numbers.get(entry.id)) is not None and self.devices[k] == entry

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients, the id of a device that has none; empty if no device has a name."""
        return tuple(device.name or device.id for device in self.devices) if any(d.name for d in self.devices) else ()

    def admit(self, registration: Registration) -> Registration:
        """Return the entry of a device that joins this run again, or that comes later, as it is from now on.

        A device that was there keeps its name and may have other numbers of examples. What all devices have in common
        is as when the run began.

        Raises:
            RefusedError: it differs from the others or from itself; says in what.
        """
        now = self._with_features(registration)
        if (k := self.numbers.get(registration.id)) is None:
            if (told := now.schema().differs_from(self.devices[0].schema())) is not None:
                raise RefusedError(
                    f"device {now.label} comes later, and the run goes on with what it began with: {told}"
                )
            return now
        entry = self.devices[k]
        now = replace(now, model=entry.model, name=entry.name)
        if replace(now, **{name: getattr(entry, name) for name in RENEWED}) != entry:
            raise RefusedError(
                f"device {entry.label} has registered with other examples when the run began: "
                f"{entry.differences(now)}; bring them back as they were, or begin a new run"
            )
        return now

    def with_event(self, event: Event) -> Registry:
        """Return the registry after an event."""
        devices = after(self.devices, event)
        return replace(self, devices=devices, first=self.first or self.devices, events=(*self.events, event))

    def newcomer(self, device: Registration, models: Sequence[str]) -> Registration:
        """Return the entry of a device that comes later, with an architecture and a name that no other has.

        `models`: the architectures that devices may have.

        Raises:
            RefusedError: it names none of these.
        """
        model = device.model or models[len(self.devices) % len(models)]
        if model not in models:
            raise RefusedError(
                f"devices must have an architecture of the settings, {', '.join(models)}, got {model!r:.80} on "
                f"{device.label}: leave --model out there, or name one of these"
            )
        name, taken = device.name, {each.name for each in self.devices}
        if name in taken:
            name = f"{name[:_CUT]}-{device.id[:_DIGITS]}" if name else ""
        return replace(device, model=model, name="" if name in taken else name)

    @property
    def begun(self) -> Registry:
        """The registry with which the run began."""
        return replace(self, devices=self.first or self.devices, first=(), events=())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, the same on all devices."""
        return self.devices[0].class_names

    def described(self) -> dict[str, Any]:
        """Return the content of the file; what follows from statistics is left out where there are none."""
        devices = [device.described() for device in self.first or self.devices]
        out = {"run": self.run, "devices": devices, "test": self.test, "cap": self.cap}
        out |= {"least": self.least} if self.least else {}
        out |= {"events": [event.described() for event in self.events]} if self.events else {}
        return out | {n: v for n in ("preparation", "moments") if (v := getattr(self, n)) is not None}

    def save(self, path: Path) -> None:
        """Write the file."""
        files.write(path.parent, path.name, document(self.described()))

    @classmethod
    def read(cls, path: Path) -> Registry:
        """Read the file.

        Raises:
            StorageError: it is missing or damaged.
        """
        try:
            content = parse(files.load(path), LARGEST)
            devices = tuple(map(Registration.of, content["devices"]))
            cap, least = content["cap"], content.get("least", 0)
            for name, number in (("cap", cap), ("least", least)):
                if type(number) is not int:
                    raise ValueError(f"{name} is a whole number, got {number!r:.80}")
            made = cls(check_id(content["run"], "a run"), devices, str(content["test"]), cap, least=least)
            if "preparation" in content:
                made = replace(made, preparation=read_preparation(content["preparation"]).described())
            if "moments" in content:
                mean, deviation = read_moments(content["moments"], devices[0].num_outputs)
                made = replace(made, moments={"mean": [*mean], "deviation": [*deviation]})
            for event in content.get("events", ()):
                made = made.with_event(Event.of(event))
            return made
        except (ValueError, LookupError, TypeError, RefusedError) as error:
            raise StorageError(f"{path} does not say which devices a run has: {error}") from None

    def read_preparation(self) -> CommonPreparation | TextPreparation:
        """Return the preparation of the devices' tables, which there is."""
        assert self.preparation is not None
        read = TextPreparation.read if "vocabulary" in self.preparation else CommonPreparation.read
        return read(self.preparation)

    def common_preparation(self) -> Preparation | None:
        """Return the preparation of the devices' tables, without their rows; None if there is none.

        Raises:
            SettingError: pandas is not installed.
        """
        if self.preparation is None:
            return None
        common = self.read_preparation()
        try:
            return Preparation.without_rows(common, sum(sum(device.train) for device in self.first or self.devices))
        except ValueError as error:
            raise SettingError(str(error)) from None

    def prepared(self, test: Examples) -> Examples:
        """Return examples of the server with the features that the devices' preparation makes of their columns.

        Raises:
            SettingError: one side is prepared by common statistics and the other is not, or columns differ.
        """
        common, own = self.common_preparation(), preparation_of(test)
        theirs = None if common is None else common.common
        ours = None if own is None else own.common
        if type(theirs) is not type(ours):
            said = "text=NAME" if isinstance(theirs or ours, TextPreparation) else "prepare=federated"
            raise SettingError(
                f"test examples are prepared as those of the devices, got {test.name} with{'out' * (ours is None)} "
                f"{said}: name it on the devices and with --test, or on neither"
            )
        if common is None or own is None:
            return test
        if (wanted := own.least_clients) not in (1, common.least_clients):
            raise SettingError(
                f"least_clients is the same with --test and on all devices, got {wanted} with {test.name} and "
                f"{common.least_clients} on the devices: name the same"
            )
        tables = [how.columns for how in (ours, theirs) if isinstance(how, CommonPreparation)]
        if tables and tables[0] not in (None, tables[1]):
            raise SettingError(
                f"columns is the same with --test and on all devices, got {tables[0]} with {test.name} and "
                f"{tables[1]} on the devices: name the same"
            )
        try:
            own = replace(own, frame=common.transformer.conform(own.frame), transformer=common.transformer)
        except ValueError as error:
            raise SettingError(f"{test.name}: {error}") from None
        return replace(test, preparation=own).prepared(common)

    def federation(self, test: Examples | None = None) -> Federation:
        """Return the federation with the number of examples by client and class; the examples are on the devices.

        Raises:
            SettingError: the columns of `test` have other names than those of the devices.
        """
        first, n, end = self.devices[0], len(self.devices), 0
        if test is not None:
            kind = "int64" if test.has_pixels else str(test.y.dtype).removeprefix("torch.")
            kind = describe_targets(kind, tuple(test.y.shape[1:]))
            theirs = Schema(f"on {first.label}", first.columns, kind=first.described_targets)
            if (told := Schema(f"in {test.name}", test.columns, kind=kind).differs_from(theirs)) is not None:
                raise SettingError(f"test examples are as those of the devices: {told}")
        parts: dict[str, Partition | None] = {}
        roles = ("train", "test", "val")  # rows of device 0, of device 1, ..., for each role in turn
        counts = np.array([[getattr(device, role) for device in self.devices] for role in roles], np.int64)
        for role, sizes in zip(roles, counts.sum(2), strict=True):
            indptr = np.cumsum([0, *sizes], dtype=np.int64)
            rows = np.arange(end, end := end + int(indptr[-1]))
            parts[role] = Partition(indptr, rows, "devices", clients=self.client_names) if len(rows) else None
        if first.has_classes:
            y = torch.from_numpy(np.repeat(np.tile(np.arange(len(first.train)), len(roles) * n), counts.ravel()))
        else:
            y = torch.zeros((), dtype=TARGETS[first.target_dtype]).expand(end, *first.target_shape)
        x = torch.zeros((), dtype=DTYPES[first.dtype]).expand(end, *first.shape)
        train = RemoteExamples(
            x, y, first.num_outputs, first.normalise, "examples of devices",
            columns=first.columns if self.preparation else (), preparation=self.common_preparation(),
            targets=first.targets, classes=first.classes, registry=self.described(),
        )  # fmt: skip
        assert parts["train"] is not None  # every device has some
        begun = self.begun.federation(test) if self.events else None
        return Federation(train, parts["train"], test, parts["test"], parts["val"], begun=begun)


def registry_in(text: str) -> Registry:
    """Return the registry in a file, by its name in a source of data.

    Raises:
        StorageError: it is missing or damaged.
    """
    return Registry.read(files.path_of(text))
