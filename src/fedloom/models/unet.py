"""A network that says the class of each pixel of an image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier

_GROUPS = 4


class _UNetBody(nn.Module):
    """Features (B, H, W, width) of the pixels of images (B, C, H, W)."""

    def __init__(self, in_channels: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.depth = depth
        self.down = nn.ModuleList(map(_block, [in_channels, *widths[:-1]], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in reversed(widths[:-1]))
        self.joined = nn.ModuleList(_block(2 * n, n) for n in reversed(widths[:-1]))

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        z = F.pad(x, (0, -width % 2**self.depth, 0, -height % 2**self.depth))
        levels: list[Tensor] = []
        for level, block in enumerate(self.down):
            z = block(F.max_pool2d(z, 2) if level else z)
            levels.append(z)
        for up, block, before in zip(self.up, self.joined, reversed(levels[:-1]), strict=True):
            z = block(torch.cat([before, up(z)], 1))
        return z[:, :, :height, :width].movedim(1, -1)


class UNet(FeatureClassifier):
    """A U-Net (Ronneberger, Fischer and Brox, MICCAI 2015): logits (B, C, H, W) of the class of each pixel.

    The features are those of each pixel, (B, H, W, width); the classifier is linear and the same at every pixel, as a
    convolution 1x1. Images may have any size: where 2^depth does not divide it they are filled up with zeros on the
    right and below, and answers are cut.

    Differences from the paper: convolutions are padded, so that answers are as large as images, each has GroupNorm with
    4 groups (Wu and He, ECCV 2018) and no bias, no dropout, and it is smaller (the paper's is width 64, depth 4).

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        width: channels at full size, a multiple of 4; each of the `depth` halvings of the size doubles them.
        depth: how often the size is halved.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 2, *, width: int = 16, depth: int = 2) -> None:
        if width < _GROUPS or width % _GROUPS or depth < 1:
            raise ValueError(
                f"a U-Net has a width that is a multiple of {_GROUPS}, its groups of normalisation, and a depth of at "
                f"least 1, got width={width} and depth={depth}: 16 and 2 are the defaults"
            )
        super().__init__(_UNetBody(in_channels, width, depth), width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each pixel, (B, C, H, W)."""
        return super().forward(x).movedim(-1, 1)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.GroupNorm(_GROUPS, outputs), nn.ReLU()]
    return nn.Sequential(*layers)
