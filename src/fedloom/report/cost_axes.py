"""Axes that curves are drawn over: rounds, or bytes and virtual time so far, in units that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedloom.core.errors import SettingError
from fedloom.report.methods import Method
from fedloom.report.printable import printable
from fedloom.wording import did_you_mean

OVER = {"rounds": "round", "bytes": "bytes", "virtual_time": "virtual_seconds"}
"""Words that a reader can choose, and the numbers in the rows of a run."""

_BYTES = (("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_SECONDS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
_UNITS = {
    "bytes": (_BYTES, "downloaded and uploaded"),
    "seconds": (_SECONDS, "of computing"),
    "virtual_seconds": (_SECONDS, "of virtual time"),
}


class CostAxis(NamedTuple):
    """Label of an axis, and how much of a run's number one of its units is."""

    label: str
    unit: float


def cost_axis(name: str, most: float) -> CostAxis:
    """Return the axis of a number that goes up to `most`: in the largest unit of which this is at least two."""
    if name not in _UNITS:
        return CostAxis(name, 1.0)
    units, of = _UNITS[name]
    unit, size = next((one for one in reversed(units) if most >= 2 * one[1]), units[0])
    return CostAxis(f"{unit} {of}", size)


def check_over(over: str, methods: Sequence[Method]) -> None:
    """Raise a SettingError unless the curves of all methods can be drawn over this."""
    if over not in OVER:
        raise SettingError(f"over must be one of {', '.join(OVER)}, got {over!r}{did_you_mean(over, OVER)}")
    without = [m.label for m in methods if not m.has(OVER[over])]
    if without:
        raise SettingError(
            f"curves over virtual time need virtual_seconds in every run, and {printable(without[0])} has none: give "
            "its runs a clock, or draw over bytes"
        )


def other_axes(methods: Sequence[Method]) -> dict[str, Any]:
    """Return what the page's script can draw curves over in place of rounds, by the words of `OVER`.

    Each has its label, and by method's number rounds and what had been spent after each, in the label's unit. Of a
    single method, whose lines are measures, they stand under "". What a method lacks, or nobody spent, is left out.
    """
    out: dict[str, Any] = {}
    for word, name in OVER.items():
        curves = {m.number: c for m in methods if (c := m.curve(name)) is not None}
        most = max((float(c.mean[-1]) for c in curves.values()), default=0.0)
        if word == "rounds" or len(curves) < len(methods) or not most:
            continue
        axis = cost_axis(name, most)
        spent = {n: [c.x.tolist(), [float(f"{v / axis.unit:.6g}") for v in c.mean]] for n, c in curves.items()}
        out[word] = {"label": axis.label, "of": spent if len(methods) > 1 else {"": next(iter(spent.values()))}}
    return out
