"""Validation of settings against their type annotations: the words of a `Literal`, a number, a text."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, Optional, Self, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt
from pydantic import ConfigDict, InstanceOf, TypeAdapter, ValidationError

from fedloom.core.errors import SettingError
from fedloom.wording import did_you_mean

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Ge(1)]
WholeNumber = Annotated[int, Ge(0)]


class Grid:
    """Values of a setting that a comparison tries where it tunes each method, beside the bounds of an annotation.

        mu: Annotated[fl.NonNegative, fl.Grid(0.001, 0.01, 0.1, 1.0)] = 0.1

    They are those that the paper tries, unless the sentence beneath the setting says that they are ours.
    """

    def __init__(self, *values: Any) -> None:
        self.values = values


def grids(kind: type) -> dict[str, tuple[Any, ...]]:
    """Return the values of `Grid` of a class's fields that can be given, by their names, in the order of the fields."""
    hints, found = field_types(kind, bounds=True), {}
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        said = [m for m in getattr(hints[field.name], "__metadata__", ()) if isinstance(m, Grid)]
        if said and field.init:
            found[field.name] = said[-1].values
    return found


class StrictSettings:
    """A class that refuses unknown keyword arguments, and suggests the closest name."""

    def __new__(cls, *values: Any, **given: Any) -> Self:
        known = _settings(cls)  # type: ignore[arg-type]
        if known is not None and (unknown := [name for name in given if name not in known]):
            its = f"{unknown[0]!r}{did_you_mean(unknown[0], known)}"
            raise SettingError(f"{cls.__name__} has no setting {its}; it has {', '.join(known)} [FL-METHOD-004]")
        return super().__new__(cls)


@functools.cache
def _settings(kind: type) -> tuple[str, ...] | None:
    """Return the names that a class is made with; None: any.

    Raises:
        SettingError: the class, or one that it derives from, annotates a setting and is no dataclass, so that nobody
            could set it and no run would write it down.
    """
    for owner in kind.__mro__:
        said = {} if "__dataclass_params__" in vars(owner) else inspect.get_annotations(owner)
        open_ones = [name for name, its in said.items() if not name.startswith("_") and "ClassVar" not in str(its)]
        if open_ones and issubclass(owner, StrictSettings):
            raise SettingError(
                f"the settings of a class are the fields of a dataclass, and {owner.__name__} has {open_ones[0]!r} "
                f"without being one: decorate {owner.__name__} with @dataclass(frozen=True, kw_only=True), or annotate "
                "what is no setting as ClassVar"
            )
    found = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else tuple(p.name for p in found)


def field_types(kind: type, bounds: bool = False) -> Mapping[str, Any]:
    """Return the types of a class's fields, inherited ones too.

    A type is `Any` where a class names what only type checkers import. With `bounds`, types have their bounds,
    `Annotated[float, Ge(0)]`.
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

    Numbers are finite, and True is not a number. What an annotation leaves open is not checked. `Annotated`: its bounds
    hold.

    Raises:
        SettingError: it is of another type; `name` says what the value is for.
    """
    read(value.item() if isinstance(value, np.generic) else value, kind, name)


def read(value: Any, kind: Any, name: str, text: bool = False) -> Any:
    """Return the value as this type has it, from a number or tuple of Python, or (`text`) from typed text.

    Raises:
        SettingError: it is of another type; `name` says what the value is for.
    """
    if (
        get_origin(kind) is tuple
        and isinstance(value, tuple)
        and len(each := part_types(kind, len(value))) == len(value)
    ):
        return tuple(read(part, its, name, text) for part, its in zip(value, each, strict=True))
    try:
        return _adapter(kind).validate_python(value, strict=not text)
    except ValidationError as error:
        rule = _rule(error, kind)
        remedy = _REMEDIES.get(rule, "") if text else ""
        if remedy and "," in str(value) and "-" not in name and " " not in name:
            remedy += f"; several values are tried by a sweep, fedloom sweep --over {name}={value}"
        raise SettingError(f"{name} must be {rule}, got {error.errors()[0]['input']!r}{remedy} [FL-RUN-008]") from None


def part_types(kind: Any, count: int) -> tuple[Any, ...]:
    """Return the types of a tuple's parts; of one that may be of any length, for `count` parts."""
    several = get_args(kind)
    return several[:1] * count if ... in several else several


def without_none(kind: Any) -> Any:
    """Return the type beside None, or the type itself."""
    several = get_args(kind)
    return next(k for k in several if k is not NoneType) if NoneType in several else kind


def settable(kind: Any) -> bool:
    """Return whether words can give a value of this type."""
    each = [k for k in get_args(kind) if k not in (NoneType, ...)]
    if get_origin(kind) is Annotated:
        return settable(each[0])
    if get_origin(kind) is tuple:
        return all(map(settable, each))
    if NoneType in get_args(kind):
        return len(each) == 1 and settable(each[0])
    return get_origin(kind) is Literal or kind in (bool, int, float, str)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    closed = _closed(kind)
    return TypeAdapter(closed, config=ConfigDict(allow_inf_nan=False) if closed is kind else None)


def _closed(kind: Any) -> Any:
    """Return the type as pydantic is to check it.

    A type that words can give is checked as it is, an object by its class alone, and any other type not at all.
    """
    if settable(kind):
        return kind
    if NoneType in get_args(kind) and len(get_args(kind)) == 2:
        return Optional[_closed(without_none(kind))]  # noqa: UP045  # of what is made here
    plain = isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)
    return Annotated[kind, InstanceOf()] if plain and get_origin(kind) is None else Any  # type: ignore[type-arg]


_TYPES = {"int": "int", "float": "float", "bool": "bool", "string": "str"}
_REMEDIES = {
    "of type int": ": write one whole number, such as 3; of what is counted, not a share of it",
    "of type float": ": write one number, such as 0.1",
    "of type bool": ": write true or false",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def _rule(error: ValidationError, kind: Any) -> str:
    """Return the rule that a value must follow, in the words of all settings."""
    what: Any = error.errors()[0]
    kind = without_none(kind)
    if what["type"] == "finite_number":
        return "finite"
    if what["type"] == "literal_error":
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if what["type"] == "is_instance_of":
        return f"of type {what['ctx']['class']}"
    if known := _TYPES.get(what["type"].partition("_")[0]):
        return f"of type {known}"
    if get_origin(kind) is Annotated:
        marks = [bound for bound in get_args(kind)[1:] if dataclasses.is_dataclass(bound)]
        bounds = [pair for bound in marks for pair in dataclasses.asdict(bound).items()]  # type: ignore[arg-type]
        return " and ".join(f"{_SIGNS[side]} {at}" for side, at in bounds)
    return f"a tuple of {'' if ... in get_args(kind) else f'{len(get_args(kind))} '}values"
