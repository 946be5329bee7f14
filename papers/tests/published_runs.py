"""Recipes of published tables, and runs of theirs made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedloom_papers import recipes
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import Result, read


def cell(table: str, column: str, row: str) -> Recipe:
    (found,) = (r for r in recipes(table) if (r.column, r.row) == (column, row))
    return found


def made(
    folder: Path, r: Recipe, seed: int, accuracy: float, rounds: int = 200, forgetting: float = 0.5, **changes: Any
) -> Path:
    """A run's files, with this accuracy (in %) after every round."""
    place = folder / r.place / f"seed-{seed}"
    place.mkdir(parents=True)
    experiment = r.with_data("/some/where/data", seed)
    for key, value in changes.items():
        experiment = experiment.changed(key.replace("__", "."), value)
    (place / "settings.json").write_text(json.dumps(experiment.described()))
    lines = [
        {"round": t, r.measure: accuracy / 100 if t else 0.1, **({"forgetting": forgetting} if t > 1 else {})}
        for t in range(rounds + 1)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "timing.jsonl").write_text('{"round": 0, "seconds": {"evaluate": 0.5}}\n')
    return place


def result(r: Recipe, folder: Path, rounds: int | None = None) -> Result:
    (found,) = read([r], [folder], rounds)
    return found
