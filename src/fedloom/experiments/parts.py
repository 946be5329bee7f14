"""Settings that have parts, in words: what every client does locally (`local.lr`), and what an algorithm trains beside
it (`distill.lr`). The parts of an optimiser stand among them, and `optimiser` says which one it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from fedloom.core.choices import field_types
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import SGD, Adam, Optimiser
from fedloom.experiments.words import coerce, meant, settable

P = TypeVar("P")

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam}
OptimiserName = Literal["sgd", "adam"]


def parts(whole: Any) -> dict[str, Any]:
    """Every part that words can set, by name."""
    out: dict[str, Any] = {}
    for name, kind in _fields(whole).items():
        value = getattr(whole, name)
        if isinstance(value, Optimiser):
            if word := _word(value):  # one without stays what it is
                out |= {name: word} | parts(value)
        elif settable(kind):
            out[name] = value
    return out


def with_parts(whole: P, owner: str, given: Mapping[str, Any]) -> P:
    """With some parts changed at once; values may be text. Another optimiser keeps what it has in common with the last.

    Raises:
        SettingError: there is no such part, or a value is of another type or out of range; says what there is.
    """
    optimiser, own = getattr(whole, "optimiser", None), dict(_fields(whole))
    inner: dict[str, Any] = {}
    if isinstance(optimiser, Optimiser):
        own["optimiser"] = OptimiserName
        if "optimiser" in given:
            kind = OPTIMISERS[coerce(given["optimiser"], OptimiserName, f"{owner}.optimiser")]
            if type(optimiser) is not kind:
                common = parts(optimiser).keys() & {field.name for field in dataclasses.fields(kind)}
                optimiser = kind(**{name: getattr(optimiser, name) for name in common})
        inner = _fields(optimiser) if _word(optimiser) else {}
    for part in given:
        if part not in own and part not in inner:
            which = f" with the optimiser {_word(optimiser)}" if inner else ""
            known = [*own, *inner]
            raise SettingError(f"{owner} has no setting {part!r}{which}{meant(part, known)}; it has {', '.join(known)}")
    values = {part: coerce(v, (own | inner)[part], f"{owner}.{part}") for part, v in given.items()}
    if inner:
        changed = {part: values.pop(part) for part in given if part in inner}
        values["optimiser"] = dataclasses.replace(optimiser, **changed)  # type: ignore[type-var]
    return dataclasses.replace(whole, **values)  # type: ignore[type-var]


def _word(optimiser: Optimiser | None) -> str | None:
    return next((word for word, kind in OPTIMISERS.items() if type(optimiser) is kind), None)


def _fields(whole: Any) -> dict[str, Any]:
    """The types of the fields that can be given."""
    kinds = field_types(type(whole))
    return {field.name: kinds[field.name] for field in dataclasses.fields(whole) if field.init}
