"""Pool the deviation of paired differences over the cells of the tables in which the runs of a comparison stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedloom.evaluate.paired_differences import Block, Noise, false_alarms, pooled
from fedloom.papers import recipes, tables
from fedloom.papers.reproduction.claims import Reading
from fedloom.papers.reproduction.results import Folders, Result, read

BySeed = Mapping[int, float]


def numbers(result: Result) -> BySeed:
    """Return the number of each seed by which a recipe is judged."""
    return result.numbers


def noise_of(compared: Sequence[Result], of: Callable[[Result], BySeed] = numbers) -> Noise | None:
    """Return the deviation of the difference of two cells of one seed; None where no two cells tell it.

    Cells of one column are compared as those of a column are, others as those of a row, over all tables in which the
    runs stand, in the number that is read of the first.
    """
    folders, asked = compared[0].folders, compared[0].recipe
    if folders is None:
        return None
    mine = tuple(dict.fromkeys(r.recipe.place.partition("/")[0] for r in compared))
    across = len({_cell(r)[0] for r in compared}) > 1
    key = (mine, across, asked.measure, asked.reading, of)
    if key not in folders.noises:
        folders.noises[key] = pooled(
            block
            for cells in _groups(folders, mine, across, asked.measure, asked.reading).values()
            if len(block := _block(cells, of)) > 1
        )
    return folders.noises[key]


def false_alarms_of(table: str, folder: Path) -> float | None:
    """Return how often the rule calls equal cells of a table different (`false_alarms`).

    It is None where no two cells of a column have several seeds.
    """
    asked = next(iter(recipes(table)))
    groups = _groups(Folders((folder,), None), (table,), False, asked.measure, asked.reading)
    found = [block for cells in groups.values() if len(block := _block(cells, numbers)) > 1]
    return false_alarms(found) if found else None


def _cell(r: Result) -> tuple[str, str]:
    """Return column and row of the runs of a cell, which tables may share."""
    _, column, row = r.recipe.place.split("/")
    return column, row


def _groups(
    folders: Folders, mine: Sequence[str], across: bool, measure: str, reading: Reading
) -> dict[tuple[str, str], list[Result]]:
    """Return the cells with several seeds in groups of one column (`across`: row) and equally changed settings."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for table in mine:
        for r in read(recipes(table) if table in tables() else [], folders.paths, folders.rounds):
            if r.recipe.place.partition("/")[0] == table and len(r.runs) > 1 and not r.failures:
                own = dataclasses.replace(r.recipe, measure=measure, reading=reading)
                changed = str(sorted(r.changed.items()))
                groups.setdefault((_cell(r)[across], changed), []).append(dataclasses.replace(r, recipe=own))
    return groups


def _block(cells: Sequence[Result], of: Callable[[Result], BySeed]) -> Block:
    """Return the numbers of cells with two seeds or more after as many rounds as all of their runs have."""
    until = min(run.rounds for r in cells for run in r.runs.values())
    found = {r.recipe.place: of(dataclasses.replace(r, until=until)) for r in cells}
    return {place: by_seed for place, by_seed in found.items() if len(by_seed) > 1}
