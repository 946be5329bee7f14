"""Read accuracies by class of records that only grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class ClassRows:
    """Accuracies by class of records that only grow: each record is read once."""

    def __init__(self) -> None:
        self._known: npt.NDArray[np.float64] = np.empty((0, 0))
        self._seen, self._newest = 0, dict[str, Any]()

    def of(self, metrics: list[dict[str, Any]]) -> npt.NDArray[np.float64]:
        """Return the accuracies by round and class, [T, C], read-only."""
        grown = len(metrics) >= self._seen and (not self._seen or metrics[self._seen - 1] is self._newest)
        if not grown:  # cut back or replaced: from the start
            self._known, self._seen = np.empty((0, 0)), 0
        new = metrics[self._seen :]
        rows = [m["class_accuracy"] for m in new if m["round"] > 0 and m.get("class_accuracy") is not None]
        if rows:
            read = np.array([[np.nan if a is None else a for a in row] for row in rows], np.float64)
            self._known = np.concatenate([self._known, read]) if len(self._known) else read
            self._known.flags.writeable = False
        if new:
            self._seen, self._newest = len(metrics), metrics[-1]
        return self._known
