"""Ranges that trials are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom.experiments.search_space import Range


def test_ranges_stay_within_their_ends() -> None:
    rng = np.random.default_rng(0)
    narrow = Range("uniform", 0.123456, 0.123457)
    assert all(narrow.low <= narrow.draw(rng) <= narrow.high for _ in range(20))
    assert {Range("int", -1, 1).draw(rng) for _ in range(50)} == {-1, 0, 1}
    for text in ("log:0.001:1.0", "uniform:-1.0:1.0", "int:1:5"):
        assert str(Range.read(text)) == text
    assert Range.read("dirichlet:0.1") is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Range("linear", 0, 1), "kind must be one of log, uniform, int, got 'linear'"),  # type: ignore[arg-type]
        (lambda: Range("uniform", 1, 1), "a range needs LOW < HIGH, got uniform:1:1"),
        (lambda: Range("uniform", 0, float("inf")), "high must be finite, got inf"),
        (lambda: Range("uniform", -1e308, 1e308), "a range must not be wider than numbers reach, got uniform:-1e+308:"),
        (lambda: Range("log", 0, 1), "a log range needs LOW > 0, got log:0:1; use uniform:LOW:HIGH"),
        (lambda: Range("int", 0.5, 1), "an int range needs whole numbers up to 2^53, got int:0.5:1; use uniform:LOW:H"),
        (lambda: Range("int", 0, 2**60), "an int range needs whole numbers up to 2^53, got int:0:"),
        (lambda: Range.read("log:1"), "a range is written log:LOW:HIGH, got 'log:1'"),
        (lambda: Range.read("log:a:1"), "an end of log:a:1 must be of type float, got 'a'"),
        (lambda: Range.read("int:1:2.5"), "an end of int:1:2.5 must be of type int, got '2.5'"),
    ],
)
def test_a_wrong_range_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        make()
    assert str(error.value).startswith(message)
