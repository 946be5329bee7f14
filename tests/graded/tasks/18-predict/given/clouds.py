"""Given: three classes in eight dimensions."""

import numpy as np

import fedloom as fl


def examples():
    rng = np.random.default_rng(2)
    y = rng.integers(3, size=500)
    x = (rng.normal(size=(3, 8))[y] + 0.7 * rng.normal(size=(500, 8))).astype(np.float32)
    return fl.Dataset(fl.from_arrays(x[:400], y[:400]), fl.from_arrays(x[400:], y[400:]))
