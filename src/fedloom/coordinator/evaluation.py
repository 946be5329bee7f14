"""Measurements after a round, apart from bytes and seconds."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.history import History, Record
from fedloom.coordinator.newcomers import NewClients, evaluate_new
from fedloom.core.algorithm import Algorithm
from fedloom.core.cohort import Predict
from fedloom.core.random import generator
from fedloom.core.types import Weights
from fedloom.data import Examples, Partition
from fedloom.engines.engine import Engine
from fedloom.engines.message import EvaluationResult, HeldOutSplit
from fedloom.engines.population import Population
from fedloom.evaluate import classify, forgetting, in_local, out_local, rate_right, rows_right

Spans = list[tuple[int, int, int]]  # (client, first row, row after the last)


class _Score(NamedTuple):
    right: int
    examples: int
    own: bool = True  # whether the client has a model of its own


def panel_of(population: Population, count: int, new: NewClients | None) -> list[int]:
    """Return the clients whose personal models are judged, at most so many."""
    n = population.num_clients
    apart = set() if new is None else set(new.ids(n))
    order = generator(population.seed, "panel").permutation(n)
    return sorted([int(k) for k in order if int(k) not in apart][:count])


class Evaluation:
    """Judges the global model, the personal models of a fixed panel of clients, and new clients in the end."""

    def __init__(
        self,
        algorithm: Algorithm[Any, Any],
        population: Population,
        engine: Engine,
        panel: int,
        new: NewClients | None = None,
    ) -> None:
        self.algorithm, self.population, self.engine, self.new = algorithm, population, engine, new
        self.panel = panel_of(population, panel, new)
        members = Counter(engine.population.members)
        if new is not None and new.joins is None:  # a network that nobody trains tells nothing of the method
            members.subtract(population.assignment[k] for k in new.ids(population.num_clients))
        self._members = {name: float(count) for name, count in members.items()}
        self.previous: dict[int, int] = {}  # right answers of what each client had trained when it took part last
        self._held: dict[tuple[str, HeldOutSplit], tuple[Examples | None, Spans]] = {}

    def of_global(self, server: dict[str, Any], cohort: list[int], history: History, round: int) -> Record:
        """Return the global model's accuracy, loss, accuracy per class, and what follows from these, after `round`."""
        p, test = self.population, self.population.at(round).test
        weights = self._global(server)
        if test is None or not weights:
            return {}
        members = np.array([self._members[name] for name in weights])
        if members.any():
            members /= members.sum()  # exactly 1 where there is one architecture
        else:  # one that no client has
            members[:] = 1 / len(members)
        results = [classify(p.models[n], w, p.task, test) for n, w in weights.items()]
        per_class = np.average([r.per_class for r in results], axis=0, weights=members)
        out: Record = {
            "global_accuracy": float(np.average([r.accuracy for r in results], weights=members)),
            "global_loss": float(np.average([r.loss for r in results], weights=members)),
            "class_accuracy": [None if np.isnan(a) else float(a) for a in per_class],
        }
        if cohort:
            past = history.per_class
            rows = np.vstack([past, per_class]) if len(past) else per_class[None]
            out["forgetting"] = mean(forgetting(rows))  # None after the first round: nothing to forget yet
            share = self._shares(sorted(cohort), round)  # a sum of floats depends on its order
            out["in_local_accuracy"] = mean(in_local(share, per_class))
            out["out_local_accuracy"] = mean(out_local(share, per_class))
        return out

    def of_predictions(self, predictions: Mapping[str, Predict | Mapping[int, Predict]], round: int) -> Record:
        """Return the accuracy on the test set of what a server wants judged beside its global model, by name."""
        p, test, out = self.population, self.population.at(round).test, Record()
        if test is None:
            return out
        rate = functools.partial(rate_right, task=p.task, examples=test, device=p.device, dtype=p.dtype)
        for name, predict in predictions.items():
            if isinstance(predict, Mapping):
                out[f"{name}_accuracy"] = {str(k): rate(each) for k, each in predict.items()}
            else:
                out[f"{name}_accuracy"] = rate(predict)
        return out

    def of_personal(self, server: dict[str, Any], round: int) -> Record:
        """Judge each client of the panel by its personal model on its own held-out examples after `round`."""
        out: Record = {}
        scores = self._scores(server, round, "test")
        if rate := {k: of.right / of.examples for k, of in scores.items()}:
            values = np.array([rate[k] for k in self.panel if k in rate])
            tenth = np.sort(values)[: max(1, len(values) // 10)]
            out = {
                "personal_accuracy": float(values.mean()),
                "personal_accuracy_by_samples": by_samples((of.right, of.examples) for of in scores.values()),
                "personal_std": float(values.std()),
                "personal_worst_tenth": float(tenth.mean()),
                **({"without_personal": sum(not of.own for of in scores.values())} if self._tells else {}),
                "personal_by_client": {str(k): rate[k] for k in self.panel if k in rate},
            }
        if scores := self._scores(server, round, "val"):
            out["val_accuracy"] = mean(of.right / of.examples for of in scores.values())
        return out

    def of_new(self, server: dict[str, Any], round: int) -> Record:
        """Judge each new client in every way that is asked for and that the algorithm has a model for."""
        if self.new is None:
            return {}
        by_way, refused = evaluate_new(self.engine, server, self.new, round)
        out: Record = {"new_by_client": {}, **({"new_failed": refused} if refused else {})}
        for way, results in by_way.items():
            scores = {k: (int(s.right), int(s.examples)) for k, s in sorted(results.items())}
            rate = {str(k): right / total for k, (right, total) in scores.items()}
            out[f"new_{way}_accuracy"] = mean(rate.values())
            out[f"new_{way}_accuracy_by_samples"] = by_samples(scores.values())
            out["new_by_client"][way] = rate
        return out

    def each(self, server: dict[str, Any], round: int) -> tuple[Record, Record]:
        """Return the numbers of each client of the panel after `round`, and what follows from them.

        The numbers are those of its personal model and those of the global model.
        """
        weights = self._global(server)
        whole = self._all_have(weights)
        own = self.engine.evaluate(server, self.panel, round, "all") if self.algorithm.personalises or not whole else {}
        shared = self.engine.evaluate_models(weights, self.panel, round, "all") if whole else {}
        first = own or shared
        panel = [k for k in self.panel if k in first]
        each: Record = {
            "clients": panel,
            "examples": [int(first[k].examples) for k in panel],
            "train_examples": [int(first[k].trained) for k in panel],
            "own": [bool(first[k].own) and bool(own) for k in panel],
        }
        each |= _columns("personal", [first[k] for k in panel])
        each |= _columns("global", [shared[k] for k in panel]) if shared else {}
        if not shared:
            return each, {}
        both = [(int(first[k].right), int(s.right), int(s.examples)) for k in panel if (s := shared[k]).examples]
        return each, {
            "global_on_clients": mean(right / total for _, right, total in both),
            "global_on_clients_by_samples": by_samples((right, total) for _, right, total in both),
            "better_than_global": mean(float(mine > theirs) for mine, theirs, _ in both),
        }

    def received(self, server: dict[str, Any], clients: list[int], round: int) -> dict[int, int]:
        """Return how many held-out examples each client gets right by the model from which it starts the next round.

        This is the global model. Where clients keep a part of it or have none, it is that model with their own part.
        """
        weights = self._global(server)
        if self._all_have(weights):
            results = self.engine.evaluate_models(weights, clients, round)
        else:
            results = self.engine.evaluate(server, clients, round)
        return {k: int(result.right) for k, result in results.items()}

    def of_trained(self, received: dict[int, int], after: dict[int, EvaluationResult]) -> tuple[Record, Record]:
        """Return right answers around the local training of one round, by client, and the mean accuracies.

        `previous`: of what the client had trained when it took part last; the drop is from there to what it received.
        """
        clients = sorted(k for k in after if k in received)
        new = {k: int(after[k].right) for k in clients}
        each: Record = {
            "clients": clients,
            "examples": [int(after[k].examples) for k in clients],
            "previous": [self.previous.get(k) for k in clients],
            "received": [received[k] for k in clients],
            "trained": [new[k] for k in clients],
        }
        size = {k: int(after[k].examples) for k in clients if after[k].examples}
        means: Record = {
            "received_accuracy": mean(received[k] / n for k, n in size.items()),
            "trained_accuracy": mean(new[k] / n for k, n in size.items()),
            "drop": mean((self.previous[k] - received[k]) / n for k, n in size.items() if k in self.previous),
        }
        self.previous.update(new)
        return each, means

    def remember(self, records: Iterable[Record]) -> None:
        """Take from the records of earlier rounds how good each client was when it took part last."""
        self.previous.clear()
        for record in records:
            columns = record.get("trained", {"clients": [], "trained": []})
            self.previous.update(zip(columns["clients"], columns["trained"], strict=True))

    def _all_have(self, weights: dict[str, Weights]) -> bool:
        """Return whether there is a global model of every architecture."""
        return bool(weights) and set(weights) >= {n for n, count in self._members.items() if count}

    @property
    def _tells(self) -> bool:
        """True where the algorithm tells clients without a model of their own from others."""
        return type(self.algorithm).has_personal is not Algorithm.has_personal

    def _global(self, server: dict[str, Any]) -> dict[str, Weights]:
        """Return the global model of each architecture that has one."""
        return self.algorithm.global_models(server, self.population.models)

    def _shares(self, cohort: list[int], round: int) -> npt.NDArray[np.float64]:
        """Return the shares of classes of each client of the cohort, [K, C]; of all clients where data are pooled.

        Examples that arrive later, or have left, count too.
        """
        federation = self.population.federation
        if self.algorithm.pooled:
            counts = federation.counts()
        else:
            y, classes = self.population.at(round).train.y, federation.num_classes
            rows = [y[federation.partition.rows(k)].cpu().numpy() for k in cohort]
            counts = np.array([np.bincount(r, minlength=classes) for r in rows])
        shares: npt.NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
        return shares

    def _scores(self, server: dict[str, Any], round: int, kind: HeldOutSplit) -> dict[int, _Score]:
        """Return what each client of the panel that holds out examples of this kind gets right."""
        p, weights = self.population, self._global(server)
        partition = p.federation.local_val if kind == "val" else p.federation.local_test
        if partition is None:
            return {}
        if self.algorithm.personalises or not weights or self.engine.elsewhere:
            results = self.engine.evaluate(server, self.panel, round, kind)
            scores = {k: _Score(int(of.right), int(of.examples), bool(of.own)) for k, of in results.items()}
            return {k: of for k, of in scores.items() if of.examples}
        out: dict[int, _Score] = {}  # one model for all of them: each row once
        for name, w in weights.items():
            held_out, spans = self._held_out(name, kind, partition, round)
            if held_out is None:
                continue
            if p.models[name].by_batch:  # an answer must not depend on another client's examples
                parts = [held_out.select(np.arange(a, b)) for _, a, b in spans if b > a]
                right = np.concatenate([rows_right(p.models[name], w, p.task, part) for part in parts])
            else:
                right = rows_right(p.models[name], w, p.task, held_out)
            out.update({k: _Score(int(right[a:b].sum()), b - a) for k, a, b in spans if b > a})
        return out

    def _held_out(
        self, name: str, kind: HeldOutSplit, partition: Partition, round: int
    ) -> tuple[Examples | None, Spans]:
        """Return what the panel's clients of one architecture hold out, and their spans in it.

        It is the same in every round, unless data drift.
        """
        if (name, kind) not in self._held or self.population.federation.drift is not None:
            p = self.population
            members = [k for k in self.panel if self.algorithm.pooled or p.assignment[k] == name]
            rows = [partition.rows(k) for k in members]
            ends = [int(n) for n in np.cumsum([0, *map(len, rows)])]
            examples = p.at(round).train.select(np.concatenate(rows)) if ends[-1] else None
            self._held[name, kind] = examples, list(zip(members, ends[:-1], ends[1:], strict=True))
        return self._held[name, kind]


def by_samples(scores: Iterable[tuple[int, int]]) -> float | None:
    """Return all right answers over all examples, of (right, examples) by client; None where nobody has examples.

    Large clients count for more.
    """
    right, examples = np.array([(0, 0), *scores], np.int64).sum(0)
    return float(right / examples) if examples else None


def _columns(name: str, results: list[EvaluationResult]) -> Record:
    """Return a model's numbers, client by client; a loss is None without rows to measure it on, or if not finite."""

    def per_row(total: float, rows: int) -> float | None:
        return total / rows if rows and math.isfinite(total) else None

    return {
        f"{name}_right": [int(s.right) for s in results],
        f"{name}_loss": [per_row(float(s.loss), int(s.examples)) for s in results],
        f"{name}_train_loss": [per_row(float(s.train_loss), int(s.trained)) for s in results],
    }


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values (a class without examples has no accuracy), None if there are none."""
    finite = [float(v) for v in values if math.isfinite(v)]
    return float(np.mean(finite)) if finite else None
