"""Wide residual networks: a forward pass by hand, their beginning, their depth."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.models import WideResNet
from fedloom.models.wide_resnet import PreActivation


def by_hand(network: WideResNet, x: Tensor) -> Tensor:
    """Logits, layer by layer, from tensors alone."""
    t = dict(network.named_parameters())

    def normed(x: Tensor, name: str) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, t[f"{name}.weight"], t[f"{name}.bias"], training=True))

    x, strides = F.conv2d(x, t["body.0.weight"], padding=1), {2: 2, 3: 2}
    for i in (1, 2, 3):  # WRN-10: one block for each stage
        stride, at = strides.get(i, 1), f"body.{i}"
        before = normed(x, f"{at}.norm1")
        z = F.conv2d(before, t[f"{at}.conv1.weight"], stride=stride, padding=1)
        z = F.conv2d(normed(z, f"{at}.norm2"), t[f"{at}.conv2.weight"], padding=1)
        # only where the width changes does the other branch see what is normalised
        x = z + (F.conv2d(before, t[f"{at}.shortcut.weight"], stride=stride) if f"{at}.shortcut.weight" in t else x)
    return F.linear(normed(x, "body.4").mean((2, 3)), t["classifier.weight"], t["classifier.bias"])


@pytest.mark.parametrize("width", [1, 2])
def test_blocks(width: int) -> None:
    torch.manual_seed(0)
    network = WideResNet(10, width, 2, 3).train()
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    x = torch.randn(5, 2, 9, 7)
    torch.testing.assert_close(network(x), by_hand(network, x))
    blocks = [m for m in network.body if isinstance(m, PreActivation)]
    assert [b.shortcut is not None for b in blocks] == [width > 1, True, True]


def test_convolutions_begin_with_the_variance_of_their_fan_out() -> None:
    torch.manual_seed(0)
    for layer in WideResNet(16, 1).modules():
        if isinstance(layer, nn.Conv2d):
            wanted = (2 / (layer.kernel_size[0] ** 2 * layer.out_channels)) ** 0.5
            assert float(layer.weight.detach().std()) == pytest.approx(
                wanted, rel=4 / (2 * layer.weight.numel()) ** 0.5
            )


@pytest.mark.parametrize("depth", [4, 13, 18])
def test_depths_that_there_are_not(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"6 n \+ 4 layers deep, got {depth}: 10, 16"):
        WideResNet(depth)
