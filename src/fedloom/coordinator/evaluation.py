"""What is measured after a round, apart from bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.history import History, Record
from fedloom.core.algorithm import Algorithm
from fedloom.core.random import generator
from fedloom.core.types import Weights
from fedloom.data import Examples, Partition
from fedloom.engines.engine import Engine
from fedloom.engines.message import HeldOut
from fedloom.engines.population import Population
from fedloom.evaluate import classify, forgetting, in_local, out_local, rows_right

Spans = list[tuple[int, int, int]]  # (client, first row, row after the last)


class Evaluation:
    """Judges the global model, and the personal models of a fixed panel of clients."""

    def __init__(self, algorithm: Algorithm[Any, Any], population: Population, engine: Engine, panel: int) -> None:
        self.algorithm, self.population, self.engine = algorithm, population, engine
        n = population.num_clients
        order = generator(population.seed, "panel").permutation(n)[: min(n, panel)]
        self.panel = sorted(int(k) for k in order)
        self._members = {name: float(count) for name, count in engine.population.members.items()}
        self._held: dict[tuple[str, HeldOut], tuple[Examples | None, Spans]] = {}

    def of_global(self, server: dict[str, Any], cohort: list[int], history: History) -> Record:
        """Accuracy, loss, accuracy per class, and what follows from these."""
        p = self.population
        weights = self._global(server)
        if p.federation.test is None or not weights:
            return {}
        members = np.array([self._members[name] for name in weights])
        members /= members.sum()  # exactly 1 where there is one architecture
        found = [classify(p.models[n], w, p.task, p.federation.test) for n, w in weights.items()]
        per_class = np.average([f.per_class for f in found], axis=0, weights=members)
        out: Record = {
            "global_accuracy": float(np.average([f.accuracy for f in found], weights=members)),
            "global_loss": float(np.average([f.loss for f in found], weights=members)),
            "class_accuracy": [None if np.isnan(a) else float(a) for a in per_class],
        }
        if cohort:
            past = history.per_class
            seen = np.vstack([past, per_class]) if len(past) else per_class[None]
            out["forgetting"] = mean(forgetting(seen))  # None after the first round: nothing to forget yet
            share = self._shares(sorted(cohort))  # a sum of floats depends on its order
            out["in_local_accuracy"] = mean(in_local(share, per_class))
            out["out_local_accuracy"] = mean(out_local(share, per_class))
        return out

    def of_personal(self, server: dict[str, Any], round: int) -> Record:
        """Each client of the panel, judged by its personal model on its own held-out examples after `round`."""
        out: Record = {}
        rate = self._rates(server, round, "test")
        if rate:
            values = np.array([rate[k] for k in self.panel if k in rate])
            tenth = np.sort(values)[: max(1, len(values) // 10)]
            out = {
                "personal_accuracy": float(values.mean()),
                "personal_std": float(values.std()),
                "personal_worst_tenth": float(tenth.mean()),
                "personal_by_client": {str(k): rate[k] for k in self.panel if k in rate},
            }
        if rate := self._rates(server, round, "val"):
            out["val_accuracy"] = mean(rate.values())
        return out

    def _global(self, server: dict[str, Any]) -> dict[str, Weights]:
        """The global model of each architecture, where there is one."""
        return self.algorithm.global_models(server, self.population.models)

    def _shares(self, cohort: list[int]) -> npt.NDArray[np.float64]:
        """The classes of each client of the cohort, [K, C]; of everybody where data are pooled."""
        federation = self.population.federation
        if self.algorithm.pooled:
            counts = federation.counts()
        else:
            y, classes = federation.train.y, federation.num_classes
            rows = [y[federation.partition.rows(k).copy()].cpu().numpy() for k in cohort]
            counts = np.array([np.bincount(r, minlength=classes) for r in rows])
        shares: npt.NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
        return shares

    def _rates(self, server: dict[str, Any], round: int, kind: HeldOut) -> dict[int, float]:
        p, weights = self.population, self._global(server)
        partition = p.federation.local_val if kind == "val" else p.federation.local_test
        if partition is None:
            return {}
        if self.algorithm.personalises or not weights:
            judged = self.engine.judge(server, self.panel, round, kind)
            return {k: right / total for k, (right, total) in judged.items() if total}
        rate: dict[int, float] = {}  # one model for all of them: each row once
        for name, w in weights.items():
            held_out, spans = self._held_out(name, kind, partition)
            if held_out is None:
                continue
            if p.models[name].by_batch:  # an answer must not depend on another client's examples
                parts = [held_out.select(np.arange(a, b)) for _, a, b in spans if b > a]
                right = np.concatenate([rows_right(p.models[name], w, p.task, part) for part in parts])
            else:
                right = rows_right(p.models[name], w, p.task, held_out)
            rate.update({k: float(right[a:b].mean()) for k, a, b in spans if b > a})
        return rate

    def _held_out(self, name: str, kind: HeldOut, partition: Partition) -> tuple[Examples | None, Spans]:
        """What the panel's clients of one architecture hold out, and each one's span in it; the same every round."""
        if (name, kind) not in self._held:
            p = self.population
            members = [k for k in self.panel if self.algorithm.pooled or p.assignment[k] == name]
            rows = [partition.rows(k) for k in members]
            ends = [int(n) for n in np.cumsum([0, *map(len, rows)])]
            examples = p.federation.train.select(np.concatenate(rows)) if ends[-1] else None
            self._held[name, kind] = examples, list(zip(members, ends[:-1], ends[1:], strict=True))
        return self._held[name, kind]


def mean(values: Iterable[float]) -> float | None:
    """The mean of the finite ones (a class without examples has no accuracy), None if there are none."""
    known = [float(v) for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else None
