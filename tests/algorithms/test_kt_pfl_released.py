"""The released code of KT-pFL, which fedloom does not follow: its rules are written out here, and held to its numbers.

What it has in common with fedloom is computed by fedloom: soft predictions, mixtures, the divergence that is distilled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from conftest import golden
from fedloom.algorithms.kt_pfl import mixture
from fedloom.core.losses import divergence, soft_prediction
from fedloom.core.model import Model
from small import DenseTiny, weights_at

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def row_loss(row: Tensor, own: Tensor, soft: Tensor, rho: float) -> Tensor:
    """Mean squared errors, of the mixture and of the row against 1/N; no KL, no D_n / D, no lambda."""
    mixed = mixture(row[None], soft)[0]
    return F.mse_loss(own, mixed) + rho * F.mse_loss(row, torch.full_like(row, 1 / len(row)))


def forced(slope: Tensor) -> float:
    """The rate that brings the mean absolute change of a coefficient between 0.01 and 0.05."""
    change, rate = float(slope.abs().mean()), 1.0
    for _ in range(5):
        if change > 0.01:
            change, rate = change / 5, rate / 5
        if change < 0.01:
            change, rate = change * 5, rate * 5
    return rate


@pytest.mark.parametrize("case", ["N4_T1", "N5_T10", "N20_T10"])
def test_update_of_the_coefficients(case: str) -> None:
    g = golden("ktpfl_dense/ktpfl_official_c_update")
    T, rho, r = float(g[f"{case}/T"]), float(g[f"{case}/rho"]), 0
    while f"{case}/round{r}/logits" in g:
        at = {n: torch.as_tensor(g[f"{case}/round{r}/{n}"]) for n in ("logits", "soft", "C_in", "C_out")}
        want = {n: g[f"{case}/round{r}/{n}"] for n in ("row_loss", "row_grad", "grad_lr", "personal_soft")}
        np.testing.assert_allclose(F.softmax(at["logits"] / T, -1), at["soft"], **CLOSE)
        for n, row in enumerate(at["C_in"]):
            own = at["soft"][n]
            slope = grad(row_loss)(row, own, at["soft"], rho)
            np.testing.assert_allclose(row_loss(row, own, at["soft"], rho), want["row_loss"][n], **CLOSE)
            np.testing.assert_allclose(slope, want["row_grad"][n], **CLOSE)
            assert forced(slope) == pytest.approx(want["grad_lr"][n], rel=1e-9)
            moved = F.softmax(5 * (row - forced(slope) * slope), -1)
            np.testing.assert_allclose(moved, at["C_out"][n], rtol=1e-4)
        np.testing.assert_allclose(mixture(at["C_out"], at["soft"]), want["personal_soft"], **CLOSE)
        r += 1
    assert r >= 2


@pytest.mark.parametrize("T", [1, 10])
def test_prediction_and_distillation(T: int) -> None:
    """Their loss is fedloom's divided by the number of classes."""
    g = golden("ktpfl_dense/ktpfl_official_distill")
    said = soft_prediction(Model(DenseTiny), T)(weights_at(g, "predict/model/"), torch.from_numpy(g["predict/x"]))
    np.testing.assert_allclose(said, g[f"predict/soft_T{T}"], **CLOSE)
    logits, target = torch.from_numpy(g["logits"]), torch.from_numpy(g["target"])

    def ours(logits: Tensor) -> Tensor:
        return divergence(logits / T, target).mean()

    classes = logits.shape[1]
    np.testing.assert_allclose(ours(logits), g[f"batchmean_equiv/T{T}"], **CLOSE)
    np.testing.assert_allclose(ours(logits) / classes, g[f"KL_mean/T{T}"], **CLOSE)
    np.testing.assert_allclose(grad(ours)(logits) / classes, g[f"grad/T{T}"], **CLOSE)


def similar(cosine: Any) -> Any:
    """Sim-pFL: the cosines above the least of a row, normalised."""
    above = cosine - cosine.min(1, keepdims=True)
    return above / above.sum(1, keepdims=True)


def nearest(cosine: Any) -> Any:
    """TopK-pFL: alike for all above the value at place N/2 - 1 of the sorted row."""
    keep = cosine > np.sort(cosine, 1)[:, [cosine.shape[1] // 2 - 1]]
    return keep / keep.sum(1, keepdims=True)


@pytest.mark.parametrize("case", ["N4", "N6", "N20"])
@pytest.mark.parametrize(("name", "weigh"), [("topk", nearest), ("sim", similar)])
def test_mixtures_without_learnt_coefficients(name: str, weigh: Any, case: str) -> None:
    g = golden("ktpfl_dense/ktpfl_official_topk_sim")
    soft = torch.from_numpy(g[f"{case}/soft"])
    flat = F.normalize(soft.double().flatten(1))
    np.testing.assert_allclose(flat @ flat.T, g[f"{case}/cosine"], **CLOSE)
    weights = weigh(g[f"{case}/cosine"])
    np.testing.assert_allclose(weights, g[f"{case}/{name}_weights"], **CLOSE)
    np.testing.assert_allclose(mixture(torch.from_numpy(weights).float(), soft), g[f"{case}/{name}_personal"], **CLOSE)
