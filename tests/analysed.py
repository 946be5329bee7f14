"""Small real runs to analyse, and the numbers that analyses write."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom import analyses
from fedloom.analyses import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult
from fedloom.cli.main import main

COMMON = ["--clients", "6", "--cohort", "3", "--rounds", "3", "--epochs", "2", "--batch-size", "8", "--threads", "1"]


def images(n: int) -> tuple[Any, Any]:
    """Three classes, each with a bright band of its own."""
    y, rng = np.arange(n) % 3, np.random.default_rng(n)
    x = rng.integers(0, 120, (n, 16, 16))
    for i, c in enumerate(y):
        x[i, 5 * c : 5 * c + 4] += 100
    return x.astype(np.uint8), y


def maker(folder: Path) -> Callable[..., Path]:
    """`maker(folder)("fedntd", "--model", "lenet")`: the directory of a run, made once."""
    made = dict[tuple[str, ...], Path]()
    (x, y), (x_test, y_test) = images(150), images(60)
    np.savez(folder / "own.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)

    def make(*argv: str) -> Path:
        if argv not in made:
            made[argv] = folder / str(len(made))
            data = ["--data", str(folder / "own.npz"), "--partition", "shards:2"]
            assert main(["run", *argv[:1], *COMMON, *data, *argv[1:], "--out", str(made[argv])]) == 0
        return made[argv]

    return make


def rows(path: Path) -> list[dict[str, float | str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> float | str:
    try:
        return float(text or "nan")
    except ValueError:
        return text


def analyse(run: AnalysedRun, name: str, folder: Path) -> tuple[AnalysisResult, list[Path]]:
    """As the command does: with those that other packages offer."""
    return analyses.analyse(run, name, folder, analyses.every())


def written(run: AnalysedRun, name: str, folder: Path, table: str | None = None) -> list[dict[str, Any]]:
    """The rows of `table`.csv, or NAME.csv, of an analysis."""
    analyse(run, name, folder)
    return rows(folder / f"{table or name}.csv")


def close(row: dict[str, Any], **expected: Any) -> None:
    """Some cells of a row are what they should be."""
    assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-12)
