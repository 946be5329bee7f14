"""Sim-pFL: the coefficients of KT-pFL's released code, in a round on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from spoken import ENGINES, mixed

from fedloom.algorithms.shared.transfer import cosines
from fedloom.algorithms.sim_pfl import SimPFL, similar

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["N4", "N6", "N20"])
def test_what_clients_learn_is_what_the_authors_mix(case: str, engine: Any) -> None:
    learnt, g = mixed(SimPFL, case, engine)
    np.testing.assert_allclose(learnt, g[f"{case}/sim_personal"], **CLOSE)


@pytest.mark.parametrize("case", ["N4", "N6", "N20"])
def test_coefficients_are_the_authors(case: str) -> None:
    g = golden("ktpfl_dense/ktpfl_official_topk_sim")
    a = cosines(torch.from_numpy(g[f"{case}/soft"]))
    np.testing.assert_allclose(a, g[f"{case}/cosine"], **CLOSE)
    np.testing.assert_allclose(similar(a), g[f"{case}/sim_weights"], **CLOSE)


def test_clients_that_all_say_the_same_learn_from_all() -> None:
    assert torch.equal(similar(torch.ones(4, 4)), torch.full((4, 4), 0.25))
    assert torch.equal(similar(torch.ones(1, 1)), torch.ones(1, 1))
