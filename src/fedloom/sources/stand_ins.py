"""Made-up data in the shape of real ones that may not be passed on."""

from __future__ import annotations

import numpy as np

from fedloom.data.examples import Dataset
from fedloom.data.in_memory import from_arrays

VEHICLE = (23, 43_695)  # clients and examples of the whole data set
_MEAN_STD = 1899.8, 349.0  # of the clients' sizes


def vehicle_like() -> Dataset:
    """Return what has the shape of Vehicle: (43,695, 100) float32, two classes, 23 natural clients.

    Sizes of clients have the mean and the deviation of Vehicle. Classes are Gaussian around +-(g + c_k) in the first
    ten features, g common to all clients and c_k a client's own: a linear model for all is right for about 80 % of the
    examples, one for each client for about 90 %. Accuracies are not comparable with published ones. Always the same.
    """
    clients, total = VEHICLE
    draw = np.random.RandomState(0)
    spread = draw.normal(size=clients)
    sizes = np.rint(_MEAN_STD[0] + _MEAN_STD[1] * (spread - spread.mean()) / spread.std()).astype(np.int64)
    sizes[0] += total - sizes.sum()
    owners = np.repeat(np.arange(clients), sizes)
    y = draw.randint(2, size=total)
    centres = np.zeros((clients, 100))
    centres[:, :10] = draw.normal(scale=0.27, size=(clients, 10))  # c_k
    centres[:, :10] += 0.95 / np.sqrt(10)  # g
    x = draw.normal(size=(total, 100)) + (2 * y - 1)[:, None] * centres[owners]
    train = from_arrays(x.astype(np.float32), y, num_classes=2, name="vehicle_like")
    return Dataset(train, None, owners)
