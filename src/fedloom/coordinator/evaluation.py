"""Measurements after a round, apart from bytes and seconds."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedloom.coordinator.history import History, Record
from fedloom.coordinator.newcomers import NewClients, evaluate_new
from fedloom.core.algorithm import Algorithm
from fedloom.core.cohort import Predict
from fedloom.core.errors import SettingError
from fedloom.core.random import generator
from fedloom.core.task import ChoosesThreshold, Task, targets_of
from fedloom.core.task_measures import SILENT, Sum, is_silent, measures_of, sign, values_of_sums
from fedloom.core.types import Weights
from fedloom.data import Examples, Partition
from fedloom.engines.engine import Engine
from fedloom.engines.message import EvaluationResult, HeldOutSplit
from fedloom.engines.population import Population
from fedloom.evaluate import by_class, evaluate_rows, forgetting, in_local, measured, out_local, rate_rows

Spans = list[tuple[int, int, int]]  # (client, first row, row after the last)


class _Client(NamedTuple):
    """Hold the measures of one client's model."""

    values: dict[str, float]  # by measure; NaN where one is undefined
    sums: Mapping[str, Tensor]
    examples: int
    own: bool = True  # whether the client has a model of its own

    @property
    def silent(self) -> bool:
        """True where the model says nothing on one of the client's examples."""
        return is_silent(self.sums)


def panel_of(population: Population, count: int, new: NewClients | None) -> list[int]:
    """Return the clients whose personal models are evaluated, at most `count`."""
    n = population.num_clients
    apart = set() if new is None else set(new.ids(n))
    order = generator(population.seed, "panel").permutation(n)
    return sorted([int(k) for k in order if int(k) not in apart][:count])


class Evaluation:
    """Evaluates the global model, the personal models of a fixed panel of clients, and new clients in the end."""

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
        self.names, task = population.measures, population.task
        known = measures_of(task)
        self.main = known[self.names[0]]
        self._pooled = [n for n in self.names if isinstance(known[n], Sum)]
        self.classes = targets_of(task) == "classes"
        self._valued: Task = task  # by whose measures values are taken of sums
        self._validated: dict[int, _Client] | None = None  # where a threshold was chosen by them just now
        self._held: dict[tuple[str, HeldOutSplit], tuple[Examples | None, Spans]] = {}

    def of_threshold(self, server: dict[str, Any], round: int) -> Record:
        """Choose the threshold of measures after `round`, where the task says so, by the clients' validation examples.

        They are evaluated by the models that `of_personal` evaluates.
        """
        task = self.population.task
        if not isinstance(task, ChoosesThreshold) or task.chosen_by is None:
            return {}
        found = self._clients(server, round, "val")
        sums = [of.sums[task.chosen_by] for of in found.values()]
        known = bool(sums) and not any(of.silent for of in found.values())
        threshold = task.choose(sum(sums[1:], sums[0])) if known else None
        self._valued = task.measured_at(threshold)
        self._validated = {k: self._revalued(of) for k, of in found.items()}
        return {"threshold": threshold}

    def of_global(self, server: dict[str, Any], cohort: list[int], history: History, round: int) -> Record:
        """Return the global model's accuracy, loss, accuracy per class, and what follows from these, after `round`."""
        p = self.population
        weights = self.global_models(server)
        if p.federation.test is None or not weights:
            return {}
        members = np.array([self._members[name] for name in weights])
        if members.any():
            members /= members.sum()  # exactly 1 where there is one architecture
        else:  # one that no client has
            members[:] = 1 / len(members)
        results = [evaluate_rows(p.models[n], w, p.task, self.names, _test_of(p, n, round)) for n, w in weights.items()]
        found = measured(results, self._valued)
        out: Record = {
            f"global_{name}": finite(np.average([m[name] for m in found], weights=members)) for name in self.names
        }
        out["global_loss"] = finite(np.average([r.loss for r in results], weights=members))
        if not self.classes or "accuracy" not in found[0]:
            return out
        counts = [by_class(r, p.federation.num_classes) for r in results]
        per_class = np.average([c.per_class for c in counts], axis=0, weights=members)
        out["class_accuracy"] = [None if np.isnan(a) else float(a) for a in per_class]
        if cohort:
            past = history.per_class
            rows = np.vstack([past, per_class]) if len(past) else per_class[None]
            out["forgetting"] = mean(forgetting(rows))  # None after the first round: nothing to forget yet
            share = self._shares(sorted(cohort), round)  # a sum of floats depends on its order
            out["in_local_accuracy"] = mean(in_local(share, per_class))
            out["out_local_accuracy"] = mean(out_local(share, per_class))
        return out

    def of_predictions(self, predictions: Mapping[str, Predict | Mapping[int, Predict]], round: int) -> Record:
        """Return the headline on the test set of what a server wants evaluated beside its global model, by name."""
        p, test, out = self.population, self.population.at(round).test, Record()
        if test is None:
            return out
        if predictions and p.behind:
            raise SettingError(
                f"{', '.join(predictions)} would be evaluated on inputs of none of the architectures, whose frozen "
                "fronts are computed once: set front = 'off' (--front off)"
            )
        rate = functools.partial(
            rate_rows, task=p.task, measure=self.main.name, examples=test, device=p.device, dtype=p.dtype
        )
        for name, predict in predictions.items():
            if isinstance(predict, Mapping):
                out[f"{name}_{self.main.name}"] = {str(k): finite(rate(each)) for k, each in predict.items()}
            else:
                out[f"{name}_{self.main.name}"] = finite(rate(predict))
        return out

    def of_personal(self, server: dict[str, Any], round: int) -> Record:
        """Evaluate each client of the panel by its personal model on its own held-out examples after `round`."""
        out: Record = {}
        found, main = self._clients(server, round, "test"), self.main.name
        if found:
            rate = {k: found[k].values[main] for k in self.panel if k in found and math.isfinite(found[k].values[main])}
            values, up = np.array([*rate.values()]), sign(self.main.better)
            known = len(values) > 0 and self.mean_over(main, found.values()) is not None
            worst = up * np.sort(up * values)[: max(1, len(values) // 10)]
            out = {
                f"personal_{main}": float(values.mean()) if known else None,
                f"personal_{main}_by_samples": self.by_samples(main, found.values()),
                "personal_std": float(values.std()) if known else None,
                "personal_worst_tenth": float(worst.mean()) if known else None,
                **({"without_personal": sum(not of.own for of in found.values())} if self._tells else {}),
                "personal_by_client": {str(k): value for k, value in rate.items()},
            }
            out |= self._others("personal", found)
        found, self._validated = self._validated or self._clients(server, round, "val"), None
        if found:
            out[f"val_{main}"] = self.mean_over(main, found.values())
            out |= self._others("val", found)
        return out

    def mean_over(self, name: str, clients: Collection[_Client]) -> float | None:
        """Return the mean of a measure over the clients that have it; None where the model of one says nothing.

        Its clients would be the better for leaving that one out.
        """
        return None if any(of.silent for of in clients) else mean(of.values[name] for of in clients)

    def _others(self, whose: str, found: Mapping[int, _Client]) -> Record:
        """Return the mean over clients of measures beside the headline, and how many each measure is undefined for."""
        out: Record = {}
        for name in self.names:
            values = [of.values[name] for of in found.values()]
            if name != self.main.name:
                out[f"{whose}_{name}"] = self.mean_over(name, found.values())
            if undefined := sum(map(math.isnan, values)):
                out[f"{whose}_{name}_undefined"] = undefined
        return out

    def of_training(self, server: dict[str, Any], round: int) -> Record:
        """Return the mean loss over all training examples of the panel, each client's by its personal model."""
        holders = self.engine.population.holders(self.panel)
        results = self.engine.evaluate(server, holders, round, "all").values()
        rows, total = sum(int(of.trained) for of in results), sum(float(of.train_loss) for of in results)
        return {"personal_train_loss": per_row(total, rows)}

    def of_new(self, server: dict[str, Any], round: int) -> Record:
        """Evaluate each new client in every way that is asked for and that the algorithm has a model for."""
        if self.new is None:
            return {}
        by_way, refused = evaluate_new(self.engine, server, self.new, round)
        out: Record = {"new_by_client": {}, **({"new_failed": refused} if refused else {})}
        for way, results in by_way.items():
            found = {k: self.measured_of(result) for k, result in sorted(results.items())}
            main = self.main.name
            rate = {str(k): finite(of.values[main]) for k, of in found.items()}
            out[f"new_{way}_{main}"] = self.mean_over(main, found.values())
            out[f"new_{way}_{main}_by_samples"] = self.by_samples(main, found.values())
            out["new_by_client"][way] = rate
            out |= self._others(f"new_{way}", found)
            if others := self.names[1:]:
                each = {n: {str(k): finite(of.values[n]) for k, of in found.items()} for n in others}
                out.setdefault("new_others_by_client", {})[way] = each
        return out

    def all_have(self, weights: dict[str, Weights]) -> bool:
        """Return whether there is a global model of every architecture."""
        return bool(weights) and set(weights) >= {n for n, count in self._members.items() if count}

    @property
    def _tells(self) -> bool:
        """True where the algorithm tells clients without a model of their own from others."""
        return type(self.algorithm).has_personal is not Algorithm.has_personal

    def global_models(self, server: dict[str, Any]) -> dict[str, Weights]:
        """Return the global model of each architecture that has one."""
        return self.algorithm.global_models(server, self.population.models)

    def _shares(self, cohort: list[int], round: int) -> npt.NDArray[np.float64]:
        """Return the shares of classes of each client of the cohort, [K, C]; of all clients where data are pooled.

        Examples that arrive later, or have left, count too.
        """
        federation, owners = self.population.federation, self.engine.population.owners(cohort)
        y, classes = self.population.at(round).train.y, federation.num_classes
        rows = [y[federation.partition.rows(k)].cpu().numpy() for k in owners]
        counts = np.array([np.bincount(r, minlength=classes) for r in rows])
        shares: npt.NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
        return shares

    def measured_of(self, result: EvaluationResult) -> _Client:
        """Return what an engine measured of a client that has examples."""
        n = int(result.examples)
        values = values_of_sums(self._valued, result.sums, n, result.scores)
        return _Client(values, result.sums, n, bool(result.own))

    def _revalued(self, of: _Client) -> _Client:
        return of._replace(values=of.values | values_of_sums(self._valued, of.sums, of.examples))

    def by_samples(self, name: str, clients: Iterable[_Client]) -> float | None:
        """Return a measure over the held-out examples of all clients, where large ones count for more.

        None where nobody has any, or the measure is no sum: what different models say cannot be ranked together.
        """
        found = [of for of in clients if of.examples]
        if not found or name not in self._pooled:
            return None
        sums = {one: sum((of.sums[one] for of in found[1:]), found[0].sums[one]) for one in (name, SILENT)}
        return finite(values_of_sums(self._valued, sums, sum(of.examples for of in found))[name])

    def _clients(self, server: dict[str, Any], round: int, kind: HeldOutSplit) -> dict[int, _Client]:
        """Return what is measured of each client of the panel that holds out examples of this kind."""
        p, weights = self.population, self.global_models(server)
        partition = p.federation.local_val if kind == "val" else p.federation.local_test
        if partition is None:
            return {}
        if self.algorithm.personalises or not weights or self.engine.elsewhere:
            results = self.engine.evaluate(server, self.panel, round, kind)
            return {k: self.measured_of(of) for k, of in results.items() if of.examples}
        out: dict[int, _Client] = {}  # one model for all of them: each row once
        for name, w in weights.items():
            held_out, spans = self._held_out(name, kind, partition, round)
            if held_out is None:
                continue
            if p.models[name].by_batch:  # an answer must not depend on another client's examples
                found = {
                    k: evaluate_rows(p.models[name], w, p.task, self.names, held_out.select(np.arange(a, b)))
                    for k, a, b in spans
                    if b > a
                }
            else:
                rows = evaluate_rows(p.models[name], w, p.task, self.names, held_out)
                found = {k: rows.part(a, b) for k, a, b in spans if b > a}
            if found:
                values = measured(list(found.values()), self._valued)
                out.update({k: _Client(v, r.totals, len(r.y)) for (k, r), v in zip(found.items(), values, strict=True)})
        return out

    def _held_out(
        self, name: str, kind: HeldOutSplit, partition: Partition, round: int
    ) -> tuple[Examples | None, Spans]:
        """Return what the panel's clients of one architecture hold out, and their spans in it.

        It is the same in every round, unless data drift.
        """
        if (name, kind) not in self._held or self.population.federation.drift is not None:
            p = self.population
            members = [k for k in self.panel if self.engine.population.architecture(k) == name]
            rows = [partition.rows(k) for k in members]
            ends = [int(n) for n in np.cumsum([0, *map(len, rows)])]
            examples = p.seen_by(name, round).train.select(np.concatenate(rows)) if ends[-1] else None
            self._held[name, kind] = examples, list(zip(members, ends[:-1], ends[1:], strict=True))
        return self._held[name, kind]


def _test_of(population: Population, name: str, round: int) -> Examples:
    """Return the global test set of a round with the inputs of an architecture, where there is one."""
    test = population.seen_by(name, round).test
    assert test is not None
    return test


def finite(value: float) -> float | None:
    """Return a number of a record; None for one that is not finite."""
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(value)


def per_row(total: float, rows: int) -> float | None:
    """Return the mean of a loss, None without rows to measure it on, or if it is not finite."""
    return total / rows if rows and math.isfinite(total) else None


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the values that are defined (a class without examples has no accuracy).

    None where there are none, and where one is infinite: left out, it would make the others' mean the better.
    """
    known = [float(v) for v in values if not math.isnan(v)]
    return float(np.mean(known)) if known and all(map(math.isfinite, known)) else None
