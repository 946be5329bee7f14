"""Examples that one model reads agree in columns, classes, targets and inputs; one form says where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedloom.data.schema import Schema, differences, mixed, not_alike

HERE = Schema("on Kiel", ("age", "sex"), ("no", "yes"), "classes", (), {"shape": (2,), "dtype": "float32"})


def test_what_is_alike_differs_in_nothing() -> None:
    assert replace(HERE, where="on Ulm").differs_from(HERE) is None
    assert Schema("in new.csv", ("sex", "age")).lacks_of(HERE) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"kind": "float32 of shape (N,)"},
            "targets must be of the same kind, got classes on Kiel and float32 of shape (N,) on Ulm: give one "
            "kind alone, in tables by label= or target=",
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


def test_columns_besides_need_not_be_named() -> None:
    assert Schema("here", ("age", "id", "sex")).lacks_of(HERE, may_have_more=True) is None
    told = Schema("here", ("agee", "sex")).lacks_of(HERE, may_have_more=True)
    assert "got no 'age' (did you mean 'agee'?) here: name columns as on Kiel" in str(told)
    assert "besides" not in str(told)


def test_tables_that_differ_alike_are_said_together() -> None:
    names = {"Ulm": ("age",), "Kiel": ("sex", "age"), "Bonn": ("sex", "age", "id"), "Jena": ("age",)}
    told = [*differences([Schema(f"in {place}", columns) for place, columns in names.items()], HERE.columns)]
    assert told == ["no 'sex' in Ulm, Jena", "'id' besides in Bonn"]
    many = [Schema(f"on device{k}") for k in range(6)]
    assert [*differences(many, ["age"])] == ["no 'age' on device0, device1, device2, device3 and 2 more"]


def test_columns_hold_the_same_everywhere() -> None:
    held = {"Ulm": {}, "Kiel": {"age": ("numbers", "7"), "id": ("words", "")}, "Bonn": {"age": ("words", "'old'")}}
    schemas = [Schema(f"in {place}", ("age", "id"), holds=kinds) for place, kinds in held.items()]
    assert [*mixed(schemas, ["age", "id"])] == ["'age' with numbers in Kiel (7) and words in Bonn ('old')"]
    assert not_alike(schemas, ["id"]) is None
    assert schemas[1].lacks_of(schemas[0]) is None
    told = not_alike(schemas, ["age"])
    assert told is not None
    assert (
        "the same everywhere, got 'age' with numbers in Kiel (7) and words in Bonn ('old'): mend the column, or" in told
    )
    assert schemas[2].lacks_of(schemas[1]) == told
