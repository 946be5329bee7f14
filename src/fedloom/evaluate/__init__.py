"""Accuracy and forgetting of a model, class by class."""

from fedloom.evaluate.accuracy import ClassCounts, classify, in_local, out_local, rate_right, rows_right
from fedloom.evaluate.forgetting import forgetting, relative_forgetting

__all__ = [
    "ClassCounts",
    "classify",
    "forgetting",
    "in_local",
    "out_local",
    "rate_right",
    "relative_forgetting",
    "rows_right",
]
