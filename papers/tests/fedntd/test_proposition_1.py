"""Proposition 1: distillation on what a client lacks makes gradients agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import golden

from analysed import close, rows, written
from fedloom.analyses import AnalysedRun
from fedloom.analyses.measures import balanced, class_gradients, complement, gradient_diversity, gram, shares
from fedloom_papers.fedntd.proposition_1 import closed_form, diversity_at
from fedloom_papers.fedntd.proposition_3 import relabelled


def test_proposition_1_is_that_of_the_reference() -> None:
    g = golden("fedntd/measures")
    form = closed_form(g["gd_P"])
    assert pytest.approx(float(g["gd_V"]), abs=1e-12) == form.V
    assert pytest.approx(float(g["gd_M"]), abs=1e-12) == form.M
    np.testing.assert_allclose(form.at(g["gd_betas"]), g["gd_lambda_closed"], atol=1e-10)
    np.testing.assert_allclose(form.slope(g["gd_betas"]), g["gd_dlambda_closed"], atol=1e-10)
    np.testing.assert_allclose(diversity_at(g["gd_P"], g["gd_betas"]), g["gd_lambda"], atol=1e-10)


def test_the_closed_form_is_the_direct_one_for_clients_and_their_relabellings() -> None:
    p = shares(np.random.default_rng(0).integers(0, 30, (5, 7)))
    betas, form = np.linspace(0, 6, 25), closed_form(p)
    family = relabelled(p)
    assert pytest.approx(form.V, abs=1e-12) == closed_form(family).V
    np.testing.assert_allclose(diversity_at(family, betas), form.at(betas), atol=1e-10)
    assert not np.allclose(diversity_at(p, betas), form.at(betas), atol=1e-3)  # whose own mean is not uniform
    assert form.at(6) == pytest.approx(1)
    low = betas <= 7 / 2 - 1
    assert (form.slope(betas)[low] <= -form.M / (1 + betas[low]) ** 2 + 1e-12).all()
    h = 1e-6
    np.testing.assert_allclose(form.slope(betas), (form.at(betas + h) - form.at(betas - h)) / (2 * h), atol=1e-7)


def test_measured_diversity_is_that_of_the_gradients_themselves() -> None:
    rng = np.random.default_rng(1)
    p, G = shares(rng.integers(0, 9, (4, 5)) + np.eye(4, 5, dtype=int)), rng.normal(size=(5, 40))
    clients = p + 0.7 * complement(p)
    assert diversity_at(p, 0.7, G @ G.T)[0] == pytest.approx(gradient_diversity(clients @ G), abs=1e-10)
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        closed_form(np.ones((3, 1)))


@pytest.mark.slow
def test_proposition_1(trained: Any, tmp_path: Path) -> None:
    run = AnalysedRun.of(trained("fedavg", "--model", "mlp", "--cohort", "2", "--rounds", "1"))
    m, train = run.replayed(), run.job.federation.train
    share = shares(m.counts)
    assert not np.allclose(share.mean(0), 1 / 3)  # else the closed form is that of these clients
    row = written(run, "proposition-1", tmp_path)[7]
    chosen = balanced(train, 200)
    G, beta = gram(class_gradients(run.network, m.start, run.task, chosen)[0]), row["beta"]
    assert beta == pytest.approx(0.7)
    close(row, closed_form=float(closed_form(share).at(beta)), orthogonal=diversity_at(share, beta)[0])
    close(row, measured=diversity_at(share, beta, G)[0])
    first = rows(tmp_path / "proposition-1-gram.csv")[1]
    close(first, **{"class": 1, "0": G[1, 0], "1": G[1, 1], "2": G[1, 2]})
