"""A small real data set inside the package, for examples and tests that run without a download."""

from __future__ import annotations

import hashlib
import io
from importlib import resources

import numpy as np

from fedloom.data.examples import Examples
from fedloom.data.in_memory import from_arrays
from fedloom.sources.constants import CLASSES, NORMALISE

_FILE = "fashion_mnist_small.npz"
_SHA256 = "7d658da13f6a7784d795c8564248442deaf01b19cdce9e0b6be7671d7c5fc852"


def fashion_mnist_small() -> tuple[Examples, Examples]:
    """Return 10,000 training and 2,000 test images of Fashion-MNIST, (N, 1, 28, 28) uint8, in 10 balanced classes.

    They are the first 1,000 and 200 images of each class (Xiao et al., 2017; MIT licence, Zalando SE), normalised with
    the mean 0.2860 and standard deviation 0.3530 of the full training set. Accuracies on them are not comparable with
    published ones, which come from 60,000 and 10,000 images.

    Raises:
        ValueError: the installed data file is damaged.
    """
    content = resources.files(__name__).joinpath(_FILE).read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != _SHA256:
        raise ValueError(f"{_FILE} must have the SHA-256 {_SHA256}, got {digest}: install fedloom again")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        train, test = (
            from_arrays(
                arrays[f"x_{part}"],
                arrays[f"y_{part}"],
                normalise=NORMALISE["fashion_mnist"],
                name=f"fashion_mnist_small {part}",
                classes=CLASSES["fashion_mnist"],
            )
            for part in ("train", "test")
        )
    return train, test
