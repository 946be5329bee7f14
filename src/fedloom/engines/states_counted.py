"""Count the states that travel with messages, where devices keep none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fedloom.core import tree
from fedloom.engines.accounting import of_new_states, of_states
from fedloom.engines.links import Asked, Link, Question


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
