"""The loss window against arithmetic of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden

from fedloom.algorithms.shared.loss_window import Window
from fedloom.core import tree


@pytest.mark.parametrize("case", ["L5_min1", "L5_full", "L3_full"])
def test_window(case: str) -> None:
    g = golden("pfedsd_apfl/loss_window")
    below_mean, below_std, length, min_fill = (float(a) for a in g[f"apfl_{case}_cfg"])
    window = tree.cast(Window.new(int(length)), dtype=torch.float64)
    told: dict[str, list[Any]] = {name: [] for name in ("mean", "std", "update", "peak_after", "mu_old", "sigma_old")}
    for loss in g["series"]:
        window, plateau = window.push(torch.tensor(loss), below_mean, below_std, int(min_fill))
        for name, value in zip(told, (*window.now, plateau, window.armed, window.mean, window.std), strict=True):
            told[name].append(value.item())
    for name, values in told.items():
        np.testing.assert_allclose(values, g[f"apfl_{case}_{name}"], rtol=1e-9, atol=1e-12, err_msg=name)
    assert sum(told["update"]) > 0


def test_a_plateau_is_told_once_until_a_peak_has_passed() -> None:
    window, told = Window.new(2), []
    for loss in (1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 1.0, 1.0):
        window, plateau = window.push(torch.tensor(loss), 2.0, 0.5, 2)
        told.append((bool(plateau), bool(window.armed)))
    armed, quiet, plateau = (False, True), (False, False), (True, False)
    assert told == [armed, plateau, quiet, quiet, armed, armed, armed, plateau]
