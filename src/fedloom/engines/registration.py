"""The devices of a run: each registered once, by an id of its own, with what the server must know of its examples."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.core import files
from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.data import Examples, Federation, Partition
from fedloom.data.examples import MAX_CLASSES

CAP = 1_000_000  # examples that count of one device, unless said otherwise
_ID = re.compile(r"[0-9a-f]{32}")
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float64": torch.float64}


def checked_id(id: Any, whose: str) -> str:
    """An id as it may be part of a path.

    Raises:
        RefusedError: it is none.
    """
    if isinstance(id, str) and _ID.fullmatch(id):
        return id
    raise RefusedError(f"the id of {whose} is 32 hexadecimal digits, got {id!r:.80}")


@dataclass(frozen=True)
class Registration:
    """What a device says of itself when it joins. No example leaves it.

    Attributes:
        id: 32 hexadecimal digits, which it keeps: it is the same device on whatever host and rank.
        train: training examples by class.
        test: held-out examples by class, to test on.
        val: the same, to validate on.
        shape: of an example.
        dtype: of the values of an example as they are stored.
        model: its architecture; "" before the server has chosen one.
    """

    id: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    val: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    model: str = ""

    @classmethod
    def of(cls, said: Any) -> Registration:
        """A registration of what came as JSON.

        Raises:
            RefusedError: it is none.
        """
        try:
            counts = {name: tuple(said[name]) for name in ("train", "test", "val", "shape")}
            made = cls(id=said["id"], dtype=said["dtype"], model=said["model"], **counts)
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
        return made

    def capped(self, cap: int) -> Registration:
        """The same with at most `cap` examples of each role; the classes keep their shares."""

        def cut(counts: tuple[int, ...]) -> tuple[int, ...]:
            total = sum(counts)
            return counts if total <= cap else tuple(n * cap // total for n in counts)

        return replace(self, train=cut(self.train), test=cut(self.test), val=cut(self.val))


@dataclass(frozen=True, eq=False)
class Absent(Examples):
    """Examples that are elsewhere: here are their labels alone, as devices have registered them by class."""

    def __post_init__(self) -> None:
        """Nothing is looked at: `x` is one zero as often as it takes."""

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
    """

    run: str
    devices: tuple[Registration, ...]
    test: str = ""

    @classmethod
    def of(cls, run: str, found: Sequence[Registration], models: Sequence[str], test: str = "") -> Registry:
        """Devices that join a new run; one that leaves its architecture to the server gets one in turn.

        Raises:
            SettingError: there are none, or they differ in shape, type or classes of their examples.
        """
        devices = sorted(found, key=lambda each: each.id)
        if not devices:
            raise SettingError("a run needs a device, got none that could be registered: see the audit log for why")
        first = devices[0]
        for name, of in (
            ("shape", lambda d: d.shape),
            ("dtype", lambda d: d.dtype),
            ("classes", lambda d: len(d.train)),
        ):
            for each in devices[1:]:
                if of(each) != of(first):
                    raise SettingError(
                        f"examples of all devices are alike, and their {name} differ: {of(first)} on {first.id}, "
                        f"{of(each)} on {each.id}; say data.classes in the settings, or prepare the files alike"
                    )
        chosen = [replace(d, model=d.model or models[k % len(models)]) for k, d in enumerate(devices)]
        if unknown := {d.model for d in chosen} - set(models):
            raise SettingError(f"devices have the architectures of the settings, {', '.join(models)}, got {unknown}")
        return cls(run, tuple(chosen), test)

    @property
    def names(self) -> tuple[str, ...]:
        """Their ids."""
        return tuple(device.id for device in self.devices)

    def admit(self, one: Registration) -> Registration:
        """The entry of a device that has joined this run before.

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
        files.write(path.parent, path.name, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Registry:
        """Read it.

        Raises:
            StorageError: it is missing or damaged.
        """
        try:
            found = json.loads(files.load(path))
            devices = tuple(map(Registration.of, found["devices"]))
            return cls(checked_id(found["run"], "a run"), devices, str(found["test"]))
        except (ValueError, KeyError, TypeError, RefusedError) as error:
            raise StorageError(f"{path} does not say which devices a run has: {error}") from None

    def federation(self, test: Examples | None = None) -> Federation:
        """Who holds how many examples of which class; the examples are on the devices."""
        first, n, end = self.devices[0], len(self.devices), 0
        classes = np.tile(np.arange(len(first.train)), n)
        parts: dict[str, Partition | None] = {}
        labels = []
        for role in ("train", "test", "val"):  # [those of device 0, those of device 1, ...] for each role in turn
            counts = np.array([getattr(device, role) for device in self.devices], np.int64)
            indptr = np.cumsum([0, *counts.sum(1)], dtype=np.int64)
            rows = np.arange(end, end := end + int(indptr[-1]))
            parts[role] = Partition(indptr, rows, "devices") if len(rows) else None
            labels.append(np.repeat(classes, counts.ravel()))
        x = torch.zeros((), dtype=_DTYPES[first.dtype]).expand(end, *first.shape)
        train = Absent(x, torch.from_numpy(np.concatenate(labels)), len(first.train), name="examples of devices")
        assert parts["train"] is not None  # every device has some
        return Federation(train, parts["train"], test, parts["test"], parts["val"])
