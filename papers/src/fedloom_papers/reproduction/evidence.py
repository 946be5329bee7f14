"""Numbers of analyses that stand beside a run, which the page of results tells and `--export` copies with it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager

from fedloom.core.errors import SettingError
from fedloom_papers.reproduction.results import Run

Rows = list[dict[str, str]]


def place(table: str) -> str:
    """Return where `fedloom analyse RUN TABLE` writes the table of its own name, in the folder of the run."""
    return f"analysis/{table}.csv"


@contextmanager
def rows_of(run: Run, table: str) -> Iterator[Rows | None]:
    """Yield the rows of that table, to be read within the block; None where the run was not analysed so.

    Raises:
        SettingError: the file, or what the block reads in it, is not what the analysis wrote.
    """
    path = run.folder / place(table)
    try:
        found = None
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                found = list(csv.DictReader(file))
        yield found
    except (LookupError, TypeError, ValueError, StopIteration, csv.Error) as error:
        raise SettingError(
            f"{path} is not what {table} wrote ({error!r}): fedloom analyse {run.folder} {table} writes it anew"
        ) from error
