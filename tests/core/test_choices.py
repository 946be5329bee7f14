"""Settings that are one word of a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest

from fedloom.core.choices import check_choices, field_types
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
