"""The run's rule by which uploads become a mean, as a link of their way."""

from __future__ import annotations

from fedloom.core.aggregators import Total, aggregator
from fedloom.engines.links import Link, Question


class Rule(Link):
    """An aggregator other than the weighted mean (`core/aggregators.py`)."""

    def __init__(self, text: str) -> None:
        self.aggregator = aggregator(text)
        self.least = self.aggregator.needs

    def total(self, question: Question, total: Total) -> Total:
        return self.aggregator.total(question.references)
