"""Tell the numbers of each client: by its own and the global model, and before and after its local training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedloom.coordinator.checkpoint import PER_CLIENT
from fedloom.coordinator.evaluation import Evaluation, finite, mean, per_row
from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running, Wants
from fedloom.coordinator.round_record import CLIENTS, notes_by_name
from fedloom.core.json_types import Index, JsonType
from fedloom.core.task_measures import TaskMeasure, is_silent, sign
from fedloom.engines.message import EVALUATION, EvaluationResult
from fedloom.evaluate.measure import Column, Entry, Measure, added_up, difference

_COUNTS, _WHICH = JsonType(list[Index | None], "a list of counts"), JsonType(list[bool], "a list of truths")
_NUMBERS = JsonType(list[float | None], "a list of numbers or null")
_LISTS = {
    **{f"judged.{name}": _COUNTS for name in ("examples", "train_examples", "*_right")},
    "judged.clients": CLIENTS,
    "judged.own": _WHICH,
    "judged.*": _NUMBERS,
    "trained.clients": CLIENTS,
    "trained.examples": _COUNTS,
    "trained.*": _NUMBERS,
    "noted.clients": CLIENTS,
    "noted.*": _NUMBERS,
}


class PerClient(Part):
    """The numbers of each client in `clients.jsonl`: of its own and the global model, and around local training."""

    wants = Wants(trained=(EVALUATION,))

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        what, unit, better = main.title, main.unit, main.better
        return (
            Measure(
                "global_on_clients", "Global model on clients", "global, on clients",
                f"Mean over clients of the {what} of the global model on each one's held-out examples.",
                unit, better,
            ),
            Measure(
                "global_on_clients_by_samples", "Global model on clients by samples", "global, by samples",
                f"{added_up(main)} of the global model over all held-out examples of clients.",
                unit, better,
            ),
            Measure(
                "better_than_global", "Clients better off", "than with the global model",
                "Share of clients whose personal model is better than the global one on their held-out examples.",
            ),
            Measure(
                f"received_{main.name}", "Before local training", "received",
                f"Mean over the clients of a round of the {what} of the model that each received, on its held-out "
                "examples.",
                unit, better,
            ),
            Measure(
                f"trained_{main.name}", "After local training", "trained",
                f"Mean over the clients of a round of the {what} of the model that each trained, on its held-out "
                "examples.",
                unit, better,
            ),
            Measure(
                "drop", "Drop", "drop",
                f"Mean over the clients of a round of the {what} after each one's last local training, minus that of "
                "the model that it received now."
                if better == "high"
                else f"Mean over the clients of a round of the {what} of the model that each received now, minus that "
                "after its last local training.",
                unit=difference(main), better="low",
            ),
            *(Entry(name, kind, PER_CLIENT) for name, kind in _LISTS.items()),
        )  # fmt: skip

    def __init__(self) -> None:
        self.previous: dict[int, float] = {}  # the headline of what each client had trained when it took part last
        self._received: dict[int, float] = {}

    @classmethod
    def of(cls, job: Brief) -> PerClient | None:
        return cls() if job.trainees.per_client else None

    def begin(self, run: Running) -> None:
        """Take from the records of earlier rounds how good each client was when it took part last."""
        self.previous.clear()
        for record in run.history.per_client:
            columns = record.get("trained", {"clients": [], "trained": []})
            trained = (math.nan if value is None else value for value in columns["trained"])
            self.previous.update(zip(columns["clients"], trained, strict=True))

    def before(self, run: Running) -> None:
        """Judge on its held-out examples the model from which each client starts the next round.

        This is the global model. Where clients keep a part of it or have none, it is that model with their own part.
        """
        of, now = run.evaluation, max(0, run.done - 1)
        weights = of.global_models(run.server)
        if of.all_have(weights):
            results = run.engine.evaluate_models(weights, run.clients, now)
        else:
            results = run.engine.evaluate(run.server, run.clients, now)
        self._received = {k: _amount(of, result) for k, result in results.items()}

    def after(self, run: Running) -> Record:
        """Return how good models are around the local training of one round, by client, and the means.

        `previous`: of what the client had trained when it took part last; the drop is from there to what it received.
        """
        if not run.done:
            return {}
        of, received, after = run.evaluation, self._received, run.trained()
        clients = sorted(k for k in after if k in received)
        new = {k: _amount(of, after[k]) for k in clients}
        run.by_client["trained"] = {
            "clients": clients,
            "examples": [int(after[k].examples) for k in clients],
            "previous": [finite(self.previous[k]) if k in self.previous else None for k in clients],
            "received": [finite(received[k]) for k in clients],
            "trained": [finite(new[k]) for k in clients],
        }
        size = {k: int(after[k].examples) if _counts(of) else 1 for k in clients if after[k].examples}
        up = sign(of.main.better)
        means: Record = {
            f"received_{of.main.name}": mean(received[k] / n for k, n in size.items()),
            f"trained_{of.main.name}": mean(new[k] / n for k, n in size.items()),
            "drop": mean(up * (self.previous[k] - received[k]) / n for k, n in size.items() if k in self.previous),
        }
        if noted := sorted(run.engine.traffic.notes.items()):
            run.by_client["noted"] = {"clients": [k for k, _ in noted], **notes_by_name([notes for _, notes in noted])}
        self.previous.update({k: amount if math.isfinite(amount) else math.nan for k, amount in new.items()})
        return means

    def due(self, run: Running) -> Record:
        """Return what follows from the numbers of each client of the panel, which go to `clients.jsonl`.

        They are those of its personal model and those of the global model.
        """
        of, panel = run.evaluation, run.evaluation.panel
        weights = of.global_models(run.server)
        whole = of.all_have(weights)
        personal = run.algorithm.personalises or not whole
        own = of.results(run.server, run.round) if personal else {}
        shared = run.engine.evaluate_models(weights, panel, run.round, "all") if whole else {}
        first = own or shared
        panel = [k for k in panel if k in first]
        each: Record = {
            "clients": panel,
            "examples": [int(first[k].examples) for k in panel],
            "train_examples": [int(first[k].trained) for k in panel],
            "own": [bool(first[k].own) and bool(own) for k in panel],
        }
        each |= _columns(of, "personal", [first[k] for k in panel])
        each |= _columns(of, "global", [shared[k] for k in panel]) if shared else {}
        run.by_client["judged"] = each
        if not shared:
            return {}
        main, up = of.main.name, sign(of.main.better)
        both = [(of.measured_of(first[k]), of.measured_of(shared[k])) for k in panel if shared[k].examples]
        gains = [up * (mine.values[main] - theirs.values[main]) for mine, theirs in both]
        silent = any(one.silent for pair in both for one in pair)
        better = mean(float(gain > 0) for gain in gains if not math.isnan(gain))
        return {
            "global_on_clients": of.mean_over(main, [theirs for _, theirs in both]),
            "global_on_clients_by_samples": of.by_samples(main, [theirs for _, theirs in both]),
            "better_than_global": None if silent else better,
        }


def _counts(of: Evaluation) -> bool:
    """Return whether the headline is a share of right answers, of which records hold the counts."""
    return of.main.name == "accuracy"


def _amount(of: Evaluation, result: EvaluationResult) -> float:
    """Return right answers where the headline counts them, else its value; 0 of a client without examples.

    It is infinite, which no mean leaves out, where the model says nothing on one of them.
    """
    if is_silent(result.sums):
        return math.inf
    if _counts(of):
        return int(result.sums["accuracy"])
    return of.measured_of(result).values[of.main.name] if result.examples else 0.0


def _columns(of: Evaluation, whose: str, results: list[EvaluationResult]) -> Record:
    """Return a model's numbers, client by client."""
    return {
        f"{whose}_{'right' if _counts(of) else of.main.name}": [finite(_amount(of, s)) for s in results],
        f"{whose}_loss": [per_row(float(s.loss), int(s.examples)) for s in results],
        f"{whose}_train_loss": [per_row(float(s.train_loss), int(s.trained)) for s in results],
    }
