"""Measure models on data, for the parts of a run that judge models."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedloom.coordinator.history import Record
from fedloom.core.algorithm import Algorithm
from fedloom.core.random import generator
from fedloom.core.task import Task, targets_of
from fedloom.core.task_measures import SILENT, Sum, is_silent, measures_of, values_of_sums
from fedloom.core.types import Weights
from fedloom.data import Examples, Partition
from fedloom.engines.engine import Engine
from fedloom.engines.message import EvaluationResult, HeldOutSplit
from fedloom.engines.population import Population
from fedloom.evaluate import evaluate_rows, measured

Spans = list[tuple[int, int, int]]  # (client, first row, row after the last)


class ClientMeasures(NamedTuple):
    """Measures of one client's model."""

    values: dict[str, float]  # by measure; NaN where one is undefined
    sums: Mapping[str, Tensor]
    examples: int
    own: bool = True  # whether the client has a model of its own

    @property
    def silent(self) -> bool:
        """True where the model says nothing on one of the client's examples."""
        return is_silent(self.sums)


def panel_of(population: Population, count: int, held_out: Collection[int] = ()) -> list[int]:
    """Return the clients whose personal models are evaluated, at most `count`, without those `held_out`."""
    apart = set(held_out)
    order = generator(population.seed, "panel").permutation(population.num_clients)
    return sorted([int(k) for k in order if int(k) not in apart][:count])


class Evaluation:
    """Evaluation of models on data: what the parts of a run that judge models share.

    `panel`: clients whose personal models are evaluated. `never`: clients that no round asks, whose networks nobody
    trains. `whole`: whether losses and training examples of the panel will be asked for too.
    """

    def __init__(
        self, algorithm: Algorithm[Any, Any], population: Population, engine: Engine, panel: Sequence[int],
        never: Collection[int] = (), whole: bool = False,
    ) -> None:  # fmt: skip
        self.algorithm, self.population, self.engine, self.panel = algorithm, population, engine, list(panel)
        members = Counter(engine.population.members)
        members.subtract(population.assignment[k] for k in never)
        self.members = {name: float(count) for name, count in members.items()}
        self.names, task = population.measures, population.task
        known = measures_of(task)
        self.main = known[self.names[0]]
        self._pooled = [n for n in self.names if isinstance(known[n], Sum)]
        self.classes = targets_of(task) == "classes"
        self.valued: Task = task  # by whose measures values are taken of sums
        self._held: dict[tuple[str, HeldOutSplit], tuple[Examples | None, Spans]] = {}
        self._kept: tuple[tuple[Any, int, HeldOutSplit], dict[int, ClientMeasures]] = ((None, 0, "val"), {})
        self._whole = whole
        self._results: tuple[Any, int, dict[int, EvaluationResult]] = None, 0, {}

    def mean_over(self, name: str, clients: Collection[ClientMeasures]) -> float | None:
        """Return the mean of a measure over the clients that have it; None where the model of one says nothing.

        Its clients would be the better for leaving that one out.
        """
        return None if any(of.silent for of in clients) else mean(of.values[name] for of in clients)

    def others(self, whose: str, found: Mapping[int, ClientMeasures]) -> Record:
        """Return the mean over clients of measures beside the headline, and how many each measure is undefined for."""
        out: Record = {}
        for name in self.names:
            values = [of.values[name] for of in found.values()]
            if name != self.main.name:
                out[f"{whose}_{name}"] = self.mean_over(name, found.values())
            if undefined := sum(map(math.isnan, values)):
                out[f"{whose}_{name}_undefined"] = undefined
        return out

    def all_have(self, weights: dict[str, Weights]) -> bool:
        """Return whether there is a global model of every architecture."""
        return bool(weights) and set(weights) >= {n for n, count in self.members.items() if count}

    def global_models(self, server: dict[str, Any]) -> dict[str, Weights]:
        """Return the global model of each architecture that has one."""
        return self.algorithm.global_models(server, self.population.models)

    def measured_of(self, result: EvaluationResult) -> ClientMeasures:
        """Return what an engine measured of a client that has examples."""
        n = int(result.examples)
        values = values_of_sums(self.valued, result.sums, n, result.scores)
        return ClientMeasures(values, result.sums, n, bool(result.own))

    def by_samples(self, name: str, clients: Iterable[ClientMeasures]) -> float | None:
        """Return a measure over the held-out examples of all clients, where large ones count for more.

        None where nobody has any, or the measure is no sum: what different models say cannot be ranked together.
        """
        found = [of for of in clients if of.examples]
        if not found or name not in self._pooled:
            return None
        sums = {one: sum((of.sums[one] for of in found[1:]), found[0].sums[one]) for one in (name, SILENT)}
        return finite(values_of_sums(self.valued, sums, sum(of.examples for of in found))[name])

    def clients(
        self, server: dict[str, Any], round: int, kind: HeldOutSplit, *, keep: bool = False
    ) -> dict[int, ClientMeasures]:
        """Return what is measured of each client of the panel that holds out examples of this kind.

        `keep`: for who asks next for the same, who then gets it by the measures of then.
        """
        (at, kept), self._kept = self._kept, ((None, 0, kind), {})
        if at[0] is server and at[1:] == (round, kind):
            new = {k: values_of_sums(self.valued, of.sums, of.examples) for k, of in kept.items()}
            return {k: of._replace(values=of.values | new[k]) for k, of in kept.items()}
        found = self._measured(server, round, kind)
        if keep:
            self._kept = (server, round, kind), found
        return found

    def results(self, server: dict[str, Any], round: int) -> dict[int, EvaluationResult]:
        """Return how good each client's personal model is on all that it holds; who asks next has the same."""
        if self._results[0] is not server or self._results[1] != round:
            self._results = server, round, self.engine.evaluate(server, self.panel, round, "all")
        return self._results[2]

    def _measured(self, server: dict[str, Any], round: int, kind: HeldOutSplit) -> dict[int, ClientMeasures]:
        p, weights = self.population, self.global_models(server)
        partition = p.federation.local_val if kind == "val" else p.federation.local_test
        if partition is None:
            return {}
        if self.algorithm.personalises or not weights or self.engine.elsewhere:
            whole = self._whole and kind == "test"
            results = self.results(server, round) if whole else self.engine.evaluate(server, self.panel, round, kind)
            return {k: self.measured_of(of) for k, of in results.items() if of.examples}
        out: dict[int, ClientMeasures] = {}  # one model for all of them: each row once
        for name, w in weights.items():
            held_out, spans = self._held_out(name, kind, partition, round)
            if held_out is None:
                continue
            judge = functools.partial(evaluate_rows, p.models[name], w, p.task, self.names)
            if p.models[name].by_batch:  # an answer must not depend on another client's examples
                found = {k: judge(held_out.select(np.arange(a, b))) for k, a, b in spans if b > a}
            else:
                rows = judge(held_out)
                found = {k: rows.part(a, b) for k, a, b in spans if b > a}
            if found:
                values = measured(list(found.values()), self.valued)
                out.update(
                    {k: ClientMeasures(v, r.totals, len(r.y)) for (k, r), v in zip(found.items(), values, strict=True)}
                )
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
