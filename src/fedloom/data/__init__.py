"""Examples, and their distribution over clients."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedloom.data.changes import NEVER, Arrival, Drift, Growing, LabelDrift, OffsetDrift, RotationDrift, Window
from fedloom.data.examples import Dataset, Examples
from fedloom.data.federation import Federation, federate
from fedloom.data.hold_out import split
from fedloom.data.in_memory import from_arrays
from fedloom.data.inputs import Input, Inputs, Tokens, next_tokens
from fedloom.data.normalise import Normalise
from fedloom.data.partition import Partition, by_lists, dirichlet, iid, pooled, shards
from fedloom.data.skews import (
    balanced_dirichlet,
    label_blocks,
    lognormal,
    lognormal_sizes,
    natural,
    pathological,
)
from fedloom.data.target_skews import quantiles, quantity

# Readers of files and of published formats are rooms of their own, which are imported when a name of theirs is used.
_READERS = {
    "fedloom.sources": (
        "download", "fashion_mnist_small", "from_huggingface", "from_torch", "load", "texts_of_huggingface"
    ),
    "fedloom.tables": ("from_frame", "read_csv", "read_npy", "read_npz", "read_parquet", "read_sites"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for room, names in _READERS.items():
        if name in names:
            return getattr(import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "NEVER",
    "Arrival",
    "Dataset",
    "Drift",
    "Examples",
    "Federation",
    "Growing",
    "Input",
    "Inputs",
    "LabelDrift",
    "Normalise",
    "OffsetDrift",
    "Partition",
    "RotationDrift",
    "Tokens",
    "Window",
    "balanced_dirichlet",
    "by_lists",
    "dirichlet",
    "federate",
    "from_arrays",
    "iid",
    "label_blocks",
    "lognormal",
    "lognormal_sizes",
    "natural",
    "next_tokens",
    "pathological",
    "pooled",
    "quantiles",
    "quantity",
    "shards",
    "split",
]
