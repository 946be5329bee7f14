"""Roles of a table's columns: which are features, and which hold labels, targets, clients, parts and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.tables.table_words import TableWords

_FORM = "label, target, client, split, group, drop, categories and text"


@dataclass(frozen=True)
class Roles:
    """The columns of a table that are not plain features; every other column is one.

    Args:
        label: column of class labels; None where `targets` are there.
        targets: columns of numbers to predict.
        client: column of natural clients.
        split: column that says `train` or `test`.
        group: column of groups, whose rows stay on one side of a split.
        drop: columns that are left out.
        categories: columns of features that are read as words.
        text: column of texts, the one feature; the columns without a role are left out then.
    """

    label: str | None
    targets: tuple[str, ...]
    client: str | None
    split: str | None
    group: str | None
    drop: tuple[str, ...]
    categories: tuple[str, ...]
    text: str | None = None

    @classmethod
    def of(cls, said: TableWords) -> Roles:
        """Make roles of what a caller of `read_csv` names; a single name becomes a list, and numbers become text.

        Raises:
            ValueError: a column has two roles, both `label` and `target` are given, or `categories` beside a `text`.
        """
        targets = _texts(said.target)
        if targets and said.label is not None:
            raise ValueError(
                f"a table has classes, or targets that are no classes, got label={said.label} and "
                f"target={','.join(targets)}: leave one of them out"
            )
        single = (said.client, said.split, said.group, said.text)
        client, split, group, text = (None if name is None else str(name) for name in single)
        label = None if targets else "label" if said.label is None else str(said.label)
        made = cls(label, targets, client, split, group, _texts(said.drop), _texts(said.categories), text)
        if text is not None and made.categories:
            raise ValueError(
                f"a text is the one feature of its table, got categories={','.join(made.categories)} beside "
                f"text={text}: leave one of them out"
            )
        if (twice := first_repeated([*made.named, *made.drop, *made.categories])) is not None:
            raise ValueError(f"a column has one role, got {twice!r} in several of {_FORM}: name it once [FL-TABLE-008]")
        return made

    @property
    def words(self) -> list[str]:
        """The columns that are read as words, in the order label, client, split, group, text."""
        several = (self.label, self.client, self.split, self.group, self.text)
        return [name for name in several if name is not None]

    @property
    def named(self) -> list[str]:
        """The columns that every table must have, which are no features but for a text."""
        return [*self.words, *self.targets]

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of features that were named."""
        return self.categories if self.text is None else (self.text,)

    @property
    def others(self) -> list[str]:
        """The columns that were named and are no features."""
        return [name for name in (*self.named, *self.drop) if name != self.text]

    def dropped(self, header: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of a table that are left out: those that were named, beside a text all without a role."""
        return self.drop if self.text is None else tuple(name for name in header if name not in self.named)


def _texts(names: Any) -> tuple[str, ...]:
    """Return the names of columns as text; a single name becomes a tuple of it."""
    return tuple(str(name) for name in ([names] if isinstance(names, str | int) else names))


def first_repeated(names: Sequence[str]) -> str | None:
    """Return the first name that is there more than once.

    This takes linear time, since tables of genes have 20,000 columns.
    """
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)
