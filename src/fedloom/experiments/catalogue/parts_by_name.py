"""Parts of a run, and its schedule, by `module:name`."""

from __future__ import annotations

from typing import TypeVar

from fedloom.coordinator.part import Part
from fedloom.coordinator.schedule import Schedule
from fedloom.core.errors import SettingError
from fedloom.core.naming import by_python_name

T = TypeVar("T", Part, Schedule)


def part(name: str) -> Part:
    """Return a part by `module:name`: an object, or a class that is made without settings.

    Raises:
        SettingError: there is none.
    """
    return _made(name, "part", Part)


def schedule(name: str) -> Schedule:
    """Return a schedule by `module:name`, as `part` does."""
    return _made(name, "schedule", Schedule)


def _made(name: str, what: str, kind: type[T]) -> T:
    if ":" not in name:
        raise SettingError(f"a {what} is your own, written module:name, got {name!r}: name the module too")
    found = by_python_name(name, what)
    if isinstance(found, type) and issubclass(found, kind):
        try:
            found = found()
        except TypeError as error:
            raise SettingError(
                f"{what} {name!r} is a class that is made without settings, and it takes some ({error}): name an object"
            ) from None
    if not isinstance(found, kind):
        raise SettingError(
            f"{what} {name!r} must be a fedloom.{kind.__name__}, got {found!r}: derive it from that class"
        )
    return found
