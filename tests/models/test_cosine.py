"""The head whose logits are scaled cosines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedloom.core.model import Model
from fedloom.models import CosineHead, DenseCNN, build, with_cosines


def test_logits_are_scaled_cosines() -> None:
    torch.manual_seed(0)
    head, x = CosineHead(3, 4, s=7.0), torch.randn(5, 3)
    wanted = torch.nn.functional.cosine_similarity(x[:, None], head.weight[None], dim=-1)
    torch.testing.assert_close(head(x), 7 * wanted)
    torch.testing.assert_close(head(3 * x), head(x))
    assert head.bias is None
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(4))


def test_features_of_zero_have_a_gradient() -> None:
    head, x = CosineHead(3, 4), torch.zeros(2, 3, requires_grad=True)
    head(x).sum().backward()
    assert torch.equal(head(x), torch.zeros(2, 4))
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_an_ensemble_of_scaled_logits_is_as_sure_as_its_members() -> None:
    """The mean of bare cosines is nearly flat under softmax, so the scale is the network's."""
    features = torch.eye(10)

    def said(s: float) -> Tensor:
        heads = [CosineHead(10, 10, s) for _ in range(3)]
        for head in heads:
            head.weight.data = torch.eye(10)
        return torch.stack([h(features) for h in heads]).mean(0).softmax(-1).diagonal()

    assert float(said(30.0).min().detach()) > 0.99
    assert float(said(1.0).max().detach()) < 0.25


@pytest.mark.parametrize("name", ["dense_cnn_mnist", "dense_cnn2", "resnet18"])
def test_networks_with_cosines_by_name(name: str) -> None:
    torch.manual_seed(0)
    plain = build(name, (1, 28, 28), 10)
    made = build(f"{name}_cosine", (1, 28, 28), 10).eval()
    assert type(made) is type(plain)
    assert isinstance(made.classifier, CosineHead)
    assert made(torch.randn(3, 1, 28, 28)).abs().max() <= 30.0
    assert sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in made.parameters()) == 10  # no bias


def test_a_network_gets_the_head_in_the_place_of_its_own() -> None:
    model = Model(lambda: with_cosines(DenseCNN((2, 3, 4), 5, 1, 18, 6), s=10.0))
    weights = model.init(0)
    assert list(weights.params)[-1] == "classifier.weight"
    assert weights.params["classifier.weight"].shape == (6, 5)
    assert model.features(weights, torch.zeros(2, 1, 18, 18)).shape == (2, 5)
    with pytest.raises(ValueError, match=r"scale s of cosines must be > 0, got 0: LDAM's is 30"):
        CosineHead(3, 4, s=0)
