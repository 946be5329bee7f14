"""The loss around a model, against the reference's eigenvectors and surface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor, nn

from fedloom import Classification, Examples, Model, Weights
from fedloom.analyses.measures import hessian_eigen, hessian_product, landscape, perturbed, plane
from fedloom.analyses.measures.flat import flat, unflat
from fedloom.core.types import Params
from fedloom.experiments.export import module


class TinyNet(nn.Module):
    """golden/fedntd/README.md, conventions"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.classifier = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(48, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.relu(self.fc(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))))


MODEL = Model(TinyNet)


@pytest.fixture
def reference() -> tuple[dict[str, Any], Weights, Examples]:
    g = golden("fedntd/landscape")
    weights = Weights(params=unflat(torch.as_tensor(g["w"]), MODEL.init(0, torch.float64).params))
    return g, weights, Examples(torch.as_tensor(g["x"]), torch.as_tensor(g["y"]), 4)


def test_weights_as_a_vector_and_back() -> None:
    params = MODEL.init(0).params
    back = unflat(flat(params), params)
    assert list(back) == list(params)
    assert all(torch.equal(back[n], params[n]) for n in params)


@pytest.mark.slow
def test_eigenpairs_are_those_of_the_reference(reference: Any) -> None:
    g, weights, examples = reference
    found = hessian_eigen(MODEL, weights, Classification(), examples, tolerance=1e-10, batch_size=20)
    np.testing.assert_allclose(found.values, g["top2_exact"], rtol=1e-9)
    for vector, name in zip(found.vectors, ("evec1", "evec2"), strict=True):
        np.testing.assert_allclose(vector.numpy(), g[name], atol=1e-7)  # signs too: the largest component is positive
    np.testing.assert_allclose((found.vectors @ found.vectors.T).numpy(), np.eye(2), atol=1e-10)
    assert found.residuals.max() < 1e-7


def test_around_what_is_trained_the_loss_is_that_of_the_whole_network(reference: Any) -> None:
    """Hessian, plane and noise of a network with frozen parts: those of the whole in these directions."""
    _, weights, examples = reference
    trained = [name for name in weights.params if name.startswith("classifier")]
    network = module(MODEL, weights)
    model = Model(network, name="net", frozen="* !classifier").bind(0, torch.float64)
    own, task = Weights(Params({n: weights.params[n] for n in trained})), Classification()
    v = torch.randn(2, len(flat(own.params)), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padded = [
        flat(Params({n: unflat(d, own.params).get(n, torch.zeros_like(p)) for n, p in weights.params.items()}))
        for d in v
    ]
    whole = unflat(hessian_product(MODEL, weights, task, examples)(padded[0]), weights.params)
    found = hessian_product(model, own, task, examples)(v[0])
    torch.testing.assert_close(found, flat(Params({n: whole[n] for n in trained})), rtol=1e-9, atol=1e-12)
    grids = [plane(m, w, task, examples, torch.stack(d), [-0.5, 0.5]) for m, w, d in (
        (MODEL, weights, padded), (model, own, [*v]),
    )]  # fmt: skip
    np.testing.assert_allclose(*grids, rtol=1e-12)
    noise = perturbed(model, own, task, examples, [0.0, 0.1], draws=1, seed=0)
    assert noise.loss[0, 0] == pytest.approx(
        perturbed(MODEL, weights, task, examples, [0.0], draws=1, seed=0).loss[0, 0]
    )
    assert len(hessian_eigen(model, own, task, examples).vectors[0]) == model.num_params


@pytest.mark.slow
def test_the_product_is_that_of_the_whole_hessian(reference: Any) -> None:
    g, weights, examples = reference

    def loss(vector: Tensor) -> Tensor:
        return F.cross_entropy(MODEL(Weights(params=unflat(vector, weights.params)), examples.x), examples.y)

    H = torch.func.hessian(loss)(flat(weights.params))
    v = torch.randn(352, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    product = hessian_product(MODEL, weights, Classification(), examples, batch_size=17)
    torch.testing.assert_close(product(v), H @ v, rtol=0, atol=1e-11)
    assert float(H.diagonal().sum()) == pytest.approx(float(g["trace_exact"]), rel=1e-9)


def test_the_surface_has_the_first_direction_along_its_first_axis(reference: Any) -> None:
    g, weights, examples = reference
    directions = torch.as_tensor(np.stack([g["evec1"], g["evec2"]]))
    found = plane(MODEL, weights, Classification(), examples, directions, g["grid"])
    np.testing.assert_allclose(found, g["Z_first_axis_is_evec1"], atol=1e-12)
    assert not np.allclose(found, found.T, atol=1e-2)
    assert found[2, 2] == pytest.approx(float(g["loss"]), abs=1e-12)


def test_noise(reference: Any) -> None:
    g, weights, examples = reference
    found = perturbed(MODEL, weights, Classification(), examples, [0.0, 0.1, 1.0], draws=3)
    np.testing.assert_allclose(found.loss[0], float(g["loss"]), atol=1e-12)
    assert found.loss.shape == found.accuracy.shape == (3, 3)
    assert found.loss[2].mean() > found.loss[1].mean()
    assert len(set(found.loss[2])) == 3
    again = perturbed(MODEL, weights, Classification(), examples, [1.0], draws=3)
    np.testing.assert_array_equal(again.loss[0], found.loss[2])  # a draw does not depend on the other strengths


def test_relative_noise_follows_the_norm_of_each_tensor(reference: Any) -> None:
    _, weights, examples = reference
    seen: list[Weights] = []

    class Recording(Model):
        def __call__(self, weights: Weights, x: Tensor, *args: Any, **more: Any) -> Tensor:
            seen.append(weights)
            return super().__call__(weights, x, *args, **more)

    for relative in (True, False):
        seen.clear()
        perturbed(Recording(TinyNet), weights, Classification(), examples, [0.5], relative=relative, draws=1)
        for name, t in weights.params.items():
            away = (seen[0].params[name] - t).norm()
            size = 0.5 * (float(t.norm()) if relative else t.numel() ** 0.5)
            if relative:
                assert float(away) == pytest.approx(size, rel=1e-9)
            elif name == "fc.weight":  # 288 Gaussian values: their norm is within some 4 % of what is expected
                assert float(away) == pytest.approx(size, rel=0.15)


def test_a_direction_in_which_the_loss_bends_down_counts_by_its_magnitude(
    reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What power iteration finds first."""
    _, weights, examples = reference
    bends = torch.linspace(-1, 1, 352, dtype=torch.float64)
    bends[7], bends[8] = -5, 3
    monkeypatch.setattr(landscape, "hessian_product", lambda *args: lambda v: bends * v)
    found = hessian_eigen(MODEL, weights, Classification(), examples)
    assert found.values == pytest.approx([-5, 3])
    assert found.vectors.abs().argmax(1).tolist() == [7, 8]


def test_too_many_eigenvectors_are_refused(reference: Any) -> None:
    _, weights, examples = reference
    with pytest.raises(ValueError, match=r"k must be in 1\.\.351"):
        hessian_eigen(MODEL, weights, Classification(), examples, k=352)
