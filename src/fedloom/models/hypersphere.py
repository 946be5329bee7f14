"""Networks whose features are looked at, not networks to be good with."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier, convolutions


class UnitCircle(nn.Module):
    """Points (B, 2) moved onto the unit circle; zero, which has no direction, stays."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class HypersphereCNN(FeatureClassifier):
    """The CNN of FedNTD with a feature layer of 2 units on the unit circle (Lee et al., NeurIPS 2022, appendix N).

    Convolutions 5x5 with padding 2 to 32 and 64 channels, each followed by ReLU and max-pooling 2, then 2 units,
    divided by their norm, and C units. What a class becomes is an angle, which can be drawn.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 4.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10) -> None:
        if image_size < 4:
            raise ValueError(f"HypersphereCNN needs images of at least 4 pixels, got {image_size}: enlarge them")
        body = nn.Sequential(
            *convolutions(in_channels, 32, 64, padding=2),
            nn.Linear(64 * (image_size // 4) ** 2, 2),
            UnitCircle(),
        )
        super().__init__(body, 2, num_classes)
