"""Forgetting of the global model: its drop from its best earlier accuracy, class by class."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt


def forgetting(
    per_class: npt.NDArray[np.float64], convention: Literal["earlier", "all"] = "earlier"
) -> npt.NDArray[np.float64]:
    """Return F of each class after the last round (FedNTD, eq. 5; its mean over classes is the paper's F), [C].

    F_c is the max over rounds t of A_c^(t) - A_c^(T).

    Args:
        per_class: accuracies of the global model by round and class, [T, C], after rounds 1..T (not before training).
        convention: rounds that the max is over: the `earlier` rounds t < T (F of a class at its best in round T
            is negative), or `all` rounds t <= T (F is clipped at 0).
    """
    history = np.asarray(per_class, np.float64)
    if history.ndim != 2 or len(history) == 0:
        raise ValueError(f"forgetting needs accuracies [rounds, classes] of at least one round, got {history.shape}")
    if convention not in ("earlier", "all"):
        raise ValueError(f"convention must be 'earlier' (t < T) or 'all' (t <= T), got {convention!r}")
    past = history if convention == "all" else history[:-1]
    if len(past) == 0:
        return np.full(history.shape[1], np.nan)
    return np.asarray(np.fmax.reduce(past) - history[-1])  # of the rounds in which the class has an accuracy


def relative_forgetting(per_class: npt.NDArray[np.float64], convention: Literal["earlier", "all"] = "earlier") -> float:
    """Return F divided by the mean peak accuracy; arguments as of `forgetting`.

    F + final accuracy = mean peak accuracy <= 1, so F alone falls wherever accuracy rises; this share does not have to.
    Classes without test examples are left out. NaN where no class was ever right, or there is no earlier round.
    """
    lost = forgetting(per_class, convention)
    finite = np.isfinite(lost)
    peak = (lost + np.asarray(per_class, np.float64)[-1])[finite].sum()
    return float(lost[finite].sum() / peak) if finite.any() and peak > 0 else float("nan")
