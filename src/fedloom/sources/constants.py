"""Means and standard deviations of training images in [0, 1], as the field uses them, and what classes are called."""

from __future__ import annotations

from fedloom.data.normalise import Normalise

NORMALISE = {
    "mnist": Normalise((0.1307,), (0.3081,), 1 / 255),
    "fashion_mnist": Normalise((0.2860,), (0.3530,), 1 / 255),
    "cifar10": Normalise((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768), 1 / 255),
    "cifar100": Normalise((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 1 / 255),
    "svhn": Normalise((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), 1 / 255),
    "cinic10": Normalise((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835), 1 / 255),
}

CLASSES = {
    "fashion_mnist": (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "emnist_letters": tuple("abcdefghijklmnopqrstuvwxyz"),
}
