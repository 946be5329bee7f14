"""Rare classes: those with few of the training examples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RARE = 0.1  # of an equal share of the examples: 5 % of two classes, 1 % of ten


def rare_classes(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the classes that have examples, and fewer than a tenth of an equal share. `counts`: by class, [C]."""
    there = counts > 0
    return np.flatnonzero(there & (counts * there.sum() < RARE * counts.sum()))
