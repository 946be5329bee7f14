"""Settings are what their annotations say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Gt, Le

from fedloom.core.choices import Count, NonNegative, Positive, WholeNumber, check_choices, field_types
from fedloom.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

Size = Literal[1, 2]


@dataclass
class Base:
    word: Literal["a", "b"] = "a"
    free: str = "anything"


@dataclass
class Derived(Base):
    size: Size = 1


@dataclass
class Unresolved:
    word: Literal["a", "b"] = "a"
    names: Mapping[str, int] | None = None
    many: ClassVar[bool] = False


@pytest.mark.parametrize("settings", [{}, {"word": "b", "free": "c", "size": 2}])
def test_listed_values_are_accepted(settings: dict[str, Any]) -> None:
    check_choices(Derived(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"word": "c"}, "word must be one of a, b, got 'c'"),
        ({"word": ["a"]}, r"word must be one of a, b, got \['a'\]"),
        ({"size": 3}, "size must be one of 1, 2, got 3"),
    ],
)
def test_others_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_choices(Derived(**settings))


def test_annotations_for_type_checkers_alone_hide_no_others() -> None:
    check_choices(Unresolved(word="a"))
    with pytest.raises(SettingError, match="word must be one of a, b, got 'c'"):
        check_choices(Unresolved(word="c"))  # type: ignore[arg-type]
    assert field_types(Unresolved) == {"word": Literal["a", "b"], "names": Any, "many": ClassVar[bool]}


@dataclass
class Typed:
    count: int = 1
    rate: float = 0.1
    on: bool = False
    text: str = ""
    most: float | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    many: tuple[int, ...] = ()
    either: int | str | None = None
    part: Base = field(default_factory=Base)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"count": np.int64(3), "rate": 1, "on": True, "most": np.float32(2.0)},
        {"pair": (1, 0.5), "many": (1, 2, 3), "either": "x", "part": Derived()},
    ],
)
def test_values_of_their_types_are_accepted(settings: dict[str, Any]) -> None:
    check_choices(Typed(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": True}, "count must be of type int, got True"),
        ({"count": 2.0}, "count must be of type int, got 2.0"),
        ({"count": "2"}, "count must be of type int, got '2'"),
        ({"rate": "0.1"}, "rate must be of type float, got '0.1'"),
        ({"rate": False}, "rate must be of type float, got False"),
        ({"rate": float("nan")}, "rate must be finite, got nan"),
        ({"most": float("inf")}, "most must be finite, got inf"),
        ({"most": "none"}, "most must be of type float, got 'none'"),
        ({"on": 1}, "on must be of type bool, got 1"),
        ({"text": None}, "text must be of type str, got None"),
        ({"pair": (0.9,)}, r"pair must be a tuple of 2 values, got \(0.9,\)"),
        ({"pair": [0.9, 0.99]}, r"pair must be a tuple of 2 values, got \[0.9, 0.99\]"),
        ({"pair": (0.9, float("inf"))}, "pair must be finite, got inf"),
        ({"many": 3}, "many must be a tuple of values, got 3"),
        ({"many": (1, "2")}, "many must be of type int, got '2'"),
        ({"part": "adam"}, "part must be of type Base, got 'adam'"),
    ],
)
def test_values_of_other_types_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=rf"^{message} \[FL-RUN-008\]$"):
        check_choices(Typed(**settings))


Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class Bounded:
    mu: NonNegative = 0.0
    share: Share = 0.5
    most: Positive | None = None
    steps: Count = 1
    rounds: WholeNumber = 0
    pair: tuple[Share, Share] = (0.1, 0.2)

    def __post_init__(self) -> None:
        check_choices(self)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": -0.1}, "mu must be >= 0, got -0.1"),
        ({"mu": "0"}, "mu must be of type float, got '0'"),
        ({"mu": float("nan")}, "mu must be finite, got nan"),
        ({"share": 0.0}, "share must be > 0 and <= 1, got 0.0"),
        ({"share": 1.5}, "share must be > 0 and <= 1, got 1.5"),
        ({"most": 0}, "most must be > 0, got 0"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"rounds": -1}, "rounds must be >= 0, got -1"),
        ({"pair": (0.1, 2.0)}, "pair must be > 0 and <= 1, got 2.0"),
    ],
)
def test_bounds_are_part_of_an_annotation(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as error:
        Bounded(**settings)
    assert str(error.value) == f"{message} [FL-RUN-008]"


def test_values_within_their_bounds_pass() -> None:
    assert Bounded(mu=0, share=1.0, most=None, steps=1, pair=(1.0, 0.1)).most is None
    assert field_types(Bounded)["share"] is float
