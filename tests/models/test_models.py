"""Networks: parameter counts of the papers, features and logits, and building by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import golden
from torch import nn

from fedloom.models import (
    APFLCNN,
    MLP,
    MODELS,
    AlexNet,
    DenseCNN,
    DenseMnistCNN,
    FeatureClassifier,
    FedNTDCNN,
    HypersphereCNN,
    LeNet,
    LogisticRegression,
    PFedSDCifar100CNN,
    PFedSDFashionCNN,
    Reads,
    ResNet18,
    ShuffleNetV2,
    SmallConvNet,
    WideResNet,
    build,
)
from fedloom.models.ktpfl_networks import ShuffleUnit
from fedloom.models.networks import UnitCircle, relu_and_pool

KTPFL_SIZES = golden("ktpfl_dense/model_sizes.json")


def num_parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.some(15)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_as_many_parameters_as_are_declared(name: str) -> None:
    """The numbers are those of papers, of their authors' code, or counted by hand."""
    declared = MODELS[name]
    with torch.device("meta"):
        network = build(name, declared.shape, declared.num_classes, declared.reads)
    assert num_parameters(network) == declared.parameters


@pytest.mark.some(9)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_a_network_has_a_gradient(name: str) -> None:
    """Where one had none, weight decay would leave it out."""
    declared = MODELS[name]
    network = build(name, declared.shape, declared.num_classes, declared.reads).train()
    x = torch.ones(2, *declared.shape)  # of tokens and categories too
    x = x.long() if declared.reads.tokens else x
    network(x).sum().backward()
    assert [n for n, p in network.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: FedNTDCNN(3, 32, 100), 2_202_660),
        (lambda: FedNTDCNN(1, 28, 10), 1_663_370),
        (lambda: MLP(784, 10, hidden=(200, 200)), 199_210),  # the "2NN" of McMahan et al. (2017)
    ],
)
def test_parameter_counts_of_the_papers(make: Callable[[], nn.Module], expected: int) -> None:
    network = make()
    assert num_parameters(network) == expected


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("KT-pFL LeNet", lambda: LeNet(3, 28, 10)),
        ("KT-pFL LeNet adapted to 32 (fc1 400->120)", lambda: LeNet(3, 32, 10)),
        ("DENSE resnet18 (10 cls)", lambda: ResNet18()),
        ("DENSE resnet18 (100 cls)", lambda: ResNet18(num_classes=100)),
        ("KT-pFL ResNet18 28", lambda: ResNet18()),
        ("KT-pFL ResNet18 32", lambda: ResNet18()),
        ("KT-pFL LeNet", lambda: build("ktpfl_lenet", (1, 28, 28), 10)),
        ("KT-pFL LeNet adapted to 32 (fc1 400->120)", lambda: build("ktpfl_lenet", (3, 32, 32), 10)),
        ("KT-pFL AlexNet", lambda: build("ktpfl_alexnet", (1, 28, 28), 10)),
        ("KT-pFL AlexNet adapted to 32 (fc 1024->4096)", lambda: build("ktpfl_alexnet", (3, 32, 32), 10)),
        ("KT-pFL ResNet18 28", lambda: build("ktpfl_resnet18", (1, 28, 28), 10)),
        ("KT-pFL shufflenetv2 28", lambda: build("ktpfl_shufflenet", (1, 28, 28), 10)),
        ("KT-pFL shufflenetv2 32", lambda: build("ktpfl_shufflenet", (3, 32, 32), 10)),
        ("DENSE CNNMnist (mnist_cnn, fmnist_cnn)", lambda: build("dense_cnn_mnist", (1, 28, 28), 10)),
        ("DENSE CNNCifar = 'CNN2' (cnn, svhn_cnn)", lambda: build("dense_cnn2", (3, 32, 32), 10)),
        ("DENSE CNNCifar2 = 'CNN1' (heter)", lambda: build("dense_cnn1", (3, 32, 32), 10)),
        ("DENSE CNNCifar100", lambda: build("dense_cnn_cifar100", (3, 32, 32), 100)),
        ("DENSE wrn_16_1", lambda: build("wrn16_1", (3, 32, 32), 10)),
        ("DENSE wrn_40_1", lambda: build("wrn40_1", (3, 32, 32), 10)),
    ],
)
def test_networks_have_the_sizes_of_the_code_of_ktpfl_and_dense(name: str, make: Callable[[], nn.Module]) -> None:
    network = make()
    recorded = KTPFL_SIZES[name]
    assert num_parameters(network) == recorded["params"]
    assert len(list(network.parameters())) == recorded["trainable_tensors"]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == recorded["n_bn_layers"]
    assert sum(b.numel() for b in network.buffers() if b.is_floating_point()) == recorded["bn_buffers_float"]
    assert list(network(torch.zeros(2, *recorded["input"])).shape[1:]) == recorded["output"]
    assert sum(t.numel() * t.element_size() for t in network.state_dict().values()) == recorded["state_dict_bytes"]


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("make", "shape", "feature_size"),
    [
        (lambda: LogisticRegression(12, 5), (3, 2, 2), 12),
        (lambda: MLP(12, 5, hidden=(9, 7)), (3, 2, 2), 7),
        (lambda: LeNet(1, 16, 5), (1, 16, 16), 84),
        (lambda: LeNet(3, 29, 5), (3, 29, 29), 84),
        (lambda: FedNTDCNN(1, 13, 5), (1, 13, 13), 512),
        (lambda: HypersphereCNN(1, 13, 5), (1, 13, 13), 2),
        (lambda: APFLCNN(1, 17, 5), (1, 17, 17), 800),
        (lambda: APFLCNN(3, 18, 5, padding=2), (3, 18, 18), 800),
        (lambda: APFLCNN(1, 19, 5, padding=1), (1, 19, 19), 800),
        (lambda: APFLCNN(1, 16, 5, padding=3), (1, 16, 16), 800),
        (lambda: PFedSDFashionCNN(3, 16, 5), (3, 16, 16), 64),
        (lambda: PFedSDCifar100CNN(1, 17, 5), (1, 17, 17), 128),
        (lambda: SmallConvNet(3, 5, "batch"), (3, 9, 11), 32),
        (lambda: SmallConvNet(3, 5, "group"), (3, 4, 4), 32),
        (lambda: SmallConvNet(3, 5, "none"), (3, 8, 8), 32),
        (lambda: DenseMnistCNN(1, 13, 5), (1, 13, 13), 288),
        (lambda: DenseMnistCNN(1, 13, 5, further=2), (1, 13, 13), 288),
        (lambda: DenseCNN((4, 5, 6), 0, 3, 22, 5), (3, 22, 22), 24),
        (lambda: DenseCNN((4, 5, 6), 7, 1, 18, 5), (1, 18, 18), 7),
        (lambda: WideResNet(10, 2, 3, 5), (3, 9, 11), 128),
        (lambda: AlexNet(1, 17, 5), (1, 17, 17), 4096),
        (lambda: ShuffleNetV2(3, 5), (3, 9, 11), 1024),
    ],
)
def test_logits_are_the_classifier_of_the_features(
    make: Callable[[], FeatureClassifier], shape: tuple[int, ...], feature_size: int
) -> None:
    network = make()
    network.eval()
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    z = network.features(x)
    assert z.shape == (2, feature_size)
    assert network(x).shape == (2, 5)
    torch.testing.assert_close(network(x), z @ network.classifier.weight.T + network.classifier.bias)


def test_an_svm_has_one_logit_and_begins_at_zero() -> None:
    svm = build("svm", (1, 5, 4), 2)
    assert svm(torch.ones(3, 1, 5, 4)).tolist() == [[0.0]] * 3
    assert not any(p.any() for p in svm.parameters())


def test_features_of_logistic_regression_are_the_input() -> None:
    x = torch.randn(2, 1, 3, 3)
    torch.testing.assert_close(LogisticRegression(9, 2).features(x), x.flatten(1), rtol=0, atol=0)


@pytest.mark.parametrize(
    "make", [lambda: MLP(4, 2), lambda: LeNet(1, 16, 2), lambda: FedNTDCNN(1, 4, 2), lambda: SmallConvNet(1, 2)]
)
def test_features_are_taken_after_the_relu(make: Callable[[], FeatureClassifier]) -> None:
    network = make()
    shape = {MLP: (4,), LeNet: (1, 16, 16), FedNTDCNN: (1, 4, 4), SmallConvNet: (1, 8, 8)}[type(network)]
    z = network.features(torch.randn(16, *shape, generator=torch.Generator().manual_seed(0)))
    assert (z >= 0).all()
    assert (z > 0).any()


@pytest.mark.parametrize(
    ("norm", "layer", "num_buffers"), [("batch", nn.BatchNorm2d, 6), ("group", nn.GroupNorm, 0), ("none", None, 0)]
)
def test_norm_chooses_the_layers(norm: str, layer: type[nn.Module] | None, num_buffers: int) -> None:
    network = SmallConvNet(1, 10, norm)  # type: ignore[arg-type]
    found = [type(m) for m in network.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]
    assert found == ([] if layer is None else [layer, layer])
    assert len(list(network.buffers())) == num_buffers
    biases = [m.bias is not None for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert biases == [norm == "none"] * 2


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    network = SmallConvNet(1, 10, "group", dropout=0.5)
    x = torch.randn(8, 1, 8, 8)
    expected = network.eval().features(x)
    torch.testing.assert_close(network.features(x), expected, rtol=0, atol=0)
    dropped = network.train().features(x)
    kept = dropped != 0
    assert 0.3 < float(kept[expected != 0].float().mean()) < 0.7
    torch.testing.assert_close(dropped[kept], 2 * expected[kept])


def test_dropout_of_the_networks_of_pfedsd() -> None:
    """Whole channels of the second convolution on Fashion-MNIST, single features on CIFAR-100."""
    torch.manual_seed(0)
    fashion, cifar100 = PFedSDFashionCNN(), PFedSDCifar100CNN()
    x, pooled = torch.rand(16, 1, 28, 28), fashion.body[:-5]  # the body up to its last pooling
    expected, dropped = pooled.eval()(x), pooled.train()(x)
    assert dropped.shape == (16, 64, 4, 4)
    silent = (dropped == 0).all(3).all(2)
    assert 0.4 < float(silent[(expected != 0).any(3).any(2)].float().mean()) < 0.6
    torch.testing.assert_close(dropped[~silent], 2 * expected[~silent])
    x = torch.rand(64, 3, 32, 32)
    expected, dropped = cifar100.eval().features(x), cifar100.train().features(x)
    torch.testing.assert_close(dropped[dropped != 0], expected[dropped != 0] / 0.4)
    assert 0.55 < float((dropped == 0)[expected != 0].float().mean()) < 0.65


@pytest.mark.some(1)
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("ktpfl_")])
def test_networks_of_ktpfl_repeat_grey_images(name: str) -> None:
    """So 28 x 28 images of one and of three equal channels give the same logits, with the same parameters."""
    network = build(name, (1, 28, 28), 10).eval()
    grey = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(grey), network(grey.repeat(1, 3, 1, 1)), rtol=0, atol=0)
    assert num_parameters(network) == num_parameters(build(name, (3, 28, 28), 10))


def test_a_shuffle_unit_keeps_half_of_its_channels_and_lets_them_alternate() -> None:
    unit = ShuffleUnit(6, 6, 1).eval()
    x = torch.rand(2, 6, 4, 5, generator=torch.Generator().manual_seed(0))
    z = unit(x)
    torch.testing.assert_close(z[:, ::2], x[:, :3], rtol=0, atol=0)
    torch.testing.assert_close(z[:, 1::2], unit.convolved(x[:, 3:]), rtol=0, atol=0)
    assert ShuffleUnit(6, 10, 2)(x).shape == (2, 10, 2, 3)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", [name for name, one in MODELS.items() if one.reads == Reads()])
def test_build_by_name(name: str) -> None:
    network = build(name, (3, 18, 18), 7)
    each = {"svm": (1,), "unet": (7, 18, 18)}.get(name, (7,))
    assert network(torch.zeros(2, 3, 18, 18)).shape == (2, *each)


@pytest.mark.parametrize(
    ("name", "norm"), [("small_bn", nn.BatchNorm2d), ("small_gn", nn.GroupNorm), ("resnet18_gn", nn.GroupNorm)]
)
def test_networks_that_differ_in_their_norm_alone(name: str, norm: type[nn.Module]) -> None:
    found = {type(m) for m in build(name, (3, 8, 8), 2).modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)}
    assert found == {norm}


@pytest.mark.parametrize(
    ("make", "pooled"),
    [
        (lambda: DenseMnistCNN(), [(16, 14), (32, 7)]),
        (lambda: DenseCNN(), [(128, 15), (128, 6)]),
        (lambda: DenseCNN((32, 64, 64), 64), [(32, 15), (64, 6)]),
    ],
)
def test_maps_of_the_cnns_of_dense(make: Callable[[], nn.Module], pooled: list[tuple[int, int]]) -> None:
    network = make()
    """Channels and sides behind each pooling; no pooling follows the third convolution."""
    seen: list[tuple[int, int]] = []
    for module in network.modules():
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_hook(lambda layer, args, out: seen.append((out.shape[1], out.shape[3])))
    network(torch.zeros(2, 1, 28, 28) if isinstance(network, DenseMnistCNN) else torch.zeros(2, 3, 32, 32))
    assert seen == pooled


def test_build_takes_feature_vectors_where_it_can() -> None:
    assert build("mlp", (100,), 2)(torch.zeros(3, 100)).shape == (3, 2)
    with pytest.raises(ValueError, match=r"needs images .* got shape \(100,\): use 'mlp' or 'logistic'"):
        build("lenet", (100,), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("fedntd_cnn", (1, 28, 20), 10), r"square images .* got shape \(1, 28, 20\)"),
        (lambda: build("small_bn", (1, 3, 8), 10), r"at least 4 x 4 pixels, got shape \(1, 3, 8\)"),
        (lambda: LeNet(1, 14), "at least 16 pixels, got 14"),
        (lambda: PFedSDFashionCNN(1, 15), "PFedSDFashionCNN needs images of at least 16 pixels, got 15"),
        (lambda: PFedSDCifar100CNN(3, 15), "PFedSDCifar100CNN needs images of at least 16 pixels, got 15"),
        (lambda: FedNTDCNN(1, 3), "at least 4 pixels, got 3"),
        (lambda: DenseMnistCNN(1, 3), "DenseMnistCNN needs images of at least 4 pixels, got 3"),
        (lambda: DenseCNN(image_size=17), "DenseCNN needs images of at least 18 pixels, got 17"),
        (lambda: build("resnet", (1, 28, 28), 10), ", ".join(MODELS) + ", got 'resnet'"),
        (lambda: SmallConvNet(norm="layer"), "got 'layer'"),  # type: ignore[arg-type]
        (lambda: SmallConvNet(dropout=1.0), r"dropout must be in \[0, 1\), got 1\.0"),
        (lambda: MLP(4, 2, hidden=()), "use LogisticRegression"),
    ],
)
def test_shapes_that_networks_refuse(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling() -> None:
    """Ties, windows without a positive value and zeros among the inputs."""
    x = torch.randint(-2, 2, (8, 3, 6, 6), generator=torch.Generator().manual_seed(0)) * 0.7
    x[0] = -1.0
    found = []
    for layers in (relu_and_pool(), relu_and_pool()[::-1]):
        inputs = x.clone().requires_grad_()
        y = nn.Sequential(*layers)(inputs)
        found.append((y, *torch.autograd.grad((y * torch.arange(y.numel()).view_as(y)).sum(), inputs)))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def test_features_of_the_hypersphere_lie_on_the_unit_circle() -> None:
    network, x = HypersphereCNN(1, 8, 3), torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(network.features(x).norm(dim=1), torch.ones(5))
    assert not UnitCircle()(torch.zeros(1, 2)).any()  # zero has no direction
