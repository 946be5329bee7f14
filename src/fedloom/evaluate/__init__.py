"""Accuracy and forgetting of a model, class by class."""

from fedloom.evaluate.accuracy import (
    ClassCounts,
    by_class,
    classify,
    evaluate_rows,
    in_local,
    measured,
    out_local,
    rate_rows,
    rows_right,
)
from fedloom.evaluate.forgetting import forgetting, relative_forgetting

__all__ = [
    "ClassCounts",
    "by_class",
    "classify",
    "evaluate_rows",
    "forgetting",
    "in_local",
    "measured",
    "out_local",
    "rate_rows",
    "relative_forgetting",
    "rows_right",
]
