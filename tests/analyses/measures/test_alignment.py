"""Which class neurons prefer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import nn

from fedloom import Examples, Model
from fedloom.analyses.measures import alignment, class_activations, dead, preference
from fedloom.models import LeNet, LogisticRegression


def means(activations: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([activations[labels == c].mean(0) for c in np.unique(labels)], axis=1)


def test_alignment_is_that_of_the_reference() -> None:
    g = golden("fedntd/measures")
    one, other = means(g["al_acts1"], g["al_labels"]), means(g["al_acts2"], g["al_labels"])
    assert preference(one).tolist() == g["al_pref1"].tolist()
    assert preference(other).tolist() == g["al_pref2"].tolist()
    found = alignment(one, other)
    assert found.share == pytest.approx(float(g["al_alignment"]), abs=1e-12)
    assert (found.neurons, found.dead) == (12, (1, 0))
    assert np.flatnonzero(dead(one)).tolist() == [11]
    same = g["al_pref1"][:11] == g["al_pref2"][:11]
    assert found.alive == pytest.approx(same.mean(), abs=1e-12)


def test_dead_neurons_and_missing_classes() -> None:
    a = np.array([[0.0, np.nan, 0.0], [0.1, np.nan, 0.2]])
    assert preference(a).tolist() == [0, 2]
    assert dead(a).tolist() == [True, False]
    assert np.isnan(alignment(a[:1], a[:1]).alive)
    assert alignment(a, a).share == 1
    with pytest.raises(ValueError, match="layers of one size"):
        alignment(a, a[:1])


@pytest.mark.parametrize("batch_size", [4, 250])
def test_activations_are_after_the_non_linearity_and_bear_the_layer_before_it(batch_size: int) -> None:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(11, 1, 16, 16, generator=g, dtype=torch.float64), torch.tensor([0, 1, 1, 3] * 2 + [0, 0, 3])
    network = LeNet(1, 16, 4).double()
    model = Model(network, name="lenet")
    found = class_activations(model, model.init(0, torch.float64), Examples(x, y, 4), batch_size)
    assert {n: len(h) for n, h in found.items()} == {"body.0": 6, "body.3": 16, "body.7": 120, "body.9": 84}
    body = network.eval().body
    with torch.no_grad():
        first, last = F.relu(body[0](x)).mean((2, 3)), body(x)
    for name, h in (("body.0", first), ("body.9", last)):
        for c in (0, 1, 3):
            np.testing.assert_allclose(found[name][:, c], h[y == c].mean(0).numpy(), atol=1e-12)
        assert np.isnan(found[name][:, 2]).all()


def test_functional_non_linearities_count_too() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm, self.fc2 = nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(torch.tanh(self.norm(self.fc1(x))))

    model = Model(Functional)
    data = Examples(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2, 2)
    assert {n: h.shape for n, h in class_activations(model, model.init(0), data).items()} == {"norm": (5, 2)}
    plain = Model(lambda: LogisticRegression(3, 2), name="logistic")
    with pytest.raises(ValueError, match=r"logistic has no non-linearity that is known \(relu, .*, softsign\)"):
        class_activations(plain, plain.init(0), data)


NON_LINEARITIES = [
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Softplus, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softsign,
]  # fmt: skip


@pytest.mark.parametrize("kind", NON_LINEARITIES)
def test_all_of_pytorchs_non_linearities_count(kind: type[nn.Module]) -> None:
    network = nn.Sequential(nn.Linear(3, 5), kind(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model = Model(network, name="mixed")
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), torch.arange(8) % 2
    found = class_activations(model, model.init(0, torch.float64), Examples(x, y, 2))
    assert list(found) == ["0", "2"]
    with torch.no_grad():
        h = network.eval()[:2](x)
    np.testing.assert_allclose(found["0"], means(h.numpy(), y.numpy()), atol=1e-12)


@pytest.mark.parametrize("change", [torch.relu_, F.elu_, lambda x: F.silu(x, inplace=True)])
def test_what_the_network_does_in_place_afterwards_changes_no_activation(change: Any) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = change(self.fc1(x))
            h += 100
            return self.fc2(h)

    model = Model(InPlace)
    data = Examples(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2, 2)
    assert np.abs(class_activations(model, model.init(0), data)["fc1"]).max() < 10


def test_two_non_linearities_after_one_layer_are_both_kept() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(torch.tanh(torch.relu(self.fc1(x)) - 1))

    model = Model(Twice)
    data = Examples(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2, 2)
    for batch_size in (2, 250):
        found = class_activations(model, model.init(0), data, batch_size)
        assert list(found) == ["fc1", "fc1 (2)"]
        assert found["fc1"].min() >= 0 > found["fc1 (2)"].min()
