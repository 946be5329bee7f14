"""Small federations of images with masks, and a network for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl

SIZE, CLASSES, CLIENTS = 8, 3, 5
SPANS = ((0, 60), (60, 80), (80, 100))


def images(count: int = 100) -> tuple[Any, Any]:
    """Grey images uint8 (N, 8, 8) and masks: dark, bright, and the bright pixels of the right half; a border of 255."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, SIZE, SIZE)).astype(np.uint8)
    y = (x > 127).astype(np.uint8)
    y[..., SIZE // 2 :] *= 2
    y[:, 0] = 255
    return x, y


def federation(**settings: Any) -> fl.Federation:
    """Five clients of 12 images whose pixels are classified."""
    x, y = images()
    parts = [fl.from_arrays(x[a:b], y[a:b], num_classes=CLASSES, name="images") for a, b in SPANS]
    lists = np.array_split(np.arange(60), CLIENTS)
    settings = {"val_fraction": 0.25, "public_labels": True} | settings
    return fl.federate(
        parts[0], fl.data.by_lists(lists), test=parts[1], public=parts[2], test_fraction=0.25, **settings
    )


class Pixels(nn.Module):
    """Two convolutions, of which the second is the head; tanh, so that rounding is never amplified."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of each pixel."""
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def write(folder: Path, start: int = 0, count: int = 6, of: str = "", mode: str = "L") -> tuple[Any, Any]:
    """Write images as folder/images/PART/NUMBER.png, and their masks beside them."""
    x, y = (each[start : start + count] for each in images())
    from PIL import Image

    for k in range(count):
        for kind, values in (("images", x[k]), ("masks", y[k])):
            path = folder / kind / of / f"{start + k:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(values)
            if kind == "masks" and mode == "P":
                picture.putpalette([n for k in range(256) for n in (k, 255 - k, 0)])
            picture.save(path)
    return x, y
