"""Devices of a run's clients: how fast each computes, sends and receives, and when it is there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedloom.core.random import generator
from fedloom.virtual_time.device_files import Spells, availability, capacities, classes, measured

Numbers = npt.NDArray[np.float64]
_MBIT = 1e6 / 8  # bytes
_KBIT = 1e3 / 8


@dataclass(frozen=True)
class Devices:
    """Speeds of the clients' devices, [N] each.

    Attributes:
        example: seconds of computing for each example of each step of training.
        flop: seconds for each FLOP.
        down: bytes a second that a client receives.
        up: bytes a second that it sends.
        exchange: seconds of each exchange, whatever it is.
    """

    example: Numbers
    flop: Numbers
    down: Numbers
    up: Numbers
    exchange: Numbers


class Absence(Protocol):
    """Moments at which clients are there."""

    def there(self, at: float) -> npt.NDArray[np.bool_]:
        """Return which clients are there at a moment, [N]."""

    def back(self, client: int, at: float) -> float:
        """Return the first moment from `at` on at which a client is there."""

    def leaves(self, client: int, at: float) -> float:
        """Return the first moment from `at` on at which a client is not there; infinite where there is none."""


class Always:
    """Clients that are always there (an `Absence`)."""

    def __init__(self, clients: int) -> None:
        self._everyone = np.ones(clients, bool)

    def there(self, at: float) -> npt.NDArray[np.bool_]:
        return self._everyone

    def back(self, client: int, at: float) -> float:
        return at

    def leaves(self, client: int, at: float) -> float:
        return np.inf


class Cycles:
    """Clients that are there for a share of each cycle, each from a moment of its own on (an `Absence`).

    With a share of 0.25, a cycle of 24 hours and a phase of 0.5, a client is there when (t / 24 h + 0.5) mod 1 is below
    0.25: from 12 h to 18 h of each day.
    """

    def __init__(self, share: float, cycle: float, seed: int, clients: int) -> None:
        self.share, self.cycle = share, cycle
        self.phase = generator(seed, "clock", "phase").random(clients)

    def there(self, at: float) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (at / self.cycle + self.phase) % 1.0 < self.share
        return found

    def back(self, client: int, at: float) -> float:
        place = self._place(client, at)
        if place < self.share:
            return at
        moment = at + (1.0 - place) * self.cycle
        while self._place(client, moment) >= self.share:  # one rounding before the end of the cycle
            moment += 1e-9 * self.cycle
        return moment

    def leaves(self, client: int, at: float) -> float:
        place = self._place(client, at)
        if self.share >= 1.0:
            return np.inf
        return at + max(0.0, self.share - place) * self.cycle

    def _place(self, client: int, at: float) -> float:
        return float((at / self.cycle + self.phase[client]) % 1.0)


class Traced:
    """Clients that are there as a trace says, which begins anew at its end (an `Absence`).

    Client k has the row k of the trace, and rows are taken again where there are more clients.
    """

    def __init__(self, rows: Sequence[Spells], clients: int) -> None:
        self.rows, self.clients = rows, clients

    def there(self, at: float) -> npt.NDArray[np.bool_]:
        of_rows = np.array([_within(row, at % row.length) is not None for row in self.rows])
        return of_rows[np.arange(self.clients) % len(self.rows)]

    def back(self, client: int, at: float) -> float:
        row = self.rows[client % len(self.rows)]
        now = at % row.length
        if _within(row, now) is not None:
            return at
        later = bisect_right(row.begins, now)
        wait = row.begins[later] - now if later < len(row.begins) else row.length - now + row.begins[0]
        moment = at + wait
        while _within(row, moment % row.length) is None:  # one rounding before it begins
            moment += 1e-9 * row.length
        return moment

    def leaves(self, client: int, at: float) -> float:
        row = self.rows[client % len(self.rows)]
        now = at % row.length
        spell = _within(row, now)
        if spell is None:
            return at
        moment = at + row.ends[spell] - now
        if row.ends[spell] < row.length or row.begins[0] > 0:
            return moment
        if len(row.begins) == 1:
            return np.inf  # one spell from the beginning to the end
        return moment + row.ends[0]


def _within(row: Spells, now: float) -> int | None:
    """Return the spell of a row in which a moment lies."""
    spell = bisect_right(row.begins, now) - 1
    return spell if spell >= 0 and now < row.ends[spell] else None


def log_normal(given: Mapping[str, Any], seed: int, clients: int) -> Devices:
    """Return devices whose speeds are log-normal: medians, and the deviations of their logarithms.

    A client's `example`, or its FLOP/s, is the median times exp(spread z), with z standard normal, drawn once for each
    client. Of spread = 1, one client in six is slower than 2.7 times the median, and one in six faster than 1 / 2.7.
    """
    own = np.exp(given.get("spread", 1.0) * generator(seed, "clock", "speed").standard_normal(clients))
    line = np.exp(given.get("rates_spread", 0.0) * generator(seed, "clock", "rates").standard_normal(clients))
    nothing = np.zeros(clients)
    return Devices(
        example=given["example"] * own if "example" in given else nothing,
        flop=own / given["flops"] if "flops" in given else nothing,
        down=given.get("down", np.inf) * _MBIT * line,
        up=given.get("up", np.inf) * _MBIT * line,
        exchange=nothing,
    )


def of_classes(given: Mapping[str, Any], seed: int, clients: int) -> Devices:
    """Return devices of classes with shares of the clients, in an order that is drawn once.

    Of 10 clients and the shares 0.7 and 0.3, seven are of the first class: shares hold as far as whole clients can.
    """
    kinds = classes(given["file"]) if "file" in given else given["classes"]
    ends = np.cumsum([kind.share for kind in kinds]) / sum(kind.share for kind in kinds)
    place = (generator(seed, "clock", "class").permutation(clients) + 0.5) / clients
    of = np.searchsorted(ends[:-1], place, side="right")
    return Devices(
        example=np.array([kind.example for kind in kinds])[of],
        flop=np.zeros(clients),
        down=np.array([kind.down for kind in kinds])[of] * _MBIT,
        up=np.array([kind.up for kind in kinds])[of] * _MBIT,
        exchange=np.zeros(clients),
    )


def of_trace(given: Mapping[str, Any], seed: int, clients: int) -> Devices:
    """Return devices as a trace with FedScale's columns has them.

    `computation` is the milliseconds of inference for an example, of which training takes three times as many, as
    FedScale counts; `communication` is kbit/s, for both ways alike.
    """
    rows = capacities(given["file"])
    of = np.arange(clients) % len(rows)
    computing, rate = (np.array(column)[of] for column in zip(*rows, strict=True))
    rate = rate * _KBIT
    nothing = np.zeros(clients)
    return Devices(given.get("training", 3.0) * computing / 1000.0, nothing, rate, rate, exchange=nothing)


def of_run(given: Mapping[str, Any], seed: int, clients: int) -> Devices:
    """Return devices that take as long as those of a measured run, for whatever they are asked."""
    found = measured(given["file"])
    nothing, endless = np.zeros(clients), np.full(clients, np.inf)
    return Devices(nothing, nothing, endless, endless, np.array(found)[np.arange(clients) % len(found)])


def absence(given: Mapping[str, Any], seed: int, clients: int) -> Absence:
    """Return when clients are there."""
    if "availability" in given:
        return Traced(availability(given["availability"]), clients)
    if "there" in given:
        return Cycles(given["there"], given["cycle"], seed, clients)
    return Always(clients)
