"""The devices of a run: each registered once, by an id of its own, with what the server must know of its examples."""

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
import torch

from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.data import Examples, Federation, Partition
from fedloom.data.examples import MAX_CLASSES
from fedloom.engines.norms import LEAST
from fedloom.storage import files
from fedloom.storage.strict_json import LARGEST, document, parse

CAP = 1_000_000  # examples that count of one device, unless said otherwise
TIMES_MEDIAN = 10  # nor more than so many times the median of all devices
_LONGEST, _LARGEST = 1000, 1 << 21  # characters of a name, bytes of all names of classes or of columns
_SHOWN = 5  # names in a message
_MEND_CLASSES = (
    "call them alike (the values of the label column, the folders of images), or number them from 0 on all devices and "
    "say data.classes in the settings"
)
_MEND_COLUMNS = (
    "give all files the same columns in the same order; of words, which prepare=standard makes columns of, each device "
    "needs the same ones in its training rows"
)
_ID = re.compile(r"[0-9a-f]{32}")
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64}


def checked_id(id: Any, whose: str) -> str:
    """Return an id, which may be part of a path.

    Raises:
        RefusedError: it is no id.
    """
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise RefusedError(f"the id of {whose} is 32 hexadecimal digits, got {id!r:.80}")


def checked_names(names: Any, whose: str, count: int) -> tuple[str, ...]:
    """Return the names of the `count` classes or columns of some examples; nothing where they have no names.

    Raises:
        RefusedError: they are no names, too long, or not as many.
    """
    found = tuple(names) if isinstance(names, list | tuple) else (None,)
    if len(found) not in (0, count) or not all(isinstance(name, str) for name in found):
        raise RefusedError(f"each of the {count} {whose} of examples has a name or none has, got {names!r:.80}")
    if long := [name for name in found if len(name) > _LONGEST]:
        raise RefusedError(
            f"the names of {whose} have at most {_LONGEST} characters, got {len(long[0])}: rename {long[0]!r:.80}"
        )
    if (size := len(json.dumps(found))) > _LARGEST:
        raise RefusedError(f"the names of {whose} take at most {_LARGEST} bytes, got {size}: shorten them")
    return found


@dataclass(frozen=True)
class Registration:
    """Description that a device gives of itself when it joins. No example leaves it.

    Attributes:
        id: 32 hexadecimal digits, which it keeps: it is the same device on whatever host and rank.
        train: training examples by class.
        test: held-out examples by class, to test on.
        val: the same, to validate on.
        shape: of an example.
        dtype: of the values of an example as they are stored.
        model: its architecture; "" before the server has chosen one.
        classes: names of the classes, in their order; empty where they are numbers from 0.
        columns: names of the features of a table, in their order; empty where they have none.
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
    def of(cls, said: Any) -> Registration:
        """Return the registration in what came as JSON.

        Raises:
            RefusedError: it is no registration.
        """
        try:
            counts = {name: tuple(said[name]) for name in ("train", "test", "val", "shape")}
            made = cls(id=said["id"], dtype=said["dtype"], model=said["model"], **counts)
            classes, columns = said["classes"], said["columns"]
        except (KeyError, TypeError) as error:
            raise RefusedError(
                f"a device registers with an id, its examples by class and its model: {error!r}"
            ) from None
        checked_id(made.id, "a device")
        numbers = (*made.train, *made.test, *made.val, *made.shape)
        if not all(type(n) is int and 0 <= n < 1 << 40 for n in numbers):
            raise RefusedError("examples of a class are counted in whole numbers below 2**40")
        if not 1 <= len(made.train) == len(made.test) == len(made.val) <= MAX_CLASSES or not sum(made.train):
            raise RefusedError(f"examples are of the same classes, at most {MAX_CLASSES}, and some are to train on")
        if not (isinstance(made.dtype, str) and made.dtype in _DTYPES and isinstance(made.model, str)):
            raise RefusedError(f"the values of an example are {', '.join(_DTYPES)}, got {made.dtype!r:.80}")
        if not 1 <= len(made.shape) <= 8 or np.prod(made.shape, dtype=float) > 1 << 30:
            raise RefusedError(f"an example has at most 8 axes and 2**30 values, got {made.shape!s:.80}")
        count = made.shape[0] if len(made.shape) == 1 else 0
        return replace(
            made,
            classes=checked_names(classes, "classes", len(made.train)),
            columns=checked_names(columns, "columns", count),
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, which are their numbers where they have no others."""
        return self.classes or class_numbers(len(self.train))

    def capped(self, cap: int) -> Registration:
        """Return the registration with at most `cap` examples of each role.

        The classes keep their shares, as near as whole numbers can: of 3, 2 and 2 examples under a cap of 4, which are
        1.7, 1.1 and 1.1, there remain 2, 1 and 1.
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


def cap_of(found: Sequence[Registration]) -> int:
    """Return how many examples of one device of a new run count.

    A device that says that it has many more than others weighs no more. Of one or two devices there is no median worth
    the name, and `CAP` alone holds.
    """
    sizes = sorted(sum(each.train) for each in found)
    return CAP if len(sizes) < LEAST else min(CAP, TIMES_MEDIAN * sizes[(len(sizes) - 1) // 2])


def class_numbers(count: int) -> tuple[str, ...]:
    """Return the numbers of `count` classes, which is what classes without names are called."""
    return tuple(map(str, range(count)))


def _unlike(one: tuple[str, Sequence[str]], other: tuple[str, Sequence[str]]) -> str:
    """Say, for a message, what two call something, from where they first differ.

    Names come from outside and are quoted.
    """
    pairs = enumerate(zip_longest(one[1], other[1]))
    start = next((i for i, (a, b) in pairs if a != b), 0)

    def shown(names: Sequence[str]) -> str:
        part = names[start : start + _SHOWN]
        more = ", ..." if start + _SHOWN < len(names) else ""
        return (", ".join(f"{name!r:.80}" for name in part) or ("nothing more" if start else "no names")) + more

    after = f"from number {start} on, " if start else ""
    return f"{after}{shown(one[1])} on {one[0]}, {shown(other[1])} on {other[0]}"


@dataclass(frozen=True, eq=False)
class Absent(Examples):
    """Examples that are elsewhere: here are their labels alone, as devices have registered them by class.

    `registry`: who has them, as it is written in `devices.json`.
    """

    registry: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look at nothing: `x` is one zero as often as it takes."""

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"absent {self.num_classes} {self.x.dtype} {tuple(self.x.shape)}".encode())
        digest.update(self.y.numpy().data)
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Registry:
    """The devices of a run; the i-th is client i. Kept as a file, by which a server goes on.

    Attributes:
        run: the id of the run, by which devices keep their states apart.
        devices: in the order of their ids, so that nobody's number depends on who came first.
        test: what the server judges the global model on, as `--data` is written; "" for nothing.
        cap: number of examples that count of one device.
    """

    run: str
    devices: tuple[Registration, ...]
    test: str = ""
    cap: int = CAP

    @classmethod
    def of(
        cls, run: str, found: Sequence[Registration], models: Sequence[str], test: str = "", cap: int = CAP
    ) -> Registry:
        """Return the registry of devices that join a new run.

        A device that leaves its architecture to the server gets one in turn.

        Raises:
            SettingError: there are none, or they differ in shape, type, classes or columns of their examples.
        """
        devices = sorted(found, key=lambda each: each.id)
        if not devices:
            raise SettingError("a run needs a device, got none that could be registered: see the audit log for why")
        first = devices[0]
        for each in devices[1:]:
            for what, one, other, remedy in (
                ("classes", first.class_names, each.class_names, _MEND_CLASSES),
                ("columns", first.columns, each.columns, _MEND_COLUMNS),
            ):
                if one != other:
                    raise SettingError(
                        f"{what} are called alike on all devices, in the same order, and theirs differ: "
                        f"{_unlike((first.id, one), (each.id, other))}; {remedy}"
                    )
        for name in ("shape", "dtype"):
            for each in devices[1:]:
                if (theirs := getattr(each, name)) != (ours := getattr(first, name)):
                    raise SettingError(
                        f"examples of all devices are alike, and their {name} differ: {ours} on {first.id}, {theirs} "
                        f"on {each.id}; prepare the files alike"
                    )
        chosen = [replace(d, model=d.model or models[k % len(models)]) for k, d in enumerate(devices)]
        if unknown := {d.model for d in chosen} - set(models):
            raise SettingError(f"devices have the architectures of the settings, {', '.join(models)}, got {unknown}")
        return cls(run, tuple(chosen), test, cap)

    @property
    def names(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(device.id for device in self.devices)

    def admit(self, one: Registration) -> Registration:
        """Return the entry of a device that has joined this run before.

        Raises:
            RefusedError: it has not, or has other examples now.
        """
        known = next((device for device in self.devices if device.id == one.id), None)
        if known is None:
            raise RefusedError(f"the run has begun without device {one.id}")
        if replace(one, model=known.model) != known:
            raise RefusedError(f"device {one.id} has registered with other examples when the run began")
        return known

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
            found = parse(files.load(path), LARGEST)
            devices = tuple(map(Registration.of, found["devices"]))
            if type(cap := found["cap"]) is not int:
                raise ValueError(f"cap is a whole number, got {cap!r:.80}")
            return cls(checked_id(found["run"], "a run"), devices, str(found["test"]), cap)
        except (ValueError, KeyError, TypeError, RefusedError) as error:
            raise StorageError(f"{path} does not say which devices a run has: {error}") from None

    def federation(self, test: Examples | None = None) -> Federation:
        """Return the federation: who holds how many examples of which class. The examples are on the devices.

        Raises:
            SettingError: the columns of `test` are called otherwise than those of the devices.
        """
        first, n, end = self.devices[0], len(self.devices), 0
        if test is not None and first.columns != test.columns:
            raise SettingError(
                f"columns of the test examples are called as those of the devices, in the same order, and differ: "
                f"{_unlike((test.name, test.columns), (first.id, first.columns))}; {_MEND_COLUMNS}"
            )
        parts: dict[str, Partition | None] = {}
        roles = ("train", "test", "val")  # [those of device 0, those of device 1, ...] for each role in turn
        counts = np.array([[getattr(device, role) for device in self.devices] for role in roles], np.int64)
        for role, sizes in zip(roles, counts.sum(2), strict=True):
            indptr = np.cumsum([0, *sizes], dtype=np.int64)
            rows = np.arange(end, end := end + int(indptr[-1]))
            parts[role] = Partition(indptr, rows, "devices") if len(rows) else None
        y = torch.from_numpy(np.repeat(np.tile(np.arange(len(first.train)), len(roles) * n), counts.ravel()))
        x = torch.zeros((), dtype=_DTYPES[first.dtype]).expand(end, *first.shape)
        train = Absent(x, y, len(first.train), name="examples of devices", registry=asdict(self))
        assert parts["train"] is not None  # every device has some
        return Federation(train, parts["train"], test, parts["test"], parts["val"])
