"""Weights of age, by the formulas of the papers."""

from __future__ import annotations

import pytest

import fedloom as fl
from fedloom.virtual_time.staleness import weight


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("polynomial:0.5", [1, 2**-0.5, 3**-0.5, 0.5]),
        ("polynomial:1", [1, 1 / 2, 1 / 3, 1 / 4]),
        ("hinge:10:1", [1, 1, 1 / 11, 1 / 21]),
        ("hinge:0.5:0", [1, 1 / 1.5, 1 / 2, 1 / 2.5]),
    ],
)
def test_weights_of_the_ages_0_to_3(text: str, expected: list[float]) -> None:
    assert [weight(text)(age) for age in range(4)] == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("linear", r"unknown staleness 'linear'; there are constant, polynomial:A, hinge:A:B"),
        ("polynomial", r"written polynomial:A, got 'polynomial'"),
        ("polynomial:0", r"the exponent is above 0, got 0: write constant"),
        ("hinge:10", r"written hinge:A:B, got 'hinge:10'"),
        ("hinge:0:4", r"the slope is above 0 and the age 0 or more, got 0 and 4"),
        ("hinge:1:-1", r"got 1 and -1"),
    ],
)
def test_what_is_no_weight_is_refused(text: str, match: str) -> None:
    with pytest.raises(fl.SettingError, match=match):
        weight(text)
