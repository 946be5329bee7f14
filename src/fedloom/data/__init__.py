"""Examples, and their distribution over clients."""

from __future__ import annotations

from fedloom.data.embedded import fashion_mnist_small
from fedloom.data.examples import Examples, Normalise, from_arrays
from fedloom.data.federation import Federation, federate
from fedloom.data.partition import Partition, by_lists, dirichlet, iid, pooled, shards, split

__all__ = [
    "Examples",
    "Federation",
    "Normalise",
    "Partition",
    "by_lists",
    "dirichlet",
    "fashion_mnist_small",
    "federate",
    "from_arrays",
    "iid",
    "pooled",
    "shards",
    "split",
]
