"""The released code of KT-pFL, which fedloom does not follow: its rules are written out here, and held to its numbers.

What it has in common with fedloom is computed by fedloom: soft predictions, mixtures, the divergence that is distilled.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from torch import Tensor
from torch.func import grad

from fedloom.algorithms.shared.transfer import mixture
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


def test_split_of_cifar10() -> None:
    """Three labels a client, n, n + 1 and n + 2; a quarter of each client's examples is for testing."""
    g = golden("ktpfl_dense/ktpfl_official_cifar_split")
    pooled = np.full(10, 6000)  # training and test examples of CIFAR-10 together
    held = g["train_counts"] + g["test_counts"]
    assert [np.flatnonzero(row).tolist() for row in held] == [sorted((n + j) % 10 for j in range(3)) for n in range(20)]
    assert (held.sum(0) <= pooled).all()
    sizes = held.sum(1)
    np.testing.assert_array_equal(g["train_counts"].sum(1), (0.75 * sizes).astype(int))
    # 10 examples of each label first; then twice floor(share) + randint(300, 600), or nothing where it would use it up
    more = held[held > 0] - 10
    assert ((more == 0) | (more >= 2 * 300)).all()
    assert (more % 2 == 0).all()
