"""Share what all partitions need: labels that are whole numbers, checks of their arguments, and their generator."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from torch import Tensor

IntArray = npt.NDArray[np.int64]
_MANY_SHARDS = 10**10  # shards times those of a class, above which dealing them takes minutes


def is_hopeless(draws: int, fewest: int) -> bool:
    """Return whether none is to come that leaves no client short, where each of these draws left at least `fewest`."""
    return draws > 20 and fewest > 50


def starts(sizes: IntArray) -> IntArray:
    """Return where each client's rows start, and where the last one's end, (N + 1,)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def whole_labels(labels: npt.ArrayLike | Tensor, num_classes: int | None = None) -> IntArray:
    if hasattr(labels, "y"):
        raise ValueError(f"labels must be a list of integers, got {type(labels).__name__}: pass train.y [FL-DATA-011]")
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if array.size and array.dtype.kind == "f" and (array.ndim == 2 or (array != np.round(array)).any()):
        raise ValueError(
            f"labels must be a list of integers, got targets that are no classes, such as {array.flat[0]:g}: divide "
            "them by iid, by quantity, by natural clients, or by classes that quantiles(targets, 10) makes of them"
        )
    if array.ndim == 2 and array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError(
            f"labels must be a list of integers, got a token for each of {array.shape[1]} places, which are no "
            "classes: divide sequences by iid, by quantity or by natural clients"
        )
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ValueError(
            f"labels must be a list of integers, got {array.dtype} with {array.ndim} axes: "
            "number the classes from 0, one label per example"
        )
    if array.size and (array.min() < 0 or (num_classes is not None and array.max() >= num_classes)):
        limit = "not be negative" if num_classes is None else f"be in 0..{num_classes - 1}"
        raise ValueError(f"labels must {limit}, got {array.min()}..{array.max()}: number the classes from 0")
    return array.astype(np.int64, copy=False)


def number_of(labels: npt.ArrayLike | Tensor) -> int:
    """Return the number of examples that have these labels or targets."""
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    counted = array.ndim and (array.dtype.kind == "f" or array.ndim > 1)  # targets, or a token for each place
    return len(array if counted else whole_labels(labels))


def check_clients(num_clients: int, num_examples: int) -> None:
    if not 1 <= num_clients <= num_examples:
        raise ValueError(
            f"num_clients must be in 1..{num_examples}, the number of examples, got {num_clients}: "
            "use fewer clients or more data [FL-DATA-010]"
        )


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be in 0..{2**32 - 1}, got {seed}: choose one in this range")


def generator_of(seed: int) -> np.random.RandomState:
    check_seed(seed)
    return np.random.RandomState(seed)


def warn_of_shards(total: int, per_class: int) -> None:
    """Warn of so many shards that dealing them takes minutes, each drawn from all of its class that remain."""
    if total * per_class > _MANY_SHARDS:
        warnings.warn(
            f"each of {total:,} shards is drawn from all of its class that remain, as its authors do, which takes "
            "seconds for 20,000 clients, over an hour for 1,000,000: take fewer clients, or iid or dirichlet",
            stacklevel=3,
        )
