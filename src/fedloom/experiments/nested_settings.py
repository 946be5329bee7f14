"""Settings that have parts, in words.

They are what every client does locally (`local.lr`), and what an algorithm trains beside it (`distill.lr`). An
optimiser is a table of its kind and its fields, `optimiser = {kind = "adam", lr = 0.001}`, and an optimiser within it
is one again. Where nothing lies within it, its fields may stand beside it: `local.lr`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from fedloom.core.choices import field_types, settable
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import SGD, Adam, Cosine, Local, Optimiser
from fedloom.experiments.coercion import coerce
from fedloom.wording import did_you_mean

P = TypeVar("P")

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam, "cosine": Cosine}


def parts(whole: Any) -> dict[str, Any]:
    """Return every part that words can set, by name."""
    out: dict[str, Any] = {}
    if isinstance(whole, Optimiser):
        if not (word := _word(whole)):
            return {}  # one without a name stays what it is
        out["kind"] = word
    for name, kind in _fields(whole).items():
        value = getattr(whole, name)
        if isinstance(value, Optimiser):
            table = parts(value)
            beside = table and not isinstance(whole, Optimiser) and not any(map(_is_table, table.values()))
            out |= {name: table.pop("kind"), **table} if beside else {name: table} if table else {}
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
        kinds = [name for name, kind in OPTIMISERS.items() if not (isinstance(whole, Local) and kind is Cosine)]
        optimiser = _of_kind(optimiser, f"{owner}.optimiser", inner, kinds)
        known = _fields(optimiser) if _word(optimiser) else {}
    else:
        known = {}
    for part in beside:
        if part not in known:
            which = f" with the optimiser {_word(optimiser)}" if known else ""
            there = [*own, *known]
            raise SettingError(
                f"{owner} has no setting {part!r}{which}{did_you_mean(part, there)}; it has {', '.join(there)}"
            )
        inner[part] = coerce(given[part], known[part], f"{owner}.{part}")
    if inner and isinstance(optimiser, Optimiser):
        values["optimiser"] = _optimiser(optimiser, f"{owner}.optimiser", inner)
    return dataclasses.replace(whole, **values)  # type: ignore[type-var]


def _optimiser(before: Optimiser, owner: str, given: Mapping[str, Any]) -> Optimiser:
    """Return the optimiser with its kind and its fields changed, as far as they are given.

    Fields of an optimiser within it begin with its name.
    """
    after = _of_kind(before, owner, given)
    known, within = _fields(after), dict[str, dict[str, Any]]()
    values: dict[str, Any] = {}
    for part, value in given.items():
        name, _, rest = part.partition(".")
        if part == "kind":
            continue
        if isinstance(getattr(after, name, None), Optimiser) and name in known:
            within.setdefault(name, {})[rest or "kind"] = value
        elif part in known:
            values[part] = coerce(value, known[part], f"{owner}.{part}")
        else:
            there = ["kind", *known]
            close = did_you_mean(part, there)
            raise SettingError(
                f"{owner} of kind {_word(after)} has no field {part!r}{close}; it has {', '.join(there)}"
            )
    values |= {name: _optimiser(getattr(after, name), f"{owner}.{name}", fields) for name, fields in within.items()}
    return dataclasses.replace(after, **values)


def _of_kind(
    before: Optimiser, owner: str, given: Mapping[str, Any], kinds: Sequence[str] = tuple(OPTIMISERS)
) -> Optimiser:
    """Return an optimiser of the kind that is given, with what it has in common with the last.

    A schedule is a schedule of the last optimiser.
    """
    if "kind" not in given:
        return before
    name = coerce(given["kind"], Literal[tuple(kinds)], owner)
    kind = OPTIMISERS[name]
    if type(before) is kind:
        return before
    if kind is Cosine:
        if "steps" not in given:
            raise SettingError(f"{owner} of kind cosine needs the steps after which its rate is 0: give {owner}.steps")
        return Cosine(of=before, steps=coerce(given["steps"], int, f"{owner}.steps"))
    before = before.of if isinstance(before, Cosine) else before
    common = {field.name for field in dataclasses.fields(kind)} & {field.name for field in dataclasses.fields(before)}
    return kind(**{name: getattr(before, name) for name in common})


def _word(optimiser: Any) -> str | None:
    return next((word for word, kind in OPTIMISERS.items() if type(optimiser) is kind), None)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _fields(whole: Any) -> dict[str, Any]:
    """Return the types of the fields that can be given."""
    kinds = field_types(type(whole))
    return {field.name: kinds[field.name] for field in dataclasses.fields(whole) if field.init}
