"""What people write as NAME:VALUE and as KEY=VALUE is read in one way, and refused in one form of words."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, arguments, by_name, find, make_named
from fedloom.engines.aggregators import AGGREGATORS
from fedloom.engines.upload_bounds import BOUNDS
from fedloom.experiments.catalogue import ATTACKS, PARTITIONS, SAMPLERS
from fedloom.experiments.catalogue.data_changes import ARRIVALS, AUGMENTATIONS, DRIFTS
from fedloom.wording import whole


def _checked(x: int, y: float = 0.5) -> tuple[int, float]:
    if x < 0:
        raise ValueError(f"x is 0 or more, got {x}: raise it")
    return x, y


THINGS = by_name(
    (
        Named(("plain",), lambda: "plain"),
        Named(("one:X", "one:X:Y"), _checked, (int, float)),
        Named(("pair", "pair:X:Y"), lambda *values: values, (int, int)),
        Named(("file:PATH",), lambda path: path, (str,)),
        Named(("word:a|b:N",), lambda *values: values, (Literal["a", "b"], int), fewer=True),
    )
)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain", "plain"), ("one:3", (3, 0.5)), ("one:3:0.25", (3, 0.25)), ("one:3.0", (3, 0.5)), ("pair", ()),
        ("pair:1:2", (1, 2)), ("file:C:/a:b", "C:/a:b"), ("word", ()), ("word:b", ("b",)), ("word:a:2", ("a", 2)),
    ],
)  # fmt: skip
def test_values_are_read_by_their_kinds(text: str, made: Any) -> None:
    assert make_named("thing", text, THINGS) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "plian",
            "unknown thing 'plian' (did you mean 'plain'?); there are none, plain, one:X or one:X:Y, pair or pa",
        ),
        ("non", "unknown thing 'non' (did you mean 'none'?)"),
        ("", "unknown thing ''; there are none, plain"),
        ("plain:1", "this thing is written plain, got 'plain:1': write it so"),
        ("plain:", "this thing is written plain, got 'plain:': write it so"),
        ("one", "this thing is written one:X or one:X:Y, got 'one': X is a whole number, Y is a number"),
        ("one:1.5", "this thing is written one:X or one:X:Y, got 'one:1.5': X is a whole number"),
        ("one:1:nan", "got 'one:1:nan': X is a whole number, Y is a number"),
        ("one:1:2:3", "this thing is written one:X or one:X:Y, got 'one:1:2:3'"),
        ("one:-1", "thing = 'one:-1': x is 0 or more, got -1: raise it"),
        ("pair:1", "this thing is written pair or pair:X:Y, got 'pair:1'"),
        ("word:c", "this thing is written word:a|b:N, got 'word:c': a|b is a or b, N is a whole number"),
        ("word:a:1:2", "this thing is written word:a|b:N, got 'word:a:1:2'"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError) as error:
        make_named("thing", text, THINGS, before="none")
    assert message in str(error.value)


def test_what_may_be_named_besides() -> None:
    with pytest.raises(SettingError, match=r"there are plain, .*, module:name \[FL-RUN-005\]$"):
        find("thing", "plan", THINGS, behind="module:name")


KNOWN = [AGGREGATORS, ATTACKS, SAMPLERS, ARRIVALS, DRIFTS, AUGMENTATIONS, BOUNDS]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: next(iter(known)))
def test_each_form_has_a_kind_for_each_of_its_values(known: dict[str, Named]) -> None:
    for name, one in known.items():
        assert {form.partition(":")[0] for form in one.forms} == {name}
        assert max(form.count(":") for form in one.forms) == one.forms[-1].count(":") == len(one.reads)


def test_each_partition_has_a_kind_for_each_of_its_values() -> None:
    for one in PARTITIONS.values():
        assert len(one.named.reads) == len(one.values) == one.form.count(":"), one.form


KINDS: dict[str, Any] = {
    "label": str, "drop": list, "least": whole, "share": float, "on": bool, "by": Literal["x", "y"],
    "own": {"a": 1}.get,
}  # fmt: skip


def test_arguments_are_read_by_their_kinds() -> None:
    said = arguments("a table", "label=a=b&drop=c,d&least=2&share=0.5&on=false&by=y&own=a", KINDS, "t?label=y")
    assert said == {
        "label": "a=b", "drop": ["c", "d"], "least": 2, "share": 0.5, "on": False, "by": "y", "own": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("lable=a", "of a table one says, each once, some of t?label=y, got 'lable=a' (did you mean 'label'?): look"),
        ("label=a&label=b", "each once, some of t?label=y, got 'label=b': look"),
        ("label", "some of t?label=y, got 'label': look"),
        ("label=", "got 'label=': look"),
        ("", "got '': look"),
        ("least=-1", "least of a table is a whole number, 0 or more, got 'least=-1': write it as in t?label=y"),
        ("share=inf", "share of a table is a number, got 'share=inf'"),
        ("on=yes", "on of a table is true or false, got 'on=yes'"),
        ("by=z", "by of a table is x or y, got 'by=z'"),
    ],
)
def test_arguments_that_are_refused(written: str, message: str) -> None:
    with pytest.raises(SettingError) as error:
        arguments("a table", written, KINDS, "t?label=y", "look")
    assert message in str(error.value)


def test_of_some_things_one_says_nothing() -> None:
    with pytest.raises(SettingError, match="of lenet one says nothing, got 'a=1': leave out what follows its name"):
        arguments("lenet", "a=1", {}, "lenet")
