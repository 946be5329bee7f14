"""TopK-pFL: the coefficients of KT-pFL's released code, in a round on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import golden
from spoken import ENGINES, mixed

from fedloom.algorithms.topk_pfl import TopKPFL, nearest

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["N4", "N6", "N20"])
def test_what_clients_learn_is_what_the_authors_mix(case: str, engine: Any) -> None:
    learnt, g = mixed(TopKPFL, case, engine)
    np.testing.assert_allclose(learnt, g[f"{case}/topk_personal"], **CLOSE)


@pytest.mark.parametrize("case", ["N4", "N6", "N20"])
def test_coefficients_are_the_authors(case: str) -> None:
    g = golden("ktpfl_dense/ktpfl_official_topk_sim")
    np.testing.assert_allclose(nearest(torch.from_numpy(g[f"{case}/cosine"])), g[f"{case}/topk_weights"], **CLOSE)


def test_ties_leave_fewer_than_half() -> None:
    """Of four, the second smallest cosine is the threshold: 0.5 below, so that two are above 0.2, and one above 0.5."""
    a = torch.tensor([[1.0, 0.2, 0.5, 0.1], [0.5, 1.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0], [0.3, 0.2, 0.1, 1.0]])
    assert nearest(a).tolist() == [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5]]


def test_one_client_learns_from_itself() -> None:
    assert nearest(torch.ones(1, 1)).tolist() == [[1.0]]
    assert nearest(torch.tensor([[1.0, 0.4, 0.9], [0.4, 1.0, 0.7], [0.9, 0.7, 1.0]])).tolist() == [
        [0.5, 0, 0.5], [0, 0.5, 0.5], [0.5, 0, 0.5],
    ]  # fmt: skip
