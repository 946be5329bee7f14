"""Pool the deviation of paired differences over the cells of the tables in which the runs of a comparison stand."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedloom.evaluate.paired_differences import Block, FalseAlarms, Noise, false_alarms, pooled
from fedloom_papers import recipes, tables
from fedloom_papers.reproduction.claims import Reading
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import Folders, Result, read

BySeed = Mapping[int, float]


def numbers(result: Result) -> BySeed:
    """Return the number of each seed by which a recipe is judged."""
    return result.numbers


def noise_of(compared: Sequence[Result], of: Callable[[Result], BySeed] = numbers) -> Noise | None:
    """Return the deviation of the difference of two cells of one seed; None where no two cells tell it.

    It is pooled over the cells of their column, since deviations differ tenfold between data sets; where no two of
    these have several seeds, over the columns of the tables. Where columns are compared, cells of a row are, over all
    rows of the tables. The number is that which is read of the first.
    """
    folders, asked = compared[0].folders, compared[0].recipe
    if folders is None:
        return None
    stand, named = ([where(r.recipe) for r in compared] for where in (_place, _name))
    by_place = len({at[:2] for at in stand}) == 1  # so a comparison that several tables have is the same in each
    cells = stand if by_place else named
    mine, across = tuple(dict.fromkeys(at[0] for at in cells)), len({at[1] for at in cells}) > 1
    here = None if across else cells[0][1]
    key = (by_place, mine, across, here, asked.measure, asked.reading, of)
    if key not in folders.noises:
        groups = _groups(folders, mine, by_place, across, asked.measure, asked.reading)
        near = pooled(_block(found, of) for (there, _), found in groups.items() if there == here)
        folders.noises[key] = near or pooled(_block(found, of) for found in groups.values())
    return folders.noises[key]


def false_alarms_of(table: str, folder: Path) -> list[FalseAlarms]:
    """Return how often the rule calls equal cells different (`false_alarms`), of each column that tells its noise."""
    asked = next(iter(recipes(table)))
    groups = _groups(Folders((folder,), None), (table,), True, False, asked.measure, asked.reading)
    by_column: dict[str, list[Block]] = {}
    for (column, _), cells in groups.items():
        by_column.setdefault(column, []).append(_block(cells, numbers))
    return [
        false_alarms(blocks, seed=zlib.crc32(f"{table}/{column}".encode()))  # of its own: else all err alike
        for column, blocks in by_column.items()
        if pooled(blocks)
    ]


def _place(r: Recipe) -> tuple[str, str, str]:
    """Return table, column and row of the runs of a cell, which tables may share."""
    table, column, row = r.place.split("/")
    return table, column, row


def _name(r: Recipe) -> tuple[str, str, str]:
    return r.table, r.column, r.row


def _groups(
    folders: Folders, mine: Sequence[str], by_place: bool, across: bool, measure: str, reading: Reading
) -> dict[tuple[str, str], list[Result]]:
    """Return the cells with several seeds in groups of one column (`across`: row) and equally changed settings."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for table in mine:
        for r in read(recipes(table) if table in tables() else [], folders.paths, folders.rounds):
            at = (_place if by_place else _name)(r.recipe)
            if at[0] == table and len(r.runs) > 1 and not r.failures:
                own = dataclasses.replace(r.recipe, measure=measure, reading=reading)
                changed = str(sorted(r.changed.items()))
                groups.setdefault((at[1 + across], changed), []).append(dataclasses.replace(r, recipe=own))
    return groups


def _block(cells: Sequence[Result], of: Callable[[Result], BySeed]) -> Block:
    """Return the numbers of cells with two seeds or more after as many rounds as all of their runs have."""
    until = min(run.rounds for r in cells for run in r.runs.values())
    found = {r.recipe.place: of(dataclasses.replace(r, until=until)) for r in cells}
    return {place: by_seed for place, by_seed in found.items() if len(by_seed) > 1}
