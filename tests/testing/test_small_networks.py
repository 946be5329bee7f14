"""The networks of the battery: their stages are the network, and a whole slim pass is the last stage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.testing.small_networks import CLASSES, FEATURES, MLP, Convolutional, Deep


@pytest.mark.parametrize(
    "network", [MLP(), Deep(), Convolutional(), Convolutional(2, 3)], ids=["mlp", "deep", "conv", "pooled"]
)
def test_stages_make_up_the_network_and_are_slimmed(network: nn.Module) -> None:
    x = torch.randn(5, FEATURES)
    before, after, logits = network.stages(x)  # type: ignore[operator]
    torch.testing.assert_close(logits, network(x))
    assert logits.shape == (5, CLASSES)
    part, whole = network.slim(before, 1.0)  # type: ignore[operator]
    torch.testing.assert_close(whole, after)
    torch.testing.assert_close(part, before)
    _, half = network.slim(before, 0.5)  # type: ignore[operator]
    assert 0 < half.shape[1] < after.shape[1]


def test_a_deep_network_has_a_layer_more() -> None:
    network, x = Deep(), torch.randn(2, FEATURES)
    wanted = torch.tanh(network.hidden(torch.tanh(network.first(x))))
    torch.testing.assert_close(network.features(x), wanted)
