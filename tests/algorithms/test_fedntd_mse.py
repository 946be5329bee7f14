"""FedNTD (MSE): the loss in both readings, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from torch.func import grad

from fedloom.algorithms import FedNTDMSE
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError

G = golden("fedntd/ntd_variants_derived")
LOGITS, TEACHER, Y = (torch.from_numpy(G[n]) for n in ("logits", "teacher", "labels"))


def penalty(reduction: Any, beta: float, real: int = len(Y)) -> Any:
    """The penalty of a batch, of which the first `real` rows are no padding, as a function of the student's logits."""
    mask = torch.arange(len(Y)) < real
    batch = Batch(x=LOGITS, y=Y, mask=mask, key=torch.tensor(0), notes={"teacher": TEACHER})
    return lambda z: FedNTDMSE(beta=beta, reduction=reduction).penalty(z, batch)


@pytest.mark.parametrize(
    ("reduction", "name"),
    [("mean", "mse_mean_over_batch_and_classes"), ("class_sum", "mse_sum_over_classes_mean_over_batch")],
)
def test_loss(reduction: str, name: str) -> None:
    np.testing.assert_allclose(penalty(reduction, 1.0)(LOGITS), G[name], rtol=1e-12)
    np.testing.assert_allclose(penalty(reduction, 0.05)(LOGITS), 0.05 * G[name], rtol=1e-12)


@pytest.mark.parametrize(("reduction", "divisor"), [("mean", 9), ("class_sum", 1)])
@pytest.mark.parametrize("real", [6, 4])
def test_gradient(reduction: str, divisor: int, real: int) -> None:
    got = grad(penalty(reduction, 0.3, real))(LOGITS)
    want = 2 * 0.3 * (LOGITS - TEACHER) / (real * divisor)
    want[torch.arange(len(Y)), Y] = 0.0  # exactly: the true class is no part of it
    want[real:] = 0.0
    assert torch.equal(got == 0, want == 0)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingError, match=r"beta must be >= 0, got -1"):
        FedNTDMSE(beta=-1.0)
    with pytest.raises(SettingError, match="reduction must be one of mean, class_sum, got 'sum'"):
        FedNTDMSE(reduction="sum")  # type: ignore[arg-type]
