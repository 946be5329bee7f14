"""Tell the numbers of each client: by its own and the global model, and before and after its local training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedloom.coordinator.evaluation import Evaluation, finite, mean, per_row
from fedloom.coordinator.history import Record
from fedloom.core.task_measures import is_silent, sign
from fedloom.engines.message import EvaluationResult


class PerClient:
    """Evaluates what `clients.jsonl` holds of each client. `evaluation`: of the run."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.previous: dict[int, float] = {}  # the headline of what each client had trained when it took part last

    def each(self, server: dict[str, Any], round: int) -> tuple[Record, Record]:
        """Return the numbers of each client of the panel after `round`, and what follows from them.

        The numbers are those of its personal model and those of the global model.
        """
        weights = self.evaluation.global_models(server)
        whole = self.evaluation.all_have(weights)
        own = (
            self.evaluation.engine.evaluate(server, self.evaluation.panel, round, "all")
            if self.evaluation.algorithm.personalises or not whole
            else {}
        )
        shared = self.evaluation.engine.evaluate_models(weights, self.evaluation.panel, round, "all") if whole else {}
        first = own or shared
        panel = [k for k in self.evaluation.panel if k in first]
        each: Record = {
            "clients": panel,
            "examples": [int(first[k].examples) for k in panel],
            "train_examples": [int(first[k].trained) for k in panel],
            "own": [bool(first[k].own) and bool(own) for k in panel],
        }
        each |= self._columns("personal", [first[k] for k in panel])
        each |= self._columns("global", [shared[k] for k in panel]) if shared else {}
        if not shared:
            return each, {}
        main, up = self.evaluation.main.name, sign(self.evaluation.main.better)
        both = [
            (self.evaluation.measured_of(first[k]), self.evaluation.measured_of(shared[k]))
            for k in panel
            if shared[k].examples
        ]
        gains = [up * (mine.values[main] - theirs.values[main]) for mine, theirs in both]
        silent = any(of.silent for pair in both for of in pair)
        better = mean(float(gain > 0) for gain in gains if not math.isnan(gain))
        return each, {
            "global_on_clients": self.evaluation.mean_over(main, [theirs for _, theirs in both]),
            "global_on_clients_by_samples": self.evaluation.by_samples(main, [theirs for _, theirs in both]),
            "better_than_global": None if silent else better,
        }

    def received(self, server: dict[str, Any], clients: list[int], round: int) -> dict[int, float]:
        """Return how good on its held-out examples the model is from which each client starts the next round.

        This is the global model. Where clients keep a part of it or have none, it is that model with their own part.
        """
        weights = self.evaluation.global_models(server)
        if self.evaluation.all_have(weights):
            results = self.evaluation.engine.evaluate_models(weights, clients, round)
        else:
            results = self.evaluation.engine.evaluate(server, clients, round)
        return {k: self._amount(result) for k, result in results.items()}

    def of_trained(self, received: dict[int, float], after: dict[int, EvaluationResult]) -> tuple[Record, Record]:
        """Return how good models are around the local training of one round, by client, and the means.

        `previous`: of what the client had trained when it took part last; the drop is from there to what it received.
        """
        clients = sorted(k for k in after if k in received)
        new = {k: self._amount(after[k]) for k in clients}
        each: Record = {
            "clients": clients,
            "examples": [int(after[k].examples) for k in clients],
            "previous": [finite(self.previous[k]) if k in self.previous else None for k in clients],
            "received": [finite(received[k]) for k in clients],
            "trained": [finite(new[k]) for k in clients],
        }
        size = {k: int(after[k].examples) if self._counts else 1 for k in clients if after[k].examples}
        up = sign(self.evaluation.main.better)
        means: Record = {
            f"received_{self.evaluation.main.name}": mean(received[k] / n for k, n in size.items()),
            f"trained_{self.evaluation.main.name}": mean(new[k] / n for k, n in size.items()),
            "drop": mean(up * (self.previous[k] - received[k]) / n for k, n in size.items() if k in self.previous),
        }
        self.previous.update({k: amount if math.isfinite(amount) else math.nan for k, amount in new.items()})
        return each, means

    def remember(self, records: Iterable[Record]) -> None:
        """Take from the records of earlier rounds how good each client was when it took part last."""
        self.previous.clear()
        for record in records:
            columns = record.get("trained", {"clients": [], "trained": []})
            trained = (math.nan if value is None else value for value in columns["trained"])
            self.previous.update(zip(columns["clients"], trained, strict=True))

    @property
    def _counts(self) -> bool:
        """True where the headline is a share of right answers, of which records hold the counts."""
        return self.evaluation.main.name == "accuracy"

    def _amount(self, result: EvaluationResult) -> float:
        """Return right answers where the headline counts them, else its value; 0 of a client without examples.

        It is infinite, which no mean leaves out, where the model says nothing on one of them.
        """
        if is_silent(result.sums):
            return math.inf
        if self._counts:
            return int(result.sums["accuracy"])
        return self.evaluation.measured_of(result).values[self.evaluation.main.name] if result.examples else 0.0

    def _columns(self, whose: str, results: list[EvaluationResult]) -> Record:
        """Return a model's numbers, client by client."""
        return {
            f"{whose}_{'right' if self._counts else self.evaluation.main.name}": [
                finite(self._amount(s)) for s in results
            ],
            f"{whose}_loss": [per_row(float(s.loss), int(s.examples)) for s in results],
            f"{whose}_train_loss": [per_row(float(s.train_loss), int(s.trained)) for s in results],
        }
