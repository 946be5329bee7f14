"""Examples that one model reads agree in columns, classes, targets and inputs; one form says where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedloom.data.schema import Schema

HERE = Schema("on Kiel", ("age", "sex"), ("no", "yes"), "classes", (), {"shape": (2,), "dtype": "float32"})


def test_what_is_alike_differs_in_nothing() -> None:
    assert replace(HERE, where="on Ulm").differs_from(HERE) is None
    assert Schema("in new.csv", ("sex", "age")).lacks_of(HERE) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"kind": "float32 of shape (N,)"},
            "targets must be of the same kind, got classes on Kiel and float32 of shape (N,) on Ulm: name the same "
            "columns of all files, as label= or target=",
        ),
        (
            {"classes": ("no",)},
            "classes must have the same names in the same order, got from number 1 on, 'yes' on Kiel, nothing more on "
            "Ulm: give them the same names (the values of the label column, the folders of images), or number them "
            "from 0 in all and set data.classes in the settings",
        ),
        ({"targets": ("days",)}, "targets must have the same names in the same order, got no names on Kiel, 'days' on"),
        (
            {"columns": ("sex", "age")},
            "columns must have the same names in the same order, got 'age', 'sex' on",
        ),
        ({"columns": ("age", "s" * 100)}, f"got from number 1 on, 'sex' on Kiel, '{'s' * 79} on Ulm: give all files"),
        (
            {"inputs": {"shape": (3,), "dtype": "float32"}},
            "must have the same shape, got (2,) on Kiel and (3,) on",
        ),
        (
            {"inputs": {"shape": (2,), "dtype": "uint8"}},
            "the same dtype, got float32 on Kiel and uint8 on Ulm: p",
        ),
    ],
)
def test_the_first_difference_is_said(change: dict[str, Any], told: str) -> None:
    assert told in str(replace(HERE, where="on Ulm", **change).differs_from(HERE))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            ("age",),
            "columns must have the names 'age', 'sex', in any order, got no 'sex' in new.csv: name col",
        ),
        (
            ("age", "sexs"),
            "got no 'sex' (did you mean 'sexs'?), 'sexs' besides in new.csv: name columns as on Kiel; l",
        ),
        (("sex", "age", "id"), "in any order, got 'id' besides in new.csv: leave out what is no feature: ?drop=id"),
    ],
)
def test_columns_in_any_order(columns: tuple[str, ...], told: str) -> None:
    assert told in str(Schema("in new.csv", columns).lacks_of(HERE))


def test_long_lists_are_cut() -> None:
    many = Schema("there", tuple(f"c{i}" for i in range(9)))
    assert "got no 'c0', no 'c1', no 'c2', no 'c3', no 'c4', and 4 more missing here: " in str(
        Schema("here").lacks_of(many)
    )
