"""Settings that have parts, in words.

They are what every client does locally (`local.lr`), and what an algorithm trains beside it (`distill.lr`). An
optimiser is a table of its kind and its fields, `optimiser = {kind = "adam", lr = 0.001}`, and its fields may stand
beside it: `local.lr`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fedloom.core.choices import field_types, settable
from fedloom.core.errors import SettingError
from fedloom.core.naming import by_python_name, is_python_name
from fedloom.core.optimiser import OPTIMISERS, Optimiser
from fedloom.experiments.coercion import coerce
from fedloom.wording import did_you_mean

P = TypeVar("P")


def parts(whole: Any) -> dict[str, Any]:
    """Return every part that words can set, by name."""
    out: dict[str, Any] = {}
    if isinstance(whole, Optimiser):
        if (word := word_of(whole)) is None:
            return {}  # one without a name stays what it is
        out["kind"] = word
    for name, kind in _fields(whole).items():
        value = getattr(whole, name)
        if isinstance(value, Optimiser):
            if table := parts(value):
                out |= {name: table.pop("kind"), **table}
        elif settable(kind):
            out[name] = value
    return out


def with_parts(whole: P, owner: str, given: Mapping[str, Any]) -> P:
    """Return `whole` with some parts changed at once; values may be text.

    An optimiser of another kind keeps what it has in common with the last.

    Raises:
        SettingError: there is no such part, or a value is of another type or out of range; says what there is.
    """
    if isinstance(whole, Optimiser):
        return _optimiser(whole, owner, given)  # type: ignore[return-value]
    own, optimiser = _fields(whole), getattr(whole, "optimiser", None)
    values: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    beside: list[str] = []
    for part, value in given.items():
        name, _, rest = part.partition(".")
        if name == "optimiser" and isinstance(optimiser, Optimiser):
            inner[rest or "kind"] = value
        elif part in own:
            values[part] = coerce(value, own[part], f"{owner}.{part}")
        else:
            beside.append(part)
    if isinstance(optimiser, Optimiser) and (inner or beside):
        optimiser = _of_kind(optimiser, f"{owner}.optimiser", inner)
        known = _fields(optimiser)
    else:
        known = {}
    for part in beside:
        if part not in known:
            which = f" with the optimiser {word_of(optimiser)}" if isinstance(optimiser, Optimiser) else ""
            there = [*own, *known]
            said = f"{owner} has no setting {part!r}{which}{did_you_mean(part, there)}"
            raise SettingError(f"{said}; it has {', '.join(there)} [FL-RUN-006]")
        inner[part] = coerce(given[part], known[part], f"{owner}.{part}")
    if inner and isinstance(optimiser, Optimiser):
        values["optimiser"] = _optimiser(optimiser, f"{owner}.optimiser", inner)
    return dataclasses.replace(whole, **values)  # type: ignore[type-var]


def _optimiser(before: Optimiser, owner: str, given: Mapping[str, Any]) -> Optimiser:
    """Return the optimiser with its kind and its fields changed, as far as they are given."""
    after = _of_kind(before, owner, given)
    known = _fields(after)
    values: dict[str, Any] = {}
    for part, value in given.items():
        if part in known:
            values[part] = coerce(value, known[part], f"{owner}.{part}")
        elif part != "kind":
            there = ["kind", *known]
            close = did_you_mean(part, there)
            raise SettingError(
                f"{owner} of kind {word_of(after)} has no field {part!r}{close}; it has {', '.join(there)}"
            )
    return dataclasses.replace(after, **values)


def _of_kind(before: Optimiser, owner: str, given: Mapping[str, Any]) -> Optimiser:
    """Return an optimiser of the kind that is given, which keeps of the last one what means the same in each."""
    if "kind" not in given or given["kind"] == word_of(before):
        return before
    kind = _named(given["kind"], owner)
    alike = {field.name for field in dataclasses.fields(Optimiser)} | {"weight_decay"}
    common = alike & {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: getattr(before, name) for name in common if hasattr(before, name)})


def _named(word: Any, owner: str) -> type[Optimiser]:
    """Return the optimiser of a word, or of `module:Class`."""
    if word in OPTIMISERS:
        return OPTIMISERS[word]
    if not isinstance(word, str) or ":" not in word:
        close = did_you_mean(word, OPTIMISERS) if isinstance(word, str) else ""
        raise SettingError(
            f"{owner} must be one of {', '.join(OPTIMISERS)}, or module:Class of your own, got {word!r}{close}"
        )
    found = by_python_name(word, owner)
    if not (isinstance(found, type) and issubclass(found, Optimiser)):
        raise SettingError(f"{owner} = {word!r} must be a class derived from fedloom.Optimiser, got {found!r}")
    return found


def word_of(optimiser: Optimiser) -> str | None:
    """Return the word that names the kind of an optimiser, or its `module:Class`; None if it has none."""
    kind = type(optimiser)
    if (word := next((word for word, one in OPTIMISERS.items() if one is kind), None)) is not None:
        return word
    word = f"{kind.__module__}:{kind.__qualname__}"
    return word if is_python_name(word) and kind.__module__ != "__main__" else None


def _fields(whole: Any) -> dict[str, Any]:
    """Return the types of the fields that can be given."""
    kinds = field_types(type(whole))
    return {field.name: kinds[field.name] for field in dataclasses.fields(whole) if field.init}
