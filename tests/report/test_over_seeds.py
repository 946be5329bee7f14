"""Paired differences: runs that stand there twice, what a measure can be, and whom others are compared with."""

from __future__ import annotations

import math
from typing import Any

import pytest
from test_several_seeds import history

import fedloom as fl
from fedloom.report import summary
from fedloom.report.over_seeds import paired_difference


def of(name: str, values: list[float], measure: str = "global_accuracy", seeds: list[int] | None = None) -> list[Any]:
    """Runs that end at these values of a measure, with the seeds 0, 1, 2, ..., or others."""
    where = range(len(values)) if seeds is None else seeds
    return [history(name, seed, [0.1, 0.1], **{measure: v}) for seed, v in zip(where, values, strict=True)]


def gap(mine: list[Any], theirs: list[Any], measure: str = "global_accuracy") -> Any:
    a, b = summary({"a": mine, "b": theirs}).methods
    return paired_difference(a, b, measure, "last", 1)


def test_a_run_that_stands_there_twice_counts_once() -> None:
    """Its copy would halve the interval without a new seed."""
    ends, others = [0.5, 0.7, 0.6], [0.4, 0.5, 0.5]
    once = gap(of("A", ends), of("B", others))
    twice = gap(of("A", [*ends, 0.5], seeds=[0, 1, 2, 0]), of("B", [*others, 0.4], seeds=[0, 1, 2, 0]))
    assert once.count == twice.count == 3
    assert twice.mean == once.mean


@pytest.mark.parametrize(
    ("measure", "most"), [("global_accuracy", 1.0), ("forgetting", 2.0), ("global_loss", math.inf)]
)
def test_an_interval_ends_where_the_measure_does(measure: str, most: float) -> None:
    """Shares differ by at most 1, drops of shares by 2, and a loss by anything."""
    found = gap(of("A", [0.9, 0.1], measure), of("B", [0.1, 0.9], measure), measure)
    assert (found.low, found.high) == (-most, most) or most == math.inf
    assert found.most == most
    assert (found.low < -5) == (most == math.inf)
    assert ("no statement" in found.text(str)) == (most < math.inf)


def test_an_interval_that_ends_at_the_border_on_one_side_is_one() -> None:
    found = gap(of("A", [0.9, 0.8]), of("B", [0.1, 0.05]))
    assert found.high == 1.0
    assert -1.0 < found.low < 1.0
    assert "no statement" not in found.text(str)


def test_others_are_compared_with_the_first_that_does_not_train_alone() -> None:
    alone = of("LocalOnly", [0.1, 0.2])
    runs = {"alone": alone, "first": of("FedAvg", [0.5, 0.6]), "second": of("FedProx", [0.4, 0.6])}
    assert summary(runs).against == "first"
    assert summary(dict(reversed(runs.items()))).against == "second"
    assert summary({"alone": alone}).against == "alone"
    assert summary(runs, against="second").against == "second"
    assert isinstance(alone[0], fl.History)
