"""Class preference of the last hidden layer's neurons under FedAvg and FedNTD, from runs of Table 2 (figure 17)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.class_preference import AGGREGATED, RECEIVED, draw, kept_share, preferences_of
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom_papers import recipes
from fedloom_papers.reproduction.evidence import rows_of
from fedloom_papers.reproduction.results import read

TABLE, FIGURE, ANALYSIS = "fedntd-table2", "fedntd-class-preference", "class-preference"
METHODS = {"fedavg": "FedAvg", "fedntd": "FedNTD"}
COLUMNS = {"cifar10-iid": "IID", "cifar10-s2": "two shards a client", "cifar10-lda0.05": "LDA, alpha = 0.05"}


def class_preferences(folders: Sequence[Path]) -> AnalysisResult:
    """Compare the classes that neurons of the last hidden layer prefer under FedAvg and FedNTD (figure 17)."""
    found: dict[tuple[str, str], tuple[int, dict[str, npt.NDArray[np.int64]]]] = {}
    for r in read(recipes(TABLE), folders):
        for seed, run in r.runs.items():
            with rows_of(run, ANALYSIS) as rows:
                if rows is not None and (r.recipe.column, r.recipe.row) not in found:  # of the lowest seed
                    found[r.recipe.column, r.recipe.row] = seed, preferences_of(rows)
    if not found:
        raise SettingError(
            f"{', '.join(map(str, folders))} holds no runs of {TABLE} with {ANALYSIS}.csv; fedloom analyse RUN "
            f"{ANALYSIS} makes it in the folder of a run"
        )
    columns = [column for column in COLUMNS if any((column, row) in found for row in METHODS)]
    methods = [row for row in METHODS if any((column, row) in found for column in columns)]
    maps = {
        f"{METHODS[row]}, {COLUMNS[column]}": found[column, row][1] if (column, row) in found else {}
        for row in methods
        for column in columns
    }
    summary = []
    for (column, row), (seed, models) in found.items():
        local = [kept_share(models[RECEIVED], v) for k, v in models.items() if k not in (RECEIVED, AGGREGATED)]
        summary.append([column, row, seed, np.mean(local), kept_share(models[RECEIVED], models[AGGREGATED])])
    rows_out = [
        [column, row, seed, model, i, int(c)]
        for (column, row), (seed, models) in found.items()
        for model, classes in models.items()
        for i, c in enumerate(classes)
    ]
    heads = {"data": None, "method": None, "seed": None, "local, %": percent, "aggregated, %": percent}
    return AnalysisResult(
        draw(maps, 10, len(columns)),
        summary_table("Neurons that prefer the same class as in the received model", heads, summary),
        [csv_table(FIGURE, ["data", "method", "seed", "model", "neuron", "class"], rows_out)],
        ["Of neurons that are alive in both models; the class of a dead neuron is -1."],
    )
