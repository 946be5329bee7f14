"""The small convolutional networks of DENSE's experiments (Zhang et al., NeurIPS 2022), as in its authors' code."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedloom.models.networks import FeatureClassifier, check_size, convolutions, relu_and_pool


class DenseMnistCNN(FeatureClassifier):
    """DENSE's CNN for MNIST and Fashion-MNIST, the only one of its CNNs with BatchNorm.

    Convolutions 5x5 with padding 2 to 16 and 32 channels, each followed by BatchNorm, ReLU and max-pooling 2; then C
    units.

    Args:
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 4.
        num_classes: C.
        further: convolutions 3x3 with padding 1 that follow, 32 channels each, with BatchNorm and ReLU; ours.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(self, in_channels: int = 1, image_size: int = 28, num_classes: int = 10, *, further: int = 0) -> None:
        check_size(self, image_size, 4)
        *layers, flat = convolutions(in_channels, 16, 32, padding=2, norm=True)
        for _ in range(further):
            layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        super().__init__(nn.Sequential(*layers, flat), 32 * (image_size // 4) ** 2, num_classes)


class DenseCNN(FeatureClassifier):
    """DENSE's CNNs for 32 x 32 colours: three convolutions 3x3 without padding, without BatchNorm.

    Each is followed by ReLU, the first two by max-pooling 2; then perhaps a hidden layer, and C units. For CIFAR-10
    and SVHN the widths are 128, 128 and 128 (the authors' CNN2), for CIFAR-100 256, 256 and 128; among other
    architectures 32, 64 and 64 with a hidden layer of 64 (their CNN1).

    Args:
        widths: channels of the three convolutions.
        hidden: units of the hidden layer; 0: none.
        in_channels: channels of the images (B, in_channels, image_size, image_size).
        image_size: height and width in pixels, at least 18.
        num_classes: C.

    Raises:
        ValueError: the images are too small.
    """

    def __init__(
        self,
        widths: Sequence[int] = (128, 128, 128),
        hidden: int = 0,
        in_channels: int = 3,
        image_size: int = 32,
        num_classes: int = 10,
    ) -> None:
        check_size(self, image_size, 18)
        first, second, third = widths
        layers: list[nn.Module] = [
            *(nn.Conv2d(in_channels, first, 3), *relu_and_pool()),
            *(nn.Conv2d(first, second, 3), *relu_and_pool()),
            *(nn.Conv2d(second, third, 3), nn.ReLU(), nn.Flatten()),
        ]
        features = third * (((image_size - 2) // 2 - 2) // 2 - 2) ** 2
        if hidden:
            layers += [nn.Linear(features, hidden), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), hidden or features, num_classes)
