"""Registry of a run's devices: each registers once, by its own id, with a description of its examples."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.data import Drift, Examples, Federation, Partition
from fedloom.data.examples import MAX_CLASSES
from fedloom.engines.norms import LEAST
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST, document, parse

CAP = 1_000_000  # the most examples of a device that count, by default
TIMES_MEDIAN = 10  # and at most this multiple of the median over devices
_LONGEST, _LARGEST = 1000, 1 << 21  # characters of a name, bytes of all names of classes or of columns
_SHOWN = 5  # names in a message
_REMEDY_FOR_CLASSES = (
    "give them the same names (the values of the label column, the folders of images), or number them from 0 on all "
    "devices and set data.classes in the settings"
)
_REMEDY_FOR_COLUMNS = (
    "give all files the same columns in the same order; where prepare=standard makes columns of words, each device "
    "needs the same words in its training rows"
)
_ID = re.compile(r"[0-9a-f]{32}")
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64}


def check_id(id: Any, whose: str) -> str:
    """Return an id, which is safe as a part of a path.

    Raises:
        RefusedError: it is no id.
    """
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise RefusedError(f"the id of {whose} is 32 hexadecimal digits, got {id!r:.80}")


def check_names(names: Any, whose: str, count: int) -> tuple[str, ...]:
    """Return the names of `count` classes or columns; an empty tuple where they have no names.

    Raises:
        RefusedError: they are no names, too long, or of another number.
    """
    checked = tuple(names) if isinstance(names, list | tuple) else (None,)
    if len(checked) not in (0, count) or not all(isinstance(name, str) for name in checked):
        raise RefusedError(f"examples have the names of all {count} {whose} or none, got {names!r:.80}")
    if long := [name for name in checked if len(name) > _LONGEST]:
        raise RefusedError(
            f"the names of {whose} have at most {_LONGEST} characters, got {len(long[0])}: rename {long[0]!r:.80}"
        )
    if (size := len(json.dumps(checked))) > _LARGEST:
        raise RefusedError(f"the names of {whose} take at most {_LARGEST} bytes, got {size}: shorten them")
    return checked


@dataclass(frozen=True)
class Registration:
    """Description of a device, which it sends when it joins. Its examples stay on the device.

    Attributes:
        id: 32 hexadecimal digits, which identify the device on any host and rank.
        train: training examples by class.
        test: held-out examples by class, to test on.
        val: the same, to validate on.
        shape: of an example.
        dtype: of the values of an example as they are stored.
        model: its architecture; "" before the server has chosen one.
        classes: names of the classes, in their order; empty where they are numbers from 0.
        columns: names of a table's features, in their order; empty where they have none.
    """

    id: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    val: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    model: str = ""
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: Any) -> Registration:
        """Return the registration in an object of JSON.

        Raises:
            RefusedError: it is no registration.
        """
        try:
            counts = {name: tuple(fields[name]) for name in ("train", "test", "val", "shape")}
            device = cls(id=fields["id"], dtype=fields["dtype"], model=fields["model"], **counts)
            classes, columns = fields["classes"], fields["columns"]
        except (KeyError, TypeError) as error:
            raise RefusedError(
                f"a device registers with an id, its examples by class and its model: {error!r}"
            ) from None
        check_id(device.id, "a device")
        numbers = (*device.train, *device.test, *device.val, *device.shape)
        if not all(type(n) is int and 0 <= n < 1 << 40 for n in numbers):
            raise RefusedError("examples of a class are counted in whole numbers below 2**40")
        if not 1 <= len(device.train) == len(device.test) == len(device.val) <= MAX_CLASSES or not sum(device.train):
            raise RefusedError(f"examples are of the same classes, at most {MAX_CLASSES}, and some are to train on")
        if not (isinstance(device.dtype, str) and device.dtype in _DTYPES and isinstance(device.model, str)):
            raise RefusedError(f"the values of an example are {', '.join(_DTYPES)}, got {device.dtype!r:.80}")
        if not 1 <= len(device.shape) <= 8 or np.prod(device.shape, dtype=float) > 1 << 30:
            raise RefusedError(f"an example has at most 8 axes and 2**30 values, got {device.shape!s:.80}")
        count = device.shape[0] if len(device.shape) == 1 else 0
        return replace(
            device,
            classes=check_names(classes, "classes", len(device.train)),
            columns=check_names(columns, "columns", count),
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, by default their numbers."""
        return self.classes or class_numbers(len(self.train))

    def with_cap(self, cap: int) -> Registration:
        """Return the registration with at most `cap` examples of each role.

        The classes keep their shares, rounded by largest remainders: 3, 2 and 2 examples under a cap of 4 are 1.7, 1.1
        and 1.1, so 2, 1 and 1 remain.
        """

        def cut(counts: tuple[int, ...]) -> tuple[int, ...]:
            total = sum(counts)
            if total <= cap:
                return counts
            whole = [n * cap // total for n in counts]
            for c in sorted(range(len(counts)), key=lambda c: -(counts[c] * cap % total))[: cap - sum(whole)]:
                whole[c] += 1
            return tuple(whole)

        return replace(self, train=cut(self.train), test=cut(self.test), val=cut(self.val))


def cap_of(registrations: Sequence[Registration]) -> int:
    """Return the most examples of a device that count in a new run.

    It limits the weight of a device that claims many more examples than others. With one or two devices there is no
    useful median, and `CAP` alone applies.
    """
    sizes = sorted(sum(each.train) for each in registrations)
    return CAP if len(sizes) < LEAST else min(CAP, TIMES_MEDIAN * sizes[(len(sizes) - 1) // 2])


def class_numbers(count: int) -> tuple[str, ...]:
    """Return the numbers of `count` classes as text, the names of classes without names."""
    return tuple(map(str, range(count)))


def _describe_difference(one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]) -> str:
    """Describe two lists of names from where they first differ. Names are quoted, since devices sent them."""
    pairs = enumerate(zip_longest(one[1], other[1]))
    start = next((i for i, (a, b) in pairs if a != b), 0)

    def shown(names: Sequence[str]) -> str:
        part = names[start : start + _SHOWN]
        more = ", ..." if start + _SHOWN < len(names) else ""
        return (", ".join(f"{name!r:.80}" for name in part) or ("nothing more" if start else "no names")) + more

    after = f"from number {start} on, " if start else ""
    return f"{after}{shown(one[1])} on {one[0]}, {shown(other[1])} on {other[0]}"


@dataclass(frozen=True, eq=False)
class RemoteExamples(Examples):
    """Examples on devices, of which only the labels are here, as registered by class.

    `registry`: the content of `devices.json`.
    """

    registry: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Skip the checks of `Examples`: `x` is one zero, expanded."""

    def drifted(self, rule: Drift, clients: npt.NDArray[np.int64], round: int) -> Examples:
        return replace(self, y=rule.labels(self.y, clients, round, self.num_classes))

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"absent {self.num_classes} {self.x.dtype} {tuple(self.x.shape)}".encode())
        digest.update(self.y.numpy().data)
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Registry:
    """Devices of a run; the i-th is client i. A server that resumes reads them from the file.

    Attributes:
        run: the id of the run, by which devices separate the states of their runs.
        devices: in the order of their ids, so that numbers do not depend on the order of arrival.
        test: source of the test examples of the global model, as for `--data`; "" for none.
        cap: the most examples of a device that count.
    """

    run: str
    devices: tuple[Registration, ...]
    test: str = ""
    cap: int = CAP

    @classmethod
    def of(
        cls, run: str, registrations: Sequence[Registration], models: Sequence[str], test: str = "", cap: int = CAP
    ) -> Registry:
        """Return the registry of a new run.

        Devices that name no architecture get those of `models` in turn.

        Raises:
            SettingError: there is no device, or they differ in shape, type, classes or columns of their examples.
        """
        devices = sorted(registrations, key=lambda device: device.id)
        if not devices:
            raise SettingError(
                "a run needs at least 1 device, got none that could be registered: the audit log has the reasons"
            )
        first = devices[0]
        for device in devices[1:]:
            for subject, one, other, remedy in (
                ("classes", first.class_names, device.class_names, _REMEDY_FOR_CLASSES),
                ("columns", first.columns, device.columns, _REMEDY_FOR_COLUMNS),
            ):
                if one != other:
                    raise SettingError(
                        f"{subject} must have the same names in the same order on all devices, and theirs differ: "
                        f"{_describe_difference((first.id, one), (device.id, other))}; {remedy}"
                    )
        for name in ("shape", "dtype"):
            for device in devices[1:]:
                if (theirs := getattr(device, name)) != (ours := getattr(first, name)):
                    raise SettingError(
                        f"examples of all devices must have the same {name}, got {ours} on {first.id} and {theirs} on "
                        f"{device.id}: prepare the files alike"
                    )
        chosen = [replace(d, model=d.model or models[k % len(models)]) for k, d in enumerate(devices)]
        if unknown := {d.model for d in chosen} - set(models):
            raise SettingError(f"devices must have an architecture of the settings, {', '.join(models)}, got {unknown}")
        return cls(run, tuple(chosen), test, cap)

    @property
    def names(self) -> tuple[str, ...]:
        """Ids of the devices."""
        return tuple(device.id for device in self.devices)

    def admit(self, registration: Registration) -> Registration:
        """Return the entry of a device that joins this run again.

        Raises:
            RefusedError: it has not joined before, or has other examples now.
        """
        entry = next((device for device in self.devices if device.id == registration.id), None)
        if entry is None:
            raise RefusedError(f"the run has begun without device {registration.id}")
        if replace(registration, model=entry.model) != entry:
            raise RefusedError(f"device {registration.id} has registered with other examples when the run began")
        return entry

    def save(self, path: Path) -> None:
        """Write the file."""
        files.write(path.parent, path.name, document(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Registry:
        """Read the file.

        Raises:
            StorageError: it is missing or damaged.
        """
        try:
            content = parse(files.load(path), LARGEST)
            devices = tuple(map(Registration.of, content["devices"]))
            if type(cap := content["cap"]) is not int:
                raise ValueError(f"cap is a whole number, got {cap!r:.80}")
            return cls(check_id(content["run"], "a run"), devices, str(content["test"]), cap)
        except (ValueError, KeyError, TypeError, RefusedError) as error:
            raise StorageError(f"{path} does not say which devices a run has: {error}") from None

    def federation(self, test: Examples | None = None) -> Federation:
        """Return the federation with the number of examples by client and class; the examples are on the devices.

        Raises:
            SettingError: the columns of `test` have other names than those of the devices.
        """
        first, n, end = self.devices[0], len(self.devices), 0
        if test is not None and first.columns != test.columns:
            raise SettingError(
                f"columns of the test examples must have the names of the devices' columns in their order, and differ: "
                f"{_describe_difference((test.name, test.columns), (first.id, first.columns))}; {_REMEDY_FOR_COLUMNS}"
            )
        parts: dict[str, Partition | None] = {}
        roles = ("train", "test", "val")  # rows of device 0, of device 1, ..., for each role in turn
        counts = np.array([[getattr(device, role) for device in self.devices] for role in roles], np.int64)
        for role, sizes in zip(roles, counts.sum(2), strict=True):
            indptr = np.cumsum([0, *sizes], dtype=np.int64)
            rows = np.arange(end, end := end + int(indptr[-1]))
            parts[role] = Partition(indptr, rows, "devices") if len(rows) else None
        y = torch.from_numpy(np.repeat(np.tile(np.arange(len(first.train)), len(roles) * n), counts.ravel()))
        x = torch.zeros((), dtype=_DTYPES[first.dtype]).expand(end, *first.shape)
        train = RemoteExamples(x, y, len(first.train), name="examples of devices", registry=asdict(self))
        assert parts["train"] is not None  # every device has some
        return Federation(train, parts["train"], test, parts["test"], parts["val"])
