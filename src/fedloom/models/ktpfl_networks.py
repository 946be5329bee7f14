"""The larger networks of KT-pFL's experiments (Zhang et al., NeurIPS 2021), as in its authors' code.

They take images of three channels, on which grey ones are repeated. Its other two are `LeNet` and `ResNet18`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.models.networks import FeatureClassifier, check_size, relu_and_pool


class ThreeChannels(nn.Module):
    """Grey images (B, 1, H, W) repeated to (B, 3, H, W); others as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


def for_grey(network: FeatureClassifier) -> FeatureClassifier:
    """Make a network for three channels repeat grey images, so that it takes them, and return it."""
    network.body = nn.Sequential(ThreeChannels(), *network.body.children())
    return network


class AlexNet(FeatureClassifier):
    """AlexNet for small images: five convolutions 3x3, and three layers of 4096, 4096 and C units with dropout.

    64 (stride 2), 192, 384, 256 and 256 channels; max-pooling 2 behind the first, second and last.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 16.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10) -> None:
        check_size(self, image_size, 16)
        layers: list[nn.Module] = []
        before = in_channels
        for after, pooled in ((64, True), (192, True), (384, False), (256, False), (256, True)):
            layers.append(nn.Conv2d(before, after, 3, stride=1 if layers else 2, padding=1))
            layers += relu_and_pool() if pooled else [nn.ReLU()]
            before = after
        side = (image_size + 1) // 2 // 8
        layers += [nn.Flatten(), nn.Dropout(), nn.Linear(256 * side**2, 4096), nn.ReLU()]
        layers += [nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), 4096, num_classes)


class ShuffleUnit(nn.Module):
    """A unit of ShuffleNetV2 (Ma et al., ECCV 2018): half of the channels stay, the other half is convolved.

    The two halves are then shuffled. With stride 2 both are made from the whole input, each by convolutions of its own.

    Args:
        inputs: channels of the input (B, inputs, H, W).
        outputs: channels of the output.
        stride: 1, with as many outputs as inputs, or 2.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, own = outputs // 2, inputs if stride == 2 else inputs // 2
        self.kept = nn.Sequential(*_depthwise(own, stride), *_pointwise(own, half)) if stride == 2 else None
        self.convolved = nn.Sequential(*_pointwise(own, own), *_depthwise(own, stride), *_pointwise(own, half))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, H / stride, W / stride)."""
        kept, part = x.chunk(2, dim=1) if self.kept is None else (self.kept(x), x)
        # (a1, a2, b1, b2) -> (a1, b1, a2, b2): the halves alternate
        return torch.stack([kept, self.convolved(part)], dim=2).flatten(1, 2)


class ShuffleNetV2(FeatureClassifier):
    """ShuffleNetV2 of width 1 for small images: the first convolution keeps their size, and there is no pooling.

    24 channels, stages of 4, 8 and 4 units with 116, 232 and 464 channels, 1024 channels, their means.

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
    """

    def __init__(self, in_channels: int = 3, num_classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Conv2d(in_channels, 24, 3, padding=1), nn.BatchNorm2d(24)]
        before = 24
        for after, units in ((116, 4), (232, 8), (464, 4)):
            layers.append(ShuffleUnit(before, after, 2))
            layers += [ShuffleUnit(after, after, 1) for _ in range(units - 1)]
            before = after
        layers += [*_pointwise(before, 1024), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers), 1024, num_classes)


def _pointwise(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU()]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels), nn.BatchNorm2d(channels)]
