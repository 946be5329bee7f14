"""Networks of the papers that fedloom implements, and small ones; all with PyTorch's default initialisation.

Each is a `body` that makes the features z, then a linear `classifier` that makes the logits. Methods that compare
features (MOON) or keep the classifier on the client (FedPer) find both by these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Literal["batch", "group", "none"]


class FeatureClassifier(nn.Module):
    """A network in two parts: `forward(x) = classifier(features(x))`.

    Args:
        body: makes features (B, F) of inputs (B, ...).
        feature_size: F.
        num_classes: C; the classifier makes logits (B, C).
    """

    def __init__(self, body: nn.Module, feature_size: int, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.classifier = nn.Linear(feature_size, num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the classifier, (B, F)."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (B, C)."""
        logits: Tensor = self.classifier(self.features(x))
        return logits


class LogisticRegression(FeatureClassifier):
    """Multinomial logistic regression; the features are the flattened input.

    Args:
        in_features: number of values of one example, over all its axes.
        num_classes: C.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(nn.Flatten(), in_features, num_classes)


class LinearSVM(FeatureClassifier):
    """One logit, linear in the flattened input, which begins at zero: for the tasks `svm` and `hinge`.

    Args:
        in_features: number of values of one example, over all its axes.
    """

    def __init__(self, in_features: int) -> None:
        super().__init__(nn.Flatten(), in_features, 1)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)


class MLP(FeatureClassifier):
    """Fully connected layers with ReLU, by default one of 200 units (McMahan et al., 2017, have two of them).

    Args:
        in_features: number of values of one example, over all its axes.
        num_classes: C.
        hidden: widths of the hidden layers; the last one is the feature size.

    Raises:
        ValueError: there is no hidden layer.
    """

    def __init__(self, in_features: int, num_classes: int, hidden: Sequence[int] = (200,)) -> None:
        if not hidden:
            raise ValueError(f"hidden needs at least one width, got {tuple(hidden)}: use LogisticRegression instead")
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise((in_features, *hidden)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), hidden[-1], num_classes)


def convolutions(inputs: int, first: int, second: int, padding: int = 0, norm: bool = False) -> list[nn.Module]:
    """Return convolutions 5x5 to `first` and `second` channels, each followed by ReLU and max-pooling 2; then flat.

    `norm`: BatchNorm after each convolution.
    """
    layers: list[nn.Module] = []
    for before, after in ((inputs, first), (first, second)):
        between = [nn.BatchNorm2d(after)] if norm else []
        layers += [nn.Conv2d(before, after, 5, padding=padding), *between, *relu_and_pool()]
    return [*layers, nn.Flatten()]


def relu_and_pool() -> list[nn.Module]:
    """Return ReLU and max-pooling 2, in the order that rectifies a quarter of the values: the same bits, gradients too.

    The greatest of four is positive where any is, and then it is what ReLU leaves greatest; where none is, both orders
    give 0 and no gradient.
    """
    return [nn.MaxPool2d(2), nn.ReLU()]


def check_size(network: nn.Module, image_size: int, least: int) -> None:
    """Raise ValueError where images are too small for a network."""
    if image_size < least:
        name = type(network).__name__
        raise ValueError(f"{name} needs images of at least {least} pixels, got {image_size}: enlarge them")


def _side(image_size: int, padding: int = 0) -> int:
    """Return the height and width in pixels after `convolutions`."""
    less = 4 - 2 * padding
    return ((image_size - less) // 2 - less) // 2


class LeNet(FeatureClassifier):
    """LeNet-5 with ReLU and max-pooling, as KT-pFL uses it (Zhang et al., NeurIPS 2021).

    Convolutions 5x5 without padding to 6 and 16 channels, each followed by max-pooling 2, then 120, 84 and C units.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 16.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 1, image_size: int = 28, num_classes: int = 10) -> None:
        check_size(self, image_size, 16)
        body = nn.Sequential(
            *convolutions(in_channels, 6, 16),
            nn.Linear(16 * _side(image_size) ** 2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        super().__init__(body, 84, num_classes)


class FedNTDCNN(FeatureClassifier):
    """The CNN of FedNTD's experiments (Lee et al., NeurIPS 2022), after McMahan et al. (2017).

    Convolutions 5x5 with padding 2 to 32 and 64 channels, each followed by ReLU and max-pooling 2, then 512 and C
    units.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 4.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 10) -> None:
        check_size(self, image_size, 4)
        body = nn.Sequential(
            *convolutions(in_channels, 32, 64, padding=2),
            nn.Linear(64 * (image_size // 4) ** 2, 512),
            nn.ReLU(),
        )
        super().__init__(body, 512, num_classes)


class APFLCNN(FeatureClassifier):
    """The CNN of APFL's experiments (Ni, Shen, Zhang, 2022).

    Convolutions 5x5 to 20 and 50 channels, each followed by ReLU and max-pooling 2, then 800 and C units. The paper
    says nothing of padding; 2 keeps the size.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 16.
        num_classes: C.
        padding: of the convolutions.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 1, image_size: int = 32, num_classes: int = 10, padding: int = 0) -> None:
        check_size(self, image_size, 16)
        side = _side(image_size, padding)
        body = nn.Sequential(
            *convolutions(in_channels, 20, 50, padding=padding), nn.Linear(50 * side**2, 800), nn.ReLU()
        )
        super().__init__(body, 800, num_classes)


class PFedSDFashionCNN(FeatureClassifier):
    """The CNN of pFedSD's experiments on Fashion-MNIST (Jin et al., IEEE TPDS 2023), as in its authors' code.

    Convolutions 5x5 without padding to 64 and 64 channels, each followed by max-pooling 2 and ReLU, the second one by
    Dropout2d before them; then 128, 64 and C units.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 16.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 1, image_size: int = 28, num_classes: int = 10) -> None:
        check_size(self, image_size, 16)
        first, relu, pool, second, *rest = convolutions(in_channels, 64, 64)
        body = nn.Sequential(
            *(first, relu, pool, second, nn.Dropout2d(0.5), *rest),
            nn.Linear(64 * _side(image_size) ** 2, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
        )
        super().__init__(body, 64, num_classes)


class PFedSDCifar100CNN(FeatureClassifier):
    """The CNN of pFedSD's experiments on CIFAR-100 (Jin et al., IEEE TPDS 2023), as in its authors' code.

    Convolutions 5x5 without padding to 64 and 128 channels, each followed by ReLU and max-pooling 2, then 256 and 128
    units, dropout of 0.6, and C units. Their CNN for CIFAR-10 is `LeNet`.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 16.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 3, image_size: int = 32, num_classes: int = 100) -> None:
        check_size(self, image_size, 16)
        body = nn.Sequential(
            *convolutions(in_channels, 64, 128),
            nn.Linear(128 * _side(image_size) ** 2, 256),
            nn.ReLU(),
            nn.Linear(256, 128),
            nn.ReLU(),
            nn.Dropout(0.6),
        )
        super().__init__(body, 128, num_classes)


class SmallConvNet(FeatureClassifier):
    """A small network to study normalisation layers with: two stages, global average, classifier.

    A stage is a 3x3 convolution (16, then 32 channels), normalisation, ReLU and max-pooling 2. Images may have any
    size from 4 pixels. The features are the 32 channel means.

    Args:
        in_channels: channels of the images (B, in_channels, H, W).
        num_classes: C.
        norm: "batch" for BatchNorm with running statistics, "group" for GroupNorm with 4 groups, or "none".
        dropout: probability with which features are zeroed in training, in [0, 1).

    Raises:
        ValueError: `norm` is unknown, or `dropout` is out of range.
    """

    def __init__(self, in_channels: int = 1, num_classes: int = 10, norm: Norm = "batch", dropout: float = 0.0) -> None:
        if norm not in ("batch", "group", "none"):
            raise ValueError(f"norm must be 'batch', 'group' or 'none', got {norm!r}: choose one of these")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}: 0 turns it off")
        layers: list[nn.Module] = []
        for inputs, outputs in ((in_channels, 16), (16, 32)):
            # BatchNorm subtracts a bias again, and both norms bring their own.
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none"))
            if norm == "batch":
                layers.append(nn.BatchNorm2d(outputs))
            elif norm == "group":
                layers.append(nn.GroupNorm(4, outputs))
            layers += relu_and_pool()
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        super().__init__(nn.Sequential(*layers), 32, num_classes)


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
        check_size(self, image_size, 4)
        body = nn.Sequential(
            *convolutions(in_channels, 32, 64, padding=2),
            nn.Linear(64 * (image_size // 4) ** 2, 2),
            UnitCircle(),
        )
        super().__init__(body, 2, num_classes)


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
        if width < 4 or width % 4 or depth < 1:
            raise ValueError(
                "a U-Net has a width that is a multiple of 4, its groups of normalisation, and a depth of at "
                f"least 1, got width={width} and depth={depth}: 16 and 2 are the defaults"
            )
        super().__init__(_UNetBody(in_channels, width, depth), width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each pixel, (B, C, H, W)."""
        return super().forward(x).movedim(-1, 1)


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before in (inputs, outputs):
        layers += [nn.Conv2d(before, outputs, 3, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers)
