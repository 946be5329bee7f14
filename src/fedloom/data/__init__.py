"""Examples, and their distribution over clients."""

from __future__ import annotations

from fedloom.data.adapters import from_huggingface, from_torch, texts_of_huggingface
from fedloom.data.arrays import read_npy, read_npz
from fedloom.data.changes import NEVER, Arrival, Drift, Growing, LabelDrift, OffsetDrift, RotationDrift, Window
from fedloom.data.embedded import fashion_mnist_small
from fedloom.data.examples import Dataset, Examples
from fedloom.data.federation import Federation, federate
from fedloom.data.hold_out import split
from fedloom.data.in_memory import from_arrays
from fedloom.data.inputs import Input, Inputs, Tokens, next_tokens
from fedloom.data.normalise import Normalise
from fedloom.data.parquet import read_parquet
from fedloom.data.partition import Partition, by_lists, dirichlet, iid, pooled, shards
from fedloom.data.sites import read_sites
from fedloom.data.skews import (
    balanced_dirichlet,
    label_blocks,
    lognormal,
    lognormal_sizes,
    natural,
    pathological,
)
from fedloom.data.sources import download, load
from fedloom.data.tables import from_frame, read_csv
from fedloom.data.target_skews import quantiles, quantity

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
    "download",
    "fashion_mnist_small",
    "federate",
    "from_arrays",
    "from_frame",
    "from_huggingface",
    "from_torch",
    "iid",
    "label_blocks",
    "load",
    "lognormal",
    "lognormal_sizes",
    "natural",
    "next_tokens",
    "pathological",
    "pooled",
    "quantiles",
    "quantity",
    "read_csv",
    "read_npy",
    "read_npz",
    "read_parquet",
    "read_sites",
    "shards",
    "split",
    "texts_of_huggingface",
]
