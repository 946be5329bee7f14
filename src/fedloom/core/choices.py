"""Settings are what their annotations say: the list of a `Literal`, a number, a text; and this is the check."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import sys
from collections.abc import Mapping
from numbers import Integral, Real
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from fedloom.core.errors import SettingError
from fedloom.core.naming import meant


@dataclasses.dataclass(frozen=True)
class Ge:
    """Beside the type of a setting, `Annotated[float, Ge(0)]`: at least `bound`."""

    bound: float
    sign = ">="
    holds = staticmethod(operator.ge)


class Gt(Ge):
    """Greater than `bound`."""

    sign = ">"
    holds = staticmethod(operator.gt)


class Le(Ge):
    """At most `bound`."""

    sign = "<="
    holds = staticmethod(operator.le)


class Lt(Ge):
    """Less than `bound`."""

    sign = "<"
    holds = staticmethod(operator.lt)


Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
WholeNumber = Annotated[int, Ge(0)]


class Known:
    """A class whose settings have names: one that it lacks is refused with the one that may be meant."""

    def __new__(cls, *values: Any, **given: Any) -> Self:
        known = _settings(cls)  # type: ignore[arg-type]
        if known is not None and (unknown := [name for name in given if name not in known]):
            raise SettingError(
                f"{cls.__name__} has no setting {unknown[0]!r}{meant(unknown[0], known)}; it has {', '.join(known)}"
            )
        return super().__new__(cls)


@functools.cache
def _settings(kind: type) -> tuple[str, ...] | None:
    """The names that a class is made with; None: any."""
    found = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else tuple(p.name for p in found)


def field_types(kind: type, bounds: bool = False) -> Mapping[str, Any]:
    """The types of a class's fields, inherited ones too; `Any` where one names what only type checkers import.

    With their `bounds` if asked for, `Annotated[float, Ge(0)]`.
    """
    return _field_types(kind, bounds)


@functools.cache
def _field_types(kind: type, bounds: bool) -> Mapping[str, Any]:
    out: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        known = getattr(sys.modules.get(owner.__module__), "__dict__", {})
        for name, said in inspect.get_annotations(owner).items():
            try:  # one by one: what a class of somebody else's leaves open must not hide the others
                holder = type(owner.__name__, (), {"__annotations__": {name: said}})
                out |= get_type_hints(holder, known, include_extras=bounds)
            except NameError:
                out[name] = Any
    return MappingProxyType(out)


def check_choices(settings: Any) -> None:
    """Check each field of a dataclass against its annotation; see `check`.

    Raises:
        SettingError: a value is not what the annotation says.
    """
    hints = field_types(type(settings), bounds=True)
    for field in dataclasses.fields(settings):
        check(getattr(settings, field.name), hints[field.name], field.name)


def check(value: Any, kind: Any, name: str) -> None:
    """Check one value against a type as an annotation has it: a class, a `Literal`, a tuple of these, or None beside.

    Numbers are finite, and True is none. What an annotation leaves open is not checked. `Annotated`: its bounds hold.

    Raises:
        SettingError: it is of another type; `name` says what the value is for.
    """
    several = get_args(kind)
    if NoneType in several:
        others = [k for k in several if k is not NoneType]
        if value is not None and len(others) == 1:
            check(value, others[0], name)
    elif get_origin(kind) is Annotated:
        check(value, several[0], name)
        bounds = [bound for bound in several[1:] if isinstance(bound, Ge)]
        if not all(bound.holds(value, bound.bound) for bound in bounds):
            rule = " and ".join(f"{bound.sign} {bound.bound}" for bound in bounds)
            raise SettingError(f"{name} must be {rule}, got {value!r}")
    elif get_origin(kind) is Literal:
        if value not in several:
            raise SettingError(f"{name} must be one of {', '.join(map(str, several))}, got {value!r}")
    elif get_origin(kind) is tuple:
        each = several[:1] * len(value) if several[1:] == (...,) and isinstance(value, tuple) else several
        if not isinstance(value, tuple) or len(value) != len(each):
            count = "values" if several[1:] == (...,) else f"{len(several)} values"
            raise SettingError(f"{name} must be a tuple of {count}, got {value!r}")
        for part, its in zip(value, each, strict=True):
            check(part, its, name)
    elif (
        kind is not Any
        and isinstance(kind, type)
        and get_origin(kind) is None
        and not getattr(kind, "_is_protocol", False)
    ):
        fits: Any = {int: Integral, float: Real}.get(kind, kind)
        if not isinstance(value, fits) or (isinstance(value, bool) and kind in (int, float)):
            raise SettingError(f"{name} must be of type {kind.__name__}, got {value!r}")
        if kind is float and not math.isfinite(float(value)):
            raise SettingError(f"{name} must be finite, got {value!r}")
