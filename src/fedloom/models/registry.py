"""Networks by name: what each is and how large, for command lines and recipes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    UNet,
)
from fedloom.models.resnet import ResNet10, ResNet18, ResNet56
from fedloom.models.sequences import CategoryMLP, CausalTransformer, TextCNN, TextLSTM
from fedloom.models.torchvision_networks import PREFIX, named, torchvision_network
from fedloom.models.wide_resnet import WideResNet
from fedloom.wording import arguments

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


Make = Callable[..., FeatureClassifier]


@dataclass(frozen=True)
class Reads:
    """Facts of examples beside their shape that decide on the network.

    Attributes:
        tokens: how many token ids there are, padding among them; 0 where examples are no tokens.
        next_token: whether the targets are, at each place, the token that follows.
        categories: how many ids each of the last columns has, where these are ids of categories.
        words: how many columns of 0 and 1 each column of words of a prepared table has become, the last of an example.
    """

    tokens: int = 0
    next_token: bool = False
    categories: tuple[int, ...] = ()
    words: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.tokens:
            return "token ids"
        return "numbers beside ids of categories" if self.categories else "numbers"


@dataclass(frozen=True)
class Network:
    """Network that has a name."""

    name: str
    make: Make
    """Maker for the shape of one example, without the batch axis, and a number of classes; one that reads tokens or
    categories gets `reads` and its settings too."""
    what: str
    """Its description, and its paper. Markdown."""
    parameters: int
    """Number of its parameters for `shape` and `num_classes`."""
    shape: Shape = (3, 32, 32)
    num_classes: int = 10
    reads: Reads = Reads()
    """Vocabulary, length and the like, for which it is made; `parameters` are those of this."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that may stand behind its name, `NAME?hidden=128`, with their defaults."""

    @property
    def inputs(self) -> str:
        """Its inputs and outputs in words, those that `parameters` are for."""
        r, outputs = self.reads, f"{self.num_classes} classes"
        if r.tokens:
            outputs = "the next one" if r.next_token else outputs
            return f"{self.shape[0]} of {r.tokens} token ids, {outputs}"
        if r.categories:
            numbers = self.shape[0] - len(r.categories)
            return f"{numbers} numbers, categories of {' and '.join(map(str, r.categories))}, {outputs}"
        return f"{' x '.join(map(str, self.shape))}, {outputs}"


def _flat(make: Callable[..., FeatureClassifier]) -> Make:
    """Return a maker of networks that take examples of any shape as vectors."""
    return lambda shape, num_classes: make(math.prod(shape), num_classes)


def _square(make: Callable[..., FeatureClassifier], *widths: Any, **more: Any) -> Make:
    """Return a maker of networks that take square images of one size."""
    return lambda shape, num_classes: make(*widths, *_channels_and_size(shape), num_classes, **more)


def _images(make: Callable[..., FeatureClassifier], *widths: Any, **more: Any) -> Make:
    """Return a maker of networks that take images of any size."""
    return lambda shape, num_classes: make(*widths, _channels(shape), num_classes, **more)


def _cosine(make: Make) -> Make:
    return lambda shape, num_classes: with_cosines(make(shape, num_classes))


def _coloured(make: Make) -> Make:
    """Return a maker of networks for three channels, which repeat grey images on them."""

    def made(shape: Shape, num_classes: int) -> FeatureClassifier:
        grey = _channels(shape) == 1
        network = make((3, *shape[1:]) if grey else shape, num_classes)
        return for_grey(network) if grey else network

    return made


def _settings(kind: type, *others: str) -> dict[str, Any]:
    """Return what may be set of a network by words: its keyword arguments that are one value, but for `others`."""
    own = inspect.signature(kind).parameters.values()
    found = {p.name: p.default for p in own if p.kind is p.KEYWORD_ONLY and p.name not in others}
    return {name: value for name, value in found.items() if not isinstance(value, tuple)}


def _tokens(kind: Callable[..., FeatureClassifier], predicts: bool = True) -> Make:
    """Return a maker of networks of token ids; `predicts`: they can say which token follows."""

    def made(shape: Shape, num_classes: int, reads: Reads, **settings: Any) -> FeatureClassifier:
        if len(shape) != 1:
            raise ValueError(f"a text is a row of token ids, got examples of shape {shape}: pad each text to one row")
        if reads.next_token and not predicts:
            raise ValueError(
                "a text CNN sees what follows and says of which class a text is, got targets that are the next token: "
                "use 'lstm' or 'transformer'"
            )
        settings |= {"length": shape[0]} if kind is CausalTransformer else {}
        return kind(reads.tokens, num_classes, **settings, **({"next_token": reads.next_token} if predicts else {}))

    return made


def _categories(shape: Shape, num_classes: int, reads: Reads, **settings: Any) -> FeatureClassifier:
    sizes = reads.categories or reads.words
    numbers = math.prod(shape) - (len(sizes) if reads.categories else sum(sizes))
    return CategoryMLP(numbers, sizes, num_classes, one_hot=not reads.categories, **settings)


def _pixels(shape: Shape, num_classes: int, **settings: Any) -> FeatureClassifier:
    return UNet(_channels(shape), num_classes, **settings)


_GREY = (1, 28, 28)
MODELS: dict[str, Network] = {
    network.name: network
    for network in (
        Network("logistic", _flat(LogisticRegression), "multinomial logistic regression", 7_850, _GREY),
        Network(
            "svm", lambda shape, num_classes: LinearSVM(math.prod(shape)),
            "one logit, zero at first, for the tasks `svm`, `svm_mean` and `hinge`", 101, (100,), 2,
        ),
        Network("mlp", _flat(MLP), "one hidden layer of 200 units", 159_010, _GREY),
        Network("lenet", _square(LeNet), "LeNet-5 with ReLU (pFedSD on CIFAR-10, KT-pFL)", 62_006),
        Network("fedntd_cnn", _square(FedNTDCNN), "the CNN of FedNTD, after McMahan et al. (2017)", 2_156_490),
        Network(
            "pfedsd_fmnist_cnn", _square(PFedSDFashionCNN), "pFedSD's CNN for Fashion-MNIST, with dropout", 244_234,
            _GREY,
        ),
        Network(
            "pfedsd_cifar100_cnn", _square(PFedSDCifar100CNN), "pFedSD's CNN for CIFAR-100, with dropout", 1_075_044,
            num_classes=100,
        ),
        Network("apfl_cnn", _square(APFLCNN), "APFL's CNN, convolutions without padding", 1_034_380, (1, 32, 32)),
        Network(
            "apfl_cnn_same", _square(APFLCNN, padding=2), "APFL's CNN, convolutions with padding", 2_594_380,
            (1, 32, 32),
        ),
        Network("small_bn", _images(SmallConvNet, norm="batch"), "two convolutions with BatchNorm", 5_466),
        Network("small_gn", _images(SmallConvNet, norm="group"), "two convolutions with GroupNorm", 5_466),
        Network(
            "resnet10", _images(ResNet10),
            "FedNTD's ResNet-10; its BatchNorm keeps no running statistics and takes those of the batch in evaluation "
            "too",
            4_903_242,
        ),
        Network("resnet18", _images(ResNet18), "ResNet-18 (He et al., 2016) for small images", 11_173_962),
        Network("resnet18_gn", _images(ResNet18, norm="group"), "`resnet18` with GroupNorm", 11_173_962),
        Network("resnet56", _images(ResNet56), "the ResNet-56 of FedAlign and FedML", 591_322),
        Network(
            "hypersphere_cnn", _square(HypersphereCNN), "`fedntd_cnn` with two features on the unit circle (FedNTD)",
            61_920,
        ),
        Network("dense_cnn_mnist", _square(DenseMnistCNN), "DENSE's CNN for MNIST, with BatchNorm", 29_034, _GREY),
        Network(
            "dense_cnn_mnist_deep", _square(DenseMnistCNN, further=6),
            "`dense_cnn_mnist` with six more convolutions, each with BatchNorm (ours)", 84_906, _GREY,
        ),
        Network("dense_cnn1", _square(DenseCNN, (32, 64, 64), 64), "DENSE's CNN1", 122_570),
        Network("dense_cnn2", _square(DenseCNN, (128, 128, 128), 0), "DENSE's CNN2, for CIFAR-10 and SVHN", 319_242),
        Network(
            "dense_cnn_cifar100", _square(DenseCNN, (256, 256, 128), 0), "DENSE's CNN for CIFAR-100", 1_097_188,
            num_classes=100,
        ),
        Network("wrn16_1", _images(WideResNet, 16, 1), "DENSE's WRN-16-1", 175_066),
        Network("wrn40_1", _images(WideResNet, 40, 1), "DENSE's WRN-40-1", 563_930),
        Network(
            "ktpfl_lenet", _coloured(_square(LeNet)),
            "KT-pFL's `lenet`, which as its three others repeats grey images over three channels", 44_726, _GREY,
        ),
        Network("ktpfl_alexnet", _coloured(_square(AlexNet)), "KT-pFL's AlexNet", 20_126_538, _GREY),
        Network("ktpfl_resnet18", _coloured(_images(ResNet18)), "KT-pFL's `resnet18`", 11_173_962, _GREY),
        Network("ktpfl_shufflenet", _coloured(_images(ShuffleNetV2)), "KT-pFL's ShuffleNetV2", 1_268_646, _GREY),
        Network(
            "dense_cnn_mnist_cosine", _cosine(_square(DenseMnistCNN)),
            "`dense_cnn_mnist` whose logits are scaled cosines, as the task `ldam` wants them", 29_024, _GREY,
        ),
        Network(
            "dense_cnn2_cosine", _cosine(_square(DenseCNN, (128, 128, 128), 0)), "the same of `dense_cnn2`", 319_232
        ),
        Network("resnet18_cosine", _cosine(_images(ResNet18)), "the same of `resnet18`", 11_173_952),
        Network(
            "unet", _pixels, "a small U-Net (Ronneberger et al., 2015) with GroupNorm: logits at each pixel, for the "
            "task `segmentation`", 117_226, _GREY, settings=_settings(UNet),
        ),
        Network(
            "lstm", _tokens(TextLSTM), "embeddings and two LSTM layers of 256 units, as McMahan et al. (2017) and LEAF",
            822_570, (80,), 90, Reads(90, True), _settings(TextLSTM, "next_token"),
        ),
        Network(
            "transformer", _tokens(CausalTransformer),
            "a causal transformer (Vaswani et al., 2017): pre-norm, 2 layers of width 64 with 4 heads", 116_826, (80,),
            90, Reads(90, True), _settings(CausalTransformer, "next_token", "length"),
        ),
        Network(
            "text_cnn", _tokens(TextCNN, predicts=False),
            "the text CNN of Kim (2014): windows of 3, 4 and 5 words, 100 maps each, dropout of one half", 3_360_902,
            (60,), 2, Reads(10_000), _settings(TextCNN),
        ),
        Network(
            "category_mlp", _categories,
            "one hidden layer of 200 units over numbers and embeddings of categories (Guo and Berkhahn, 2016)", 6_562,
            (8,), 2, Reads(categories=(10, 50)), _settings(CategoryMLP, "one_hot"),
        ),
    )
}  # fmt: skip
"""All networks, in the order of lists of them."""


def build(name: str, shape: Shape, num_classes: int, reads: Reads = Reads()) -> nn.Module:
    """Return a new network, initialised from PyTorch's global generator.

    Args:
        name: a key of `MODELS`, or `torchvision:NAME`; its settings may follow, as in `lstm?hidden=128&layers=1`.
        shape: shape of one example, without the batch axis.
        num_classes: C.
        reads: what examples are beside that.

    Raises:
        ValueError: the name or a setting is unknown, or the network does not take such examples.
    """
    bare, question, written = name.partition("?")
    if bare.startswith(PREFIX):
        if reads.tokens or reads.categories:
            raise ValueError(f"{bare} takes images, got {reads}: networks of these are {_those(reads)}")
        return torchvision_network(named(name), _channels(shape), num_classes)
    if bare not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}: choose one, or pass a module")
    network = MODELS[bare]
    categories = bool(reads.categories or (network.reads.categories and reads.words))
    if (bool(network.reads.tokens), bool(network.reads.categories)) != (bool(reads.tokens), categories):
        hint = "columns of words of a table are categories with prepare=standard or prepare=federated; "
        raise ValueError(
            f"{bare} reads {network.reads}, got {reads}: {hint * bool(network.reads.categories)}networks of these are "
            f"{_those(reads)}"
        )
    given = _given(network, written) if question else {}
    return network.make(shape, num_classes, *([] if network.reads == Reads() else [reads]), **given)


def _those(reads: Reads) -> str:
    """Return the names of the networks that read such examples."""
    return ", ".join(name for name, one in MODELS.items() if str(one.reads) == str(reads))


def _given(network: Network, written: str) -> dict[str, Any]:
    """Return the settings that are written behind a name, NAME=VALUE joined by &."""
    known = network.settings
    form = f"{network.name}?{'&'.join(f'{name}={value}' for name, value in known.items())}"
    return arguments(network.name, written, {name: type(value) for name, value in known.items()}, form)
