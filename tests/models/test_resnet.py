"""Residual networks: the papers' sizes, PyTorch's own blocks as a reference, and the slim last stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.batch import Batch
from fedloom.core.model import Model
from fedloom.models import ResNet, ResNet10, ResNet18, ResNet56, build
from fedloom.models.resnet import Residual, narrowed

TINY = [[[(3, 16, 1), (3, 16, 1)]], [[(1, 8, 1), (3, 8, 2), (1, 32, 1)], [(1, 8, 1), (3, 8, 1), (1, 32, 1)]]]


@pytest.mark.parametrize(
    ("make", "parameters", "state_bytes"),
    [
        (lambda: ResNet10(), 4_903_242, 19_612_968),  # FedNTD: no running statistics, so parameters are all there is
        (lambda: ResNet10(num_classes=100), 4_903_242 + 90 * 513, None),
        (lambda: ResNet18(), 11_173_962, None),
        (lambda: ResNet18(norm="group"), 11_173_962, 4 * 11_173_962),
        (lambda: ResNet56(), 591_322, None),  # FedAlign
    ],
)
def test_sizes_of_the_papers(make: Callable[[], nn.Module], parameters: int, state_bytes: int | None) -> None:
    network = make()
    assert sum(p.numel() for p in network.parameters()) == parameters
    if state_bytes is not None:
        assert sum(t.numel() * t.element_size() for t in network.state_dict().values()) == state_bytes


@pytest.mark.parametrize(("kind", "layers"), [(ResNet10, 10), (ResNet18, 18), (ResNet56, 56)])
def test_depth_is_in_the_name(kind: Any, layers: int) -> None:
    weighted = [m for n, m in kind().named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "projection" not in n]
    assert len(weighted) == layers


@pytest.mark.parametrize(("kind", "before", "after"), [(ResNet10, (256, 8), (512, 4)), (ResNet56, (128, 16), (256, 8))])
def test_maps_of_a_cifar_image(kind: Any, before: tuple[int, int], after: tuple[int, int]) -> None:
    network = kind().eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        t2, t3, logits = network.stages(x)
        assert (t2.shape, t3.shape) == ((2, before[0], *[before[1]] * 2), (2, after[0], *[after[1]] * 2))
        torch.testing.assert_close(network(x), logits)
        torch.testing.assert_close(network.features(x), F.avg_pool2d(t3, after[1]).flatten(1))
        s2, s3 = network.slim(t2, 0.25)
        assert torch.equal(s2, t2[:, : before[0] // 4])
        assert s3.shape == (2, after[0] // 4, *[after[1]] * 2)


def by_hand(network: ResNet, x: Tensor) -> Tensor:
    """The tiny network's logits, layer by layer."""
    stem, first, second, *_ = network.body
    x = F.relu(stem[1](stem[0](x)))
    (block,) = first
    a, b = block.convolutions
    x = F.relu(block.norms[1](b(F.relu(block.norms[0](a(x))))) + x)
    for block in second:
        z = x
        for i in range(3):
            z = block.norms[i](block.convolutions[i](z))
            z = F.relu(z) if i < 2 else z
        x = F.relu(z + (x if block.projection is None else block.projection_norm(block.projection(x))))
    return network.classifier(x.mean((2, 3)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", ["batch", "batch_untracked", "group"])
def test_blocks(norm: Any, training: bool) -> None:
    torch.manual_seed(0)
    network = ResNet(TINY, 16, 2, 3, norm).train(training)
    x = torch.randn(5, 2, 9, 7)
    torch.testing.assert_close(network(x), by_hand(network, x))
    stride_two, plain = network.body[2][0], network.body[2][1]
    assert stride_two.projection.stride == (2, 2)
    assert plain.projection is None
    assert network.body[1][0].projection is None
    kinds = {type(m) for m in network.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)}
    assert kinds == {nn.GroupNorm if norm == "group" else nn.BatchNorm2d}
    assert bool(list(network.buffers())) is (norm == "batch")


def test_resnet56_begins_with_he_initialisation_by_fan_out() -> None:
    torch.manual_seed(0)
    convolution = ResNet56().body[3][5].convolutions[1]
    assert float(convolution.weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("norm", ["batch", "batch_untracked", "group"])
def test_slim_equals_a_network_of_the_first_channels(norm: Any) -> None:
    torch.manual_seed(0)
    network = ResNet(TINY, 16, 2, 3, norm).train()
    before = torch.randn(4, 16, 6, 6)
    s2, s3 = network.slim(before, 0.5)
    assert torch.equal(s2, before[:, :8])
    # The same stage built with half the channels throughout, its input included, and the first weights of the other.
    narrow = ResNet([[[(1, 8, 1), (3, 8, 2), (1, 16, 1)], [(1, 8, 1), (3, 8, 1), (1, 16, 1)]]], 8, 2, 3, norm).train()
    last, whole = narrow.body[1], network.body[2].state_dict()
    first = {n: whole[n][tuple(map(slice, t.shape))] for n, t in last.state_dict().items() if t.ndim}
    last.load_state_dict({**last.state_dict(), **first})
    torch.testing.assert_close(s3, last(s2))


def test_slim_moves_no_running_statistics() -> None:
    torch.manual_seed(0)
    network = ResNet(TINY, 16, 2, 3, "batch").train()
    was = {n: b.clone() for n, b in network.named_buffers()}
    network.slim(torch.randn(4, 16, 6, 6), 0.5)
    for name, value in network.named_buffers():
        assert torch.equal(value, was[name]), name


def test_widths_are_multiples_of_eight() -> None:
    assert [narrowed(c, 0.25) for c in (16, 32, 64, 128, 256, 512)] == [8, 8, 16, 32, 64, 128]
    # 16 of 19.2 channels would lose too much
    assert (narrowed(64, 0.3), narrowed(128, 0.15), narrowed(32, 0.85)) == (24, 24, 32)
    assert (narrowed(4, 0.25), narrowed(20, 0.5), narrowed(64, 1.0), narrowed(100, 0.95)) == (4, 16, 64, 96)


def test_a_stride_alone_needs_a_projection() -> None:
    assert Residual(8, [(3, 8, 2)], "group")(torch.rand(2, 8, 6, 6)).shape == (2, 8, 3, 3)
    assert Residual(8, [(3, 8, 1)], "group").projection is None


@pytest.mark.parametrize("norm", ["batch", "batch_untracked", "group"])
def test_padding_changes_no_real_row(norm: Any) -> None:
    model = Model(lambda: ResNet(TINY, 16, 2, 3, norm))
    weights = model.init(0, torch.float64)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 2, 6, 6)))
    wide = torch.cat([x, x[:1].expand(3, -1, -1, -1)])
    y, key = torch.zeros(8, dtype=torch.int64), torch.tensor(3)
    ones = torch.ones(5, dtype=torch.bool)
    ours, moved = model.train(weights, Batch(x=x, y=y[:5], mask=ones, key=key, full=True))
    padded, also = model.train(weights, Batch(x=wide, y=y, mask=torch.arange(8) < 5, key=key))
    np.testing.assert_allclose(padded[:5], ours, rtol=1e-10, atol=1e-12)
    for name, value in moved.items():
        np.testing.assert_allclose(also[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "kind", "norm"),
    [
        ("resnet10", ResNet10, (nn.BatchNorm2d, False)),
        ("resnet18", ResNet18, (nn.BatchNorm2d, True)),
        ("resnet18_gn", ResNet18, (nn.GroupNorm, None)),
        ("resnet56", ResNet56, (nn.BatchNorm2d, True)),
    ],
)
def test_by_name(name: str, kind: type, norm: tuple[type, bool | None]) -> None:
    network = build(name, (1, 8, 12), 7)
    assert type(network) is kind
    found = {(type(m), getattr(m, "track_running_stats", None)) for m in network.modules() if isinstance(m, norm[0])}
    assert found == {norm}
    assert network(torch.randn(2, 1, 8, 12)).shape == (2, 7)


def test_unknown_norms_are_refused() -> None:
    with pytest.raises(ValueError, match="norm must be 'batch', 'batch_untracked' or 'group', got 'layer'"):
        ResNet18(norm="layer")  # type: ignore[arg-type]
