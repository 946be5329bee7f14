"""Five made-up hospitals, a table each: columns in another order, unlike sizes, gaps, patients with several visits."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZES = {"Bremen": 60, "Hamburg": 90, "Kiel": 24, "Luebeck": 40, "Rostock": 31}
COLUMNS = ["patient", "age", "sex", "creatinine", "diagnosis", "readmitted", "los_days"]
Row = dict[str, str]
Change = Callable[[list[Row]], None]


def write_table(path: Path, rows: list[Row], columns: list[str] | None = None, separator: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def hospitals(seed: int = 0) -> dict[str, list[Row]]:
    """The rows of each hospital."""
    rng = np.random.default_rng(seed)
    made = {}
    for site, size in SIZES.items():
        rows = []
        for _ in range(size):
            age = int(rng.integers(18, 95))
            row = {
                "patient": f"{site[0]}{rng.integers(0, size // 2)}",
                "age": str(age),
                "sex": str(rng.choice(["f", "m"])),
                "creatinine": f"{rng.normal(1, 0.2):.2f}",
                "diagnosis": str(rng.choice(["I10", "E11", "J44"])),
                "readmitted": "yes" if rng.random() < 0.2 + age / 200 else "no",
                "los_days": f"{rng.gamma(2, 1 + age / 50) + 0.1:.1f}",
            }
            for column in ("age", "sex", "creatinine", "diagnosis"):
                if rng.random() < 0.06:
                    row[column] = str(rng.choice(["", "NA"]))
            rows.append(row)
        made[site] = rows
    return made


def write_hospitals(folder: Path, seed: int = 0, change: dict[str, Change] | None = None) -> dict[str, list[Row]]:
    """Write a table of each hospital and return its rows; `change` edits those of some first."""
    folder.mkdir(exist_ok=True)
    made, rng = hospitals(seed), np.random.default_rng(seed)
    for site, rows in made.items():
        if change and site in change:
            change[site](rows)
        columns = list(rows[0])
        order = columns if site == "Bremen" else [columns[k] for k in rng.permutation(len(columns))]
        write_table(folder / f"{site}.csv", rows, order)
    return made


def write_whole(path: Path, made: dict[str, list[Row]]) -> Path:
    """Write all rows as one table, with a column `client`."""
    return write_table(path, [{**row, "client": site} for site, rows in made.items() for row in rows])
