"""Proposition 3: how far the optimum of one client is from those of others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysed import close, written
from fedloom.analyses import AnalysedRun
from fedloom.analyses.analysed_run import ReplayedRound
from fedloom.analyses.measures import shares
from fedloom_papers.fedntd import proposition_3
from fedloom_papers.fedntd.proposition_3 import (
    COUNTEREXAMPLE,
    expected_distance,
    mean_optimum,
    relabelled,
    smooth_bound,
)


def test_the_bound_holds_and_is_least_at_the_mean_optimum() -> None:
    rng = np.random.default_rng(0)
    optima, h, least, p = rng.normal(size=(4, 3)), rng.uniform(0.2, 2, 4), rng.random(4), np.array([0.4, 0.3, 0.2, 0.1])
    best = mean_optimum(p, optima)

    def loss(w: np.ndarray) -> float:
        return float(p @ (least + h / 2 * np.square(w - optima).sum(1)))  # class losses that are 2-smooth

    at_best = smooth_bound(best, p, optima, least, 2.0)
    for w in rng.normal(size=(50, 3)):
        assert loss(w) <= smooth_bound(w, p, optima, least, 2.0)
        assert at_best <= smooth_bound(w, p, optima, least, 2.0)


def test_uniform_is_best_for_equidistant_optima() -> None:
    family = relabelled([[0.7, 0.2, 0.1, 0.0], [0.0, 0.5, 0.5, 0.0]])
    assert family.shape == (8, 4)
    np.testing.assert_allclose(family.mean(0), 0.25)
    uniform = expected_distance(np.full(4, 0.25), family, np.eye(4))
    for p in np.random.default_rng(0).dirichlet(np.ones(4), 100):
        assert uniform <= expected_distance(p, family, np.eye(4)) + 1e-12


def test_uniform_is_not_best_for_all_optima() -> None:
    found = [
        expected_distance(p, COUNTEREXAMPLE.clients, COUNTEREXAMPLE.optima) for p in (np.full(3, 1 / 3), [0.5, 0.5, 0])
    ]
    assert found == pytest.approx([4 / 9, 1 / 3], abs=1e-12)


@pytest.mark.slow
def test_proposition_3(lenet_run: AnalysedRun, lenet_round: ReplayedRound, tmp_path: Path) -> None:
    row, clients = written(lenet_run, "proposition-3", tmp_path)[10], relabelled(shares(lenet_round.counts))
    client = shares(lenet_round.counts[0])
    for name, end in (("a_class", np.eye(3)[0]), ("two_classes", np.array([0.5, 0.5, 0])), ("a_client", client)):
        p = 0.75 / 3 + 0.25 * end
        assert row[f"towards_{name}"] == pytest.approx(expected_distance(p, clients, np.eye(3)))
    close(row, step=0.25, counterexample=4 / 9 + (1 / 3 - 4 / 9) / 4)


def test_lines_that_may_coincide_can_be_told_apart() -> None:
    steps = np.linspace(0, 1, 3)
    lines = {"a class": steps, "two classes": steps, "a client": steps}
    drawn = proposition_3.draw(steps, lines, steps).axes[0].get_lines()
    assert [line.get_linestyle() for line in drawn] == ["-", "-", "--"]


def test_the_bound_is_the_loss_of_class_losses_that_are_quadratic() -> None:
    share, optima, least = [0.25, 0.75], np.array([[0.0, 1.0], [2.0, 1.0]]), [1.0, 2.0]
    w = np.array([1.0, 0.0])
    losses = [v + 3 / 2 * np.square(w - at).sum() for v, at in zip(least, optima, strict=True)]
    assert smooth_bound(w, share, optima, least, smoothness=3) == pytest.approx(np.dot(share, losses))
