"""Ranges of numbers that trials of a sweep are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.experiments.words import coerce

Kind = Literal["log", "uniform", "int"]


@dataclass(frozen=True)
class Range:
    """Numbers to draw from, both ends included: "log" (log-uniform), "uniform", or "int" (integers).

    Real numbers are drawn to four significant digits, so that a table shows what was run.
    """

    kind: Kind
    low: float
    high: float

    def __post_init__(self) -> None:
        check_choices(self)
        if not self.low < self.high:
            raise SettingError(f"a range needs LOW < HIGH, got {self}")
        if not math.isfinite(self.high - self.low):
            raise SettingError(f"a range must not be wider than numbers reach, got {self}")
        if self.kind == "log" and self.low <= 0:
            raise SettingError(f"a log range needs LOW > 0, got {self}; use uniform:LOW:HIGH")
        if self.kind == "int" and not all(float(x).is_integer() and abs(x) <= 1 << 53 for x in (self.low, self.high)):
            raise SettingError(f"an int range needs whole numbers up to 2^53, got {self}; use uniform:LOW:HIGH")

    @classmethod
    def read(cls, text: str) -> Range | None:
        """`log:0.001:1`, `uniform:0:1`, `int:1:5`; None where a text is no range.

        Raises:
            SettingError: it is one, but its ends are no numbers or in the wrong order.
        """
        kind, *ends = text.split(":")
        if kind not in get_args(Kind):
            return None
        if len(ends) != 2:
            raise SettingError(f"a range is written {kind}:LOW:HIGH, got {text!r}")
        low, high = (coerce(end, int if kind == "int" else float, f"an end of {text}") for end in ends)
        return cls(kind, low, high)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind}:{self.low}:{self.high}"

    def draw(self, rng: np.random.Generator) -> float | int:
        """Draw one number."""
        if self.kind == "int":
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.kind == "log":
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return min(max(float(f"{value:.4g}"), self.low), self.high)
