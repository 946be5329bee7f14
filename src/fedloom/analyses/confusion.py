"""Confusion matrix of the global model, or of one client's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.experiments.prediction_rows import NewRows, RowReader, held_out_by
from fedloom.experiments.predictions import predict_by
from fedloom.experiments.trained_model import task_of, trained_model
from fedloom.report.confusion_matrix import Ints, draw_confusion, shares_of
from fedloom.report.number_table import percent


def measure(run: AnalysedRun) -> AnalysisResult:
    """Count what the global model, or that of `--client`, takes the examples of each class for.

    The global model is measured on the global test set, or on all that clients hold out where there is none; a
    client's on what it holds out itself. Rounds are those that have a checkpoint.
    """
    run.require_classes("a confusion matrix")
    job, at = run.job, max(run.rounds) if run.rounds else None
    own, test = run.client is not None or job.federation.test is None, job.federation.test
    examples = job.federation.train.select(held_out_by(job.federation, run.client)) if test is None or own else test
    found = trained_model(run.directory, job, client=run.client, at=at, model=run.model)
    rows = NewRows(examples, np.arange(len(examples)))
    by, y = predict_by(found, RowReader(job.federation.train), task_of(found, run.directory), rows), examples.y.numpy()
    counts = confusion(y, by.values, job.federation.num_classes)
    names = [*by.names, *map(str, range(len(by.names), len(counts)))]
    recall, precision = shares_of(counts)
    each = [
        [names[i], names[j], int(counts[i, j]), recall[i, j], precision[i, j], found.round]
        for i in range(len(counts))
        for j in range(len(counts))
    ]
    right = int(counts.trace())
    return AnalysisResult(
        draw_confusion(counts, names),
        _summary(counts, names, f"Confusion of the {found.whose} after round {found.round}"),
        [csv_table("confusion", ["true", "predicted", "count", "share_of_true", "share_of_predicted", "round"], each)],
        [f"{right:,} of {len(y):,} {'held-out' if own else 'test'} examples are right, {100 * right / len(y):.1f} %."],
    )


def confusion(y: Ints, predicted: Ints, num_classes: int) -> Ints:
    """Count examples by true and predicted class, [C, C]; where a model names further classes, C is larger."""
    size = max(num_classes, int(predicted.max()) + 1)
    return np.bincount(y * size + predicted, minlength=size * size).reshape(size, size)


def _summary(counts: Ints, names: Sequence[str], text: str) -> Any:
    recall, precision = shares_of(counts)
    wrong = counts * (1 - np.eye(len(counts), dtype=np.int64))
    most = wrong.argmax(1)
    rows = [
        [names[c], int(counts[c].sum()), recall[c, c], precision[c, c]]
        + ([names[m], recall[c, m]] if wrong[c, m] else ["-", None])
        for c, m in enumerate(most)
    ]
    heads = {"class": None, "examples": None, "found, %": percent, "of those said, %": percent}
    return summary_table(text, heads | {"most often taken for": None, "%": percent}, rows)
