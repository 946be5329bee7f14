"""Networks by name, for command lines and recipes."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from fedloom.models.cosine import with_cosines
from fedloom.models.dense_cnns import DenseCNN, DenseMnistCNN
from fedloom.models.ktpfl_networks import AlexNet, ShuffleNetV2, for_grey
from fedloom.models.networks import (
    APFLCNN,
    MLP,
    FeatureClassifier,
    FedNTDCNN,
    HypersphereCNN,
    LeNet,
    LinearSVM,
    LogisticRegression,
    PFedSDCifar100CNN,
    PFedSDFashionCNN,
    SmallConvNet,
)
from fedloom.models.resnet import ResNet10, ResNet18, ResNet56
from fedloom.models.wide_resnet import WideResNet

Shape = tuple[int, ...]


def _channels(shape: Shape) -> int:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"a convolutional network needs images (channels, height, width) of at least 4 x 4 pixels, got shape "
            f"{shape}: use 'mlp' or 'logistic'"
        )
    return shape[0]


def _channels_and_size(shape: Shape) -> tuple[int, int]:
    channels = _channels(shape)
    if shape[1] != shape[2]:
        raise ValueError(
            f"this network needs square images (channels, size, size), got shape {shape}: "
            "crop or pad the images, or use a network that takes any size, such as 'small_bn'"
        )
    return channels, shape[1]


Make = Callable[[Shape, int], FeatureClassifier]


def _cosine(make: Make) -> Make:
    return lambda shape, num_classes: with_cosines(make(shape, num_classes))


def _coloured(make: Make) -> Make:
    """Return a maker of networks for three channels, which repeat grey images on them."""

    def made(shape: Shape, num_classes: int) -> FeatureClassifier:
        grey = _channels(shape) == 1
        network = make((3, *shape[1:]) if grey else shape, num_classes)
        return for_grey(network) if grey else network

    return made


MODELS: dict[str, Make] = {
    "logistic": lambda shape, num_classes: LogisticRegression(math.prod(shape), num_classes),
    "svm": lambda shape, num_classes: LinearSVM(math.prod(shape)),
    "mlp": lambda shape, num_classes: MLP(math.prod(shape), num_classes),
    "lenet": lambda shape, num_classes: LeNet(*_channels_and_size(shape), num_classes),
    "fedntd_cnn": lambda shape, num_classes: FedNTDCNN(*_channels_and_size(shape), num_classes),
    "pfedsd_fmnist_cnn": lambda shape, num_classes: PFedSDFashionCNN(*_channels_and_size(shape), num_classes),
    "pfedsd_cifar100_cnn": lambda shape, num_classes: PFedSDCifar100CNN(*_channels_and_size(shape), num_classes),
    "apfl_cnn": lambda shape, num_classes: APFLCNN(*_channels_and_size(shape), num_classes),
    "apfl_cnn_same": lambda shape, num_classes: APFLCNN(*_channels_and_size(shape), num_classes, padding=2),
    "small_bn": lambda shape, num_classes: SmallConvNet(_channels(shape), num_classes, "batch"),
    "small_gn": lambda shape, num_classes: SmallConvNet(_channels(shape), num_classes, "group"),
    "resnet10": lambda shape, num_classes: ResNet10(_channels(shape), num_classes),
    "resnet18": lambda shape, num_classes: ResNet18(_channels(shape), num_classes),
    "resnet18_gn": lambda shape, num_classes: ResNet18(_channels(shape), num_classes, "group"),
    "resnet56": lambda shape, num_classes: ResNet56(_channels(shape), num_classes),
    "hypersphere_cnn": lambda shape, num_classes: HypersphereCNN(*_channels_and_size(shape), num_classes),
    "dense_cnn_mnist": lambda shape, num_classes: DenseMnistCNN(*_channels_and_size(shape), num_classes),
    "dense_cnn1": lambda shape, num_classes: DenseCNN((32, 64, 64), 64, *_channels_and_size(shape), num_classes),
    "dense_cnn2": lambda shape, num_classes: DenseCNN((128, 128, 128), 0, *_channels_and_size(shape), num_classes),
    "dense_cnn_cifar100": lambda shape, num_classes: DenseCNN(
        (256, 256, 128), 0, *_channels_and_size(shape), num_classes
    ),
    "wrn16_1": lambda shape, num_classes: WideResNet(16, 1, _channels(shape), num_classes),
    "wrn40_1": lambda shape, num_classes: WideResNet(40, 1, _channels(shape), num_classes),
}
"""Maps a name to a function of the shape of one example, without the batch axis, and the number of classes."""
MODELS |= {
    "ktpfl_lenet": _coloured(MODELS["lenet"]),
    "ktpfl_alexnet": _coloured(lambda shape, num_classes: AlexNet(*_channels_and_size(shape), num_classes)),
    "ktpfl_resnet18": _coloured(MODELS["resnet18"]),
    "ktpfl_shufflenet": _coloured(lambda shape, num_classes: ShuffleNetV2(_channels(shape), num_classes)),
}
MODELS |= {f"{name}_cosine": _cosine(MODELS[name]) for name in ("dense_cnn_mnist", "dense_cnn2", "resnet18")}


def build(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """Return a new network, initialised from PyTorch's global generator.

    Args:
        name: a key of `MODELS`.
        shape: shape of one example, without the batch axis.
        num_classes: C.

    Raises:
        ValueError: the name is unknown, or the network does not take examples of that shape.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}: choose one, or pass a module")
    return MODELS[name](shape, num_classes)
