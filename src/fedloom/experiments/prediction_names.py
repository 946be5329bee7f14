"""Names of columns and classes of new rows, compared with those of the run whose models predict."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import SettingError
from fedloom.data import Examples
from fedloom.data.schema import Schema
from fedloom.wording import did_you_mean, some_of

_SHOWN = 12  # names in a message


def class_names(examples: Examples) -> tuple[str, ...]:
    """Return what classes are called where that is known: of a table also where they are the numbers 0 to C-1."""
    is_table = bool(examples.columns) or examples.preparation is not None
    numbers = map(str, range(examples.num_classes if is_table and examples.has_classes else 0))
    return examples.classes or tuple(numbers)


def class_places(train: Examples, where: str, names: Sequence[str]) -> dict[str, int]:
    """Return the number of each class of a run by its name; `names` must be among them."""
    known = train.classes or tuple(map(str, range(train.num_classes)))
    if unknown := [name for name in names if name not in known]:
        raise SettingError(
            f"classes of the run are {some_names(known)}, got {unknown[0]!r} in {where}"
            f"{did_you_mean(unknown[0], known)}: spell classes as the run's data do"
        )
    return {name: k for k, name in enumerate(known)}


def check_names(where: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse features that a model does not know, and those that it misses, in one message."""
    known = Schema("in the table that was trained on", tuple(wanted))
    if (told := Schema(f"in {where}", tuple(given)).lacks_of(known)) is not None:
        raise SettingError(told)


def some_names(names: Sequence[str]) -> str:
    return some_of(map(repr, names), _SHOWN)
