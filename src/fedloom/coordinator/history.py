"""What a run has measured so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Record = dict[str, Any]


@dataclass
class History:
    """The records of a run: one before training (round 0) and one after each round.

    `metrics` holds only what the seed determines; `timing` the seconds beside it. Weights after the last round are in
    `server` (by architecture; "" where the algorithm mixes them).
    """

    algorithm: str
    engine: str = ""
    engine_reason: str = ""
    metrics: list[Record] = field(default_factory=list)
    timing: list[Record] = field(default_factory=list)
    server: Any = None
    clients: Mapping[int, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.metrics)

    def series(self, name: str) -> npt.NDArray[np.float64]:
        """One measured number over the rounds that have it."""
        return np.array([m[name] for m in self.metrics if m.get(name) is not None], np.float64)

    def last(self, name: str, count: int = 1) -> float:
        """The mean of the newest `count` values of a number, NaN if it was never measured."""
        values = self.series(name)[-count:]
        return float(values.mean()) if len(values) else float("nan")

    @property
    def per_class(self) -> npt.NDArray[np.float64]:
        """Accuracy of the global model by evaluated round (after training began) and class, [T, C]."""
        rows = [m["class_accuracy"] for m in self.metrics if m["round"] > 0 and m.get("class_accuracy") is not None]
        return np.array([[np.nan if a is None else a for a in row] for row in rows], np.float64)
