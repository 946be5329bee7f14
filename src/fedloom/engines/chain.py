"""The links of a run's options, in their written order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fedloom.core import tree
from fedloom.core.cohort import Total
from fedloom.engines.accounting import of_new_states, of_states
from fedloom.engines.aggregators import aggregator
from fedloom.engines.attacks import Lies
from fedloom.engines.engine_options import Options
from fedloom.engines.faults import Lost
from fedloom.engines.links import Asked, Chain, Link, Question
from fedloom.engines.non_finite import Finite
from fedloom.engines.upload_bounds import Bounded, bound


class Rule(Link):
    """An aggregator other than the weighted mean (`engines/aggregators.py`)."""

    def __init__(self, text: str) -> None:
        self.aggregator = aggregator(text)
        self.least = self.aggregator.needs

    def total(self, question: Question, total: Total) -> Total:
        return self.aggregator.total(question.references)


class StatesCounted(Link):
    """Count the states that travel where devices keep none.

    A client downloads the state of its last exchange, if there was one. It uploads the part of the new one that the
    server does not have yet.
    """

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        engine = question.engine
        for request, states, answer in answers:
            ids = request.clients
            before = [engine.states.get(k, ()) for k in ids]
            after = [tree.take(states, i) for i in range(len(ids))]
            there = [(tree.take(answer.upload, i), state) for i, state in enumerate(before)]
            engine.traffic.count("down", ids, [Counter(personal=size) for size in of_states(before)])
            engine.traffic.count("up", ids, [Counter(personal=size) for size in of_new_states(after, there)])
            yield request, states, answer


def _decoded() -> Link:
    from fedloom.engines.encoding import Decoded  # most runs have none

    return Decoded()


def chain_of(options: Options) -> Chain:
    """Return the way of uploads to their mean.

    Clients are lost, what encoders have sent is read, liars lie, states are counted, norms are bounded, what is not
    finite is refused, the run's rule makes the mean; then the links of parts. What a liar uploads is bounded; what is
    clipped was finite; what a part adds to the mean is added to what the rule has made.
    """
    limit = bound(options.bound)
    links: list[Link | None] = [
        None if options.faults is None else Lost(options.faults),
        _decoded() if any(not e.of_downloads for e in options.encoders) else None,
        None if options.attack is None else Lies(options.attack),
        StatesCounted() if options.counts_states else None,
        None if limit is None else Bounded(limit),
        Finite(stop=options.on_nonfinite == "stop"),
        None if options.aggregator == "mean" else Rule(options.aggregator),
        *options.links,
    ]
    return Chain([link for link in links if link is not None])
