"""Types of entries: what is of them, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.core.json_types import (
    COUNT,
    NAMES,
    POSITIVE,
    TEXTS,
    JsonType,
    listed,
    mapped,
    matching,
    number,
    one_of,
    whole,
)


@pytest.mark.parametrize(
    ("kind", "words", "right", "wrong"),
    [
        (COUNT, "an integer >= 0", (0, (1 << 63) - 1), (-1, 1 << 63, True, 1.0, "1", None)),
        (POSITIVE, "an integer >= 1", (1, 1 << 40), (0, (1 << 40) + 1, True)),
        (whole(1, 9), "an integer in 1..9", (1, 9), (0, 10, 9.0)),
        (number(), "a number or null", (-1, 1e308, None), (True, "1", float("nan"), float("inf"), 10**400, [])),
        (number(0, 1), "a number in 0..1 or null", (0, 1 + 1e-10, None), (-1e-12, 1 + 1e-8)),
        (number(-1, 1), "a number in -1..1 or null", (-1 - 1e-10, 1), (-1.1,)),
        (number(0, None), "a number >= 0 or null", (0, 1e9), (-0.1,)),
        (number(None, 0.5), "a number <= 0.5 or null", (-1e9, 0.5), (0.6,)),
        (NAMES, "a list of names", ([], ["a"]), (("a",), [1], "a", {"a": "b"})),
        (TEXTS, "a mapping to texts", ({}, {"a": "b"}), ({"a": 1}, [], None)),
        (one_of(("loop", "stacked")), "one of loop, stacked", ("loop",), ("loo", None, ["loop"])),
        (JsonType(mapped(listed(int)), "counts"), "counts", ({"a": [1]},), ({"a": 1}, {"a": [1.0]}, {1: [1]})),
        (JsonType(mapped(int, matching("a+|b")), "names"), "names", ({"aa": 1, "b": 2},), ({"ab": 1}, {"b\n": 1})),
    ],
)  # fmt: skip
def test_values_of_a_type(kind: JsonType, words: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    assert kind.words == words
    assert [value for value in right if not kind.fits(value)] == []
    assert [value for value in wrong if kind.fits(value)] == []
