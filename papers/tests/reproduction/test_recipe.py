"""What a recipe is, and how large a difference may be."""

from __future__ import annotations

import math

import pytest

from fedloom.algorithms import ALGORITHMS
from fedloom_papers.reproduction.recipe import LEAST_STD, UNKNOWN_STD, noise
from published_runs import cell


@pytest.mark.parametrize(
    ("published", "ours", "seeds", "band"),
    [
        (1.15, 0.5, 4, 2 * math.sqrt(1.15**2 + 0.5**2 / 4)),
        (3.0, 4.0, 1, 10.0),
        (1.0, None, 1, 2 * math.sqrt(2)),  # ours taken from theirs
        (None, 2.0, 4, 2 * math.sqrt(4 + 1)),  # theirs taken from ours
        (None, None, 1, 2 * math.sqrt(2) * UNKNOWN_STD),
        (0.0, None, 1, 2 * math.sqrt(2) * LEAST_STD),
        (0.0, 0.0, 3, 2 * LEAST_STD * math.sqrt(1 + 1 / 3)),
        (None, 0.01, 2, 2 * LEAST_STD * math.sqrt(1 + 1 / 2)),
        (1.0, 0.1, 1, 2 * math.sqrt(1 + LEAST_STD**2)),
    ],
)
def test_noise_by_hand(published: float | None, ours: float | None, seeds: int, band: float) -> None:
    assert noise(published, ours, seeds) == pytest.approx(band)


def test_every_algorithm_of_the_recipes_is_known_or_named_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom_papers.reproduction.recipe.ALGORITHMS", {"fedavg": ALGORITHMS["fedavg"]})
    assert cell("fedntd-table1", "mnist-s2", "fedavg").missing is None
    assert cell("fedntd-table1", "mnist-s2", "moon").missing == "there is no algorithm 'moon' in this version"
