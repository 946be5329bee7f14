"""Pairs of images with two labels, made of the images that are inside the package."""

from __future__ import annotations

import numpy as np
import torch

from fedloom.data.examples import Dataset, Examples
from fedloom.sources.embedded import fashion_mnist_small

PAIRED = ("trouser", "bag")
_SIZES = 2000, 500


def fashion_mnist_pairs() -> Dataset:
    """Return 2,000 training and 500 test pairs of images of `fashion_mnist_small`, (N, 1, 28, 56), with two labels.

    The labels say whether a trouser, and whether a bag, is one of the two: all four answers are equally frequent, and
    the place of each is drawn. The other images are of other classes. Always the same.
    """
    train, test = fashion_mnist_small()
    return Dataset(_pairs(train, _SIZES[0], 0), _pairs(test, _SIZES[1], 1))


def _pairs(images: Examples, count: int, seed: int) -> Examples:
    rng = np.random.default_rng(seed)
    kinds = [[name.lower() for name in images.classes].index(name) for name in PAIRED]
    y = images.y.numpy()
    with_label = [np.flatnonzero(y == kind) for kind in kinds]
    others = np.flatnonzero(~np.isin(y, kinds))
    has = rng.permutation(np.stack([np.arange(count) % 2, np.arange(count) // 2 % 2], 1)).astype(bool)
    sides = np.stack(
        [np.where(has[:, k], rng.choice(with_label[k], count), rng.choice(others, count)) for k in range(2)], 1
    )
    turned = rng.random(count) < 0.5
    sides[turned] = sides[turned, ::-1]
    x = torch.cat([images.x[torch.from_numpy(side.copy())] for side in sides.T], -1)
    part = images.name.rpartition(" ")[2]
    labels = torch.from_numpy(has.astype(np.float32))
    return Examples(x, labels, 2, images.normalise, f"fashion_mnist_pairs {part}", targets=PAIRED)
