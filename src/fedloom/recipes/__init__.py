"""Settings that are known to give something, with what they give."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fedloom.core.errors import SettingError
from fedloom.experiments.words import meant
from fedloom.recipes import fedntd
from fedloom.recipes.fedntd_tables import ABOUT as TABLES
from fedloom.recipes.recipe import Recipe

__all__ = ["TABLES", "Recipe", "find", "recipes"]


def recipes(table: str) -> list[Recipe]:
    """A recipe for each cell of a published table; those that read the settings otherwise are marked as variants.

    Raises:
        SettingError: there is no such table.
    """
    if table not in TABLES:
        raise SettingError(f"unknown table {table!r}{meant(table, TABLES)}; there are {', '.join(TABLES)}")
    return list(_all()[table])


def find(table: str, only: Sequence[str] = (), methods: Sequence[str] = ()) -> list[Recipe]:
    """The recipes of a table in some columns and rows; nothing named is everything but the variants.

    `only`: columns (`cifar10-s2`), or how their names begin (`cifar10`). `methods`: rows (`fedntd`, `kd_ntd-0.3`,
    `fedprox-config`), or how those of a method begin (`kd_ntd`).

    Raises:
        SettingError: there is no such table, column or row.
    """
    found = recipes(table)
    for what, asked, known in (
        ("column", only, dict.fromkeys(r.column for r in found)),
        ("method", methods, dict.fromkeys(r.row for r in found)),
    ):
        for name in asked:
            if not any(_begins(k, name) for k in known):
                raise SettingError(f"{table} has no {what} {name!r}{meant(name, known)}; it has {', '.join(known)}")
    return [
        r
        for r in found
        if (not only or any(_begins(r.column, name) for name in only))
        and (r.row in methods if r.variant else not methods or any(_begins(r.row, name) for name in methods))
    ]


def _begins(name: str, with_: str) -> bool:
    return name == with_ or name.startswith(f"{with_}-")


@functools.cache
def _all() -> dict[str, list[Recipe]]:
    return fedntd.recipes()
