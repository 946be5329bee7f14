"""Schema that examples share where one model reads them: columns and what they hold, classes, targets and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fedloom.wording import did_you_mean, some_of

SHOWN = 5  # names in a message
_PLACES = 4  # in a difference
_REMEDIES = {
    "classes": "give them the same names (the values of the label column, the folders of images), or number them from "
    "0 in all and set data.classes in the settings",
    "targets": "name the same columns of all files, as label= or target=",
    "columns": "give all files the same columns in the same order; where prepare=standard makes columns of words, each "
    "needs the same words in its training rows",
}


_INPUTS = {"shape": "give the same features in the same order, or images of the same size"}
MEND = "mend the column, or read it as words everywhere (categories=)"  # where it holds numbers and words


@dataclass(frozen=True)
class Schema:
    """Columns, classes, targets and inputs of some examples: files, devices, rows of a server, new rows.

    Args:
        where: what has them, as a message says it: "on Kiel", "in new.csv".
        columns: names of the features; nothing if they have none.
        classes: names of the classes.
        kind: of the targets, in words.
        targets: names of targets that are no classes.
        inputs: what else a network is given, by its name, such as the shape.
        holds: of columns, whether they have numbers or words, and an example; nothing of a column of gaps alone.
    """

    where: str
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    kind: str = ""
    targets: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    holds: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def differs_from(self, other: Schema) -> str | None:
        """Return the first difference to others, which are to be alike in all and in order; None if there is none.

        Args:
            other: of the examples that this one is compared with.
        """
        if self.kind != other.kind:
            told = f"{other.kind} {other.where} and {self.kind} {self.where}"
            return f"targets must be of the same kind, got {told}: give one kind alone, in tables by label= or target="
        for name, remedy in _REMEDIES.items():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                told = f"{_shown(theirs, ours, other.where)}, {_shown(ours, theirs, self.where, second=True)}"
                return f"{name} must have the same names in the same order, got {told}: {remedy}"
        for name, theirs in other.inputs.items():
            if (ours := self.inputs[name]) != theirs:
                told = f"{theirs} {other.where} and {ours} {self.where}"
                return f"examples must have the same {name}, got {told}: {_INPUTS.get(name, 'prepare the files alike')}"
        return None

    def lacks_of(self, other: Schema, may_have_more: bool = False) -> str | None:
        """Return what a table, whose columns may be in any order, has less, more or of another kind; None if nothing.

        Args:
            other: of the table that a model was trained on.
            may_have_more: other columns are left out, and need not be named.
        """
        lacks, extra = _apart(self.columns, other.columns)
        extra = [] if may_have_more else extra
        if not (lacks or extra):
            return not_alike([other, self], other.columns)
        remedies = [f"name columns as {other.where}"] * bool(lacks)
        remedies += [f"leave out what is no feature: ?drop={','.join(extra[:SHOWN])}"] * bool(extra)
        return (
            f"columns must have the names {_quoted(other.columns)}, in any order, got "
            f"{_besides(self.columns, other.columns, may_have_more)} {self.where}: {'; '.join(remedies)} [FL-TABLE-003]"
        )


def differences(schemas: Sequence[Schema], columns: Sequence[str]) -> Iterator[str]:
    """Yield what tables, whose columns may be in any order, lack of some columns or have besides, with where.

    Args:
        schemas: of the tables.
        columns: those that all must have.
    """
    told: dict[str, list[Schema]] = {}
    for one in schemas:
        told.setdefault(_besides(one.columns, columns), []).append(one)
    for text, found in told.items():
        if text:
            yield f"{text} {_places(found)}"


def mixed(schemas: Sequence[Schema], columns: Sequence[str]) -> Iterator[str]:
    """Yield each column that holds numbers in some tables and words in others, with what it holds where.

    Args:
        schemas: of the tables.
        columns: those that are compared.
    """
    for name in columns:
        kinds: dict[str, list[Schema]] = {}
        for one in schemas:
            if name in one.holds:
                kinds.setdefault(one.holds[name][0], []).append(one)
        if len(kinds) > 1:
            told = [
                f"{kind} {_places(found)}" + (f" ({example})" if (example := found[0].holds[name][1]) else "")
                for kind, found in kinds.items()
            ]
            yield f"{name!r:.80} with {' and '.join(told)}"


def not_alike(schemas: Sequence[Schema], columns: Sequence[str]) -> str | None:
    """Return the first column that holds numbers in some tables and words in others; None if there is none.

    Args:
        schemas: of the tables.
        columns: those that are compared.
    """
    told = next(mixed(schemas, columns), None)
    return told and f"a column must hold numbers or words, the same everywhere, got {told}: {MEND}"


def _apart(names: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return wanted names that are not there, and names that nobody wants."""
    known, there = {*wanted}, {*names}
    return [name for name in wanted if name not in there], [name for name in names if name not in known]


def _besides(names: Sequence[str], wanted: Sequence[str], may_have_more: bool = False) -> str:
    """Return what is missing and what is there besides; "" where it is neither."""
    lacks, extra = _apart(names, wanted)
    told = [f"no {name!r:.80}{did_you_mean(name, extra)}" for name in lacks[:SHOWN]]
    told += [f"and {len(lacks) - SHOWN} more missing"] * (len(lacks) > SHOWN)
    told += [f"{_quoted(extra)} besides"] * bool(extra and not may_have_more)
    return ", ".join(told)


def _places(found: Sequence[Schema]) -> str:
    """Return where some examples are: "in Bremen, Kiel and 3 more"."""
    word, _, _ = found[0].where.partition(" ")
    return f"{word} {some_of([one.where.removeprefix(f'{word} ') for one in found], _PLACES)}"


def _quoted(names: Sequence[str]) -> str:
    """Return the first of some names, which strangers may have given."""
    return some_of(names, SHOWN, say=lambda name: f"{name!r:.80}")


def _shown(names: Sequence[str], others: Sequence[str], where: str, second: bool = False) -> str:
    """Return names from where they first differ from others, with where they are."""
    start = next(i for i, (a, b) in enumerate(zip_longest(names, others)) if a != b)
    after = f"from number {start} on, " if start and not second else ""
    return f"{after}{_quoted(names[start:]) or ('nothing more' if start else 'no names')} {where}"
