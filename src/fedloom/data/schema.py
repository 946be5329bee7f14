"""Schema that examples share where one model reads them: columns, classes, targets and inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fedloom.wording import did_you_mean, some_of

SHOWN = 5  # names in a message
_REMEDIES = {
    "classes": "give them the same names (the values of the label column, the folders of images), or number them from "
    "0 in all and set data.classes in the settings",
    "targets": "name the same columns of all files, as label= or target=",
    "columns": "give all files the same columns in the same order; where prepare=standard makes columns of words, each "
    "needs the same words in its training rows",
}


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
    """

    where: str
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    kind: str = ""
    targets: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def differs_from(self, other: Schema) -> str | None:
        """Return the first difference to others, which are to be alike in all and in order; None if there is none.

        Args:
            other: of the examples that this one is compared with.
        """
        if self.kind != other.kind:
            told = f"{other.kind} {other.where} and {self.kind} {self.where}"
            return f"targets must be of the same kind, got {told}: {_REMEDIES['targets']}"
        for name, remedy in _REMEDIES.items():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                told = f"{_shown(theirs, ours, other.where)}, {_shown(ours, theirs, self.where, second=True)}"
                return f"{name} must have the same names in the same order, got {told}: {remedy}"
        for name, theirs in other.inputs.items():
            if (ours := self.inputs[name]) != theirs:
                told = f"{theirs} {other.where} and {ours} {self.where}"
                return f"examples must have the same {name}, got {told}: prepare the files alike"
        return None

    def lacks_of(self, other: Schema) -> str | None:
        """Return what a table, whose columns may be in any order, has less or more than another; None if nothing.

        Args:
            other: of the table that a model was trained on.
        """
        lacks = [name for name in other.columns if name not in {*self.columns}]
        extra = [name for name in self.columns if name not in {*other.columns}]
        if not (lacks or extra):
            return None
        said = [f"no {name!r}{did_you_mean(name, extra)}" for name in lacks[:SHOWN]]
        said += [f"and {len(lacks) - SHOWN} more missing"] * (len(lacks) > SHOWN)
        said += [f"{_quoted(extra)} besides"] * bool(extra)
        remedies = [f"name columns as {other.where}"] * bool(lacks)
        remedies += [f"leave out what is no feature: ?drop={','.join(extra[:SHOWN])}"] * bool(extra)
        return (
            f"columns must have the names {_quoted(other.columns)}, in any order, got {', '.join(said)} {self.where}: "
            + "; ".join(remedies)
        )


def _quoted(names: Sequence[str]) -> str:
    """Return the first of some names, which strangers may have given."""
    return some_of(names, SHOWN, say=lambda name: f"{name!r:.80}")


def _shown(names: Sequence[str], others: Sequence[str], where: str, second: bool = False) -> str:
    """Return names from where they first differ from others, with where they are."""
    start = next(i for i, (a, b) in enumerate(zip_longest(names, others)) if a != b)
    after = f"from number {start} on, " if start and not second else ""
    return f"{after}{_quoted(names[start:]) or ('nothing more' if start else 'no names')} {where}"
