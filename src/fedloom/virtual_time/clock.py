"""Virtual clock of a run: seconds of a client's training, of what it receives and sends, and of its absence.

No real clock is read. Every number is a function of the setting, the run's seed, client and round.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments, by_name, find
from fedloom.core.random import generator
from fedloom.virtual_time.device_files import DeviceClass, audit_of, check_classes
from fedloom.virtual_time.devices_of_clients import (
    Absence,
    Always,
    Devices,
    absence,
    log_normal,
    of_classes,
    of_run,
    of_trace,
)
from fedloom.wording import local_path, whole

_COMMON = {"jitter": float, "there": float, "cycle": float, "deadline": float, "seed": whole}
_RULES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "there": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    **dict.fromkeys(("example", "spread", "rates_spread", "jitter"), (lambda value: value >= 0, "0 or more")),
    **dict.fromkeys(("flops", "down", "up", "cycle", "deadline", "training"), (lambda value: value > 0, "above 0")),
}


def _speed_missing(given: Mapping[str, Any]) -> str:
    return "" if ("example" in given) != ("flops" in given) else "one of example= (seconds) and flops= (FLOP/s)"


def _classes_missing(given: Mapping[str, Any]) -> str:
    return "" if ("classes" in given) != ("file" in given) else "classes, or a file of them"


def _file_missing(given: Mapping[str, Any]) -> str:
    return "" if "file" in given else "a file, or the folder of a run"


@dataclass(frozen=True)
class Kind:
    """A kind of clock.

    Attributes:
        form: how it is written.
        keys: kinds of its values by key, as of `fedloom.wording.value_of`.
        missing: says what is lacking, "" where nothing is.
        devices: makes the devices of what was said, a seed, and a number of clients.
        classes: whether classes of devices may be written beside the keys.
    """

    form: str
    keys: Mapping[str, Any]
    missing: Callable[[Mapping[str, Any]], str]
    devices: Callable[[Mapping[str, Any], int, int], Devices]
    classes: bool = False


_SPEEDS = ("example", "flops", "spread", "down", "up", "rates_spread")
KINDS = by_name(
    (Kind("lognormal:example=0.01,spread=1,down=20,up=5 or lognormal:flops=1e9,down=20,up=5,rates_spread=0.5",
          dict.fromkeys(_SPEEDS, float), _speed_missing, log_normal),
     Kind("classes:phone=0.7/0.02/20/5,laptop=0.3/0.002/100/40 or classes:FILE.csv",
          {"file": str}, _classes_missing, of_classes, classes=True),
     Kind("measured:RUN", {"file": str}, _file_missing, of_run),
     Kind("trace:FILE.csv or trace:FILE.csv,availability=FILE.csv",
          {"file": str, "availability": str, "training": float}, _file_missing, of_trace))
)  # fmt: skip


class Clock:
    """Virtual clock of a run's clients.

    Attributes:
        deadline: seconds that clients have for an exchange; None: no limit.
        devices: of the clients.
        jitter: deviation of the logarithm of each training's seconds.
        by_flops: whether FLOPs count.
        comes_and_goes: whether clients may be absent.
        files: a number of what is in the files that the setting names; 0 where there are none.
    """

    def __init__(
        self, devices: Devices, absence: Absence, *, seed: int, jitter: float, deadline: float | None, files: int = 0
    ) -> None:
        self.devices, self.deadline, self.files = devices, deadline, files
        self.by_flops, self.comes_and_goes = bool(devices.flop.any()), not isinstance(absence, Always)
        self._absence, self._seed, self.jitter = absence, seed, jitter

    @classmethod
    def of(cls, text: str, seed: int, clients: int) -> Clock:
        """Return the clock that a setting asks for.

        Args:
            text: the setting, NAME:KEY=VALUE,KEY=VALUE.
            seed: of the run, by which devices are drawn, unless the setting has a `seed` of its own.
            clients: of the federation.

        Raises:
            SettingError: the setting is written otherwise, a value is out of range, or a file cannot be read.
        """
        given = _read(text)
        own = given.get("seed", seed)
        made = find("clock", text, KINDS, before="none").devices(given, own, clients)
        files = [given[key] for key in ("file", "availability") if key in given]
        return cls(
            made, absence(given, own, clients), seed=own, jitter=given.get("jitter", 0.0),
            deadline=given.get("deadline"), files=_digest(files) if files else 0,
        )  # fmt: skip

    def seconds(
        self, client: int, round: int, examples: float, steps: int, flops: float, down: float, up: float
    ) -> float:
        """Return the seconds that a client takes for one training: download, computing, upload.

        Of 500 examples at 0.01 s, 1 MB down at 20 Mbit/s and 1 MB up at 5 Mbit/s these are 0.4 + 5 + 1.6 = 7.

        Args:
            client: its number.
            round: from 0; the version of the model that it trains from.
            examples: that its steps train on, 500 of 100 examples and 5 epochs.
            steps: of its training; none of the kinds here counts them.
            flops: of these examples' gradients.
            down: bytes that it receives.
            up: bytes that it sends.
        """
        of = self.devices
        computing = float(of.example[client]) * examples + float(of.flop[client]) * flops + float(of.exchange[client])
        if self.jitter:
            z = generator(self._seed, "clock", "jitter", round, client).standard_normal()
            computing *= math.exp(self.jitter * z)
        return down / float(of.down[client]) + computing + up / float(of.up[client])

    def check_files(self, before: int) -> None:
        """Raise SettingError where files have changed since a run began. `before`: as `files` was then."""
        if before != self.files:
            raise SettingError(
                "a run goes on with the devices that it began with, and the files that its clock names have others "
                "now: put them back as they were"
            )

    def there(self, at: float) -> npt.NDArray[np.bool_]:
        """Return which clients are there at a moment, [N].

        Args:
            at: virtual seconds since the start of the run, as of all moments.
        """
        return self._absence.there(at)

    def back(self, client: int, at: float) -> float:
        """Return the moment from which a client is there again: `at` itself where it is there.

        Args:
            client: its number.
            at: a moment.
        """
        return self._absence.back(client, at)

    def leaves(self, client: int, at: float) -> float:
        """Return the moment at which a client goes away: `at` itself where it is not there, infinite if it stays.

        Args:
            client: its number.
            at: a moment.
        """
        return self._absence.leaves(client, at)


def _read(text: str) -> dict[str, Any]:
    """Return what stands behind the name of a clock, by key.

    Raises:
        SettingError: a key is unknown or there twice, a value is of another kind or out of range, or one is missing.
    """
    kind, (name, _, rest) = find("clock", text, KINDS, before="none"), text.partition(":")
    parts = [part for part in rest.split(",") if part]
    if parts and "=" not in parts[0]:
        parts[0] = f"file={parts[0]}"
    inline = [part for part in parts if kind.classes and "/" in part and not part.startswith("file=")]
    said = "&".join(part for part in parts if part not in inline)
    form = f"{kind.form}; jitter=, there=, cycle=, deadline=, seed="
    found = arguments(f"clock = {name!r}", said, {**kind.keys, **_COMMON}, form) if said else {}
    for key, (fits, rule) in _RULES.items():
        if key in found and not fits(found[key]):
            raise SettingError(f"{key} of a clock is {rule}, got {found[key]:g} in {text!r}: correct it")
    if inline:
        found["classes"] = [_of_class(part, text) for part in inline]
        check_classes(found["classes"], text)
    if missing := kind.missing(found):
        raise SettingError(f"a clock {name!r} needs {missing}, got {text!r}: write {kind.form}")
    if ("there" in found) != ("cycle" in found) or {"there", "availability"} <= found.keys():
        raise SettingError(
            f"clients are there for a share of each cycle (there=0.5,cycle=86400), or as a trace says (availability=), "
            f"got {text!r}: write both of the first, or the second alone"
        )
    return found


def _of_class(part: str, text: str) -> DeviceClass:
    """Return the class that is written NAME=SHARE/SECONDS/DOWN/UP.

    Raises:
        SettingError: one of these is no number.
    """
    name, _, numbers = part.partition("=")
    try:
        share, example, down, up = map(_finite, numbers.split("/"))
        return DeviceClass(name, share, example, down, up)
    except ValueError:
        raise SettingError(
            f"a class of devices is NAME=SHARE/SECONDS/DOWN/UP, numbers all, got {part!r} in {text!r}: write it as in "
            "phone=0.7/0.02/20/5"
        ) from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError
    return value


def _digest(files: Iterable[str]) -> int:
    """Return a number of what is in files."""
    found = hashlib.blake2b(digest_size=8)
    for file in files:
        place = local_path(file)
        found.update((audit_of(file) if place.is_dir() else place).read_bytes())
    return int.from_bytes(found.digest(), "little") >> 2
