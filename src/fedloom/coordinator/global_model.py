"""Measure the global model, as often as `global_every` says, and what a server wants evaluated beside it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedloom.coordinator.evaluation import Evaluation, finite, mean
from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core.errors import SettingError
from fedloom.core.json_types import JsonType, listed, mapped, within
from fedloom.core.task_measures import TaskMeasure
from fedloom.data import Examples
from fedloom.engines.population import Population
from fedloom.evaluate import by_class, evaluate_rows, forgetting, in_local, measured, out_local, rate_rows
from fedloom.evaluate.measure import Column, Entry, Measure, range_of, title_of

_BY_CLASS: tuple[Column, ...] = (
    Measure(
        "forgetting", "Forgetting", "forgetting",
        "Drop of a class from its best earlier round, mean over classes.",
        unit="points", better="low", tunable="test",
    ),
    Measure(
        "in_local_accuracy", "In-local accuracy", "in-local",
        "Accuracy of the global model on the classes that the round's clients hold.",
        tunable="test",
    ),
    Measure(
        "out_local_accuracy", "Out-local accuracy", "out-local",
        "Accuracy of the global model on the classes that the round's clients do not hold: what their training "
        "must not destroy.",
        tunable="test",
    ),
    Entry("class_accuracy", JsonType(listed(within(0, 1) | None) | None, "a list of numbers in 0..1 or null")),
)  # fmt: skip


class GlobalModel(Part):
    """The global model's accuracy and loss on the test set, its accuracy per class, and what follows from these.

    They are measured in every `every`-th round and in the last.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    @classmethod
    def of(cls, job: Brief) -> GlobalModel | None:
        return None if job.federation.test is None else cls(job.settings.global_every)

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        columns: tuple[Column, ...] = (
            Measure(
                f"global_{main.name}", f"Global {main.title}", "global",
                f"{title_of(main)} of the global model on the global test set.",
                main.unit, main.better, tunable="test",
            ),
            Measure(
                "global_loss", "Test loss", "test",
                "Loss of the global model on the global test set."
                + " Where it rises while accuracy holds, wrong answers become surer." * (main.name == "accuracy"),
                unit="loss", better="low", tunable="test",
            ),
            *(
                Measure(
                    f"global_{of.name}", f"Global {of.title}", f"global {of.title}",
                    f"The global model on the global test set. {of.meaning}",
                    of.unit, of.better, tunable="test", what=of.title,
                )
                for of in others
            ),
        )  # fmt: skip
        return columns + _BY_CLASS * any(of.name == "accuracy" for of in (main, *others))

    def after(self, run: Running) -> Record:
        return {} if run.done % self.every else self._judged(run)

    def end(self, run: Running) -> Record:
        return self._judged(run) if run.done % self.every else {}

    def lacks(self, records: Sequence[Record]) -> bool:
        return "global_loss" not in records[-1] and any("global_loss" in record for record in records)

    def _judged(self, run: Running) -> Record:
        of, p = run.evaluation, run.population
        weights = of.global_models(run.server)
        if not weights:
            return {}
        members = np.array([of.members[name] for name in weights])
        if members.any():
            members /= members.sum()  # exactly 1 where there is one architecture
        else:  # one that no client has
            members[:] = 1 / len(members)
        results = [
            evaluate_rows(p.models[n], w, p.task, of.names, _test_of(p, n, run.round)) for n, w in weights.items()
        ]
        found = measured(results, of.valued)
        out: Record = {
            f"global_{name}": finite(np.average([m[name] for m in found], weights=members)) for name in of.names
        }
        out["global_loss"] = finite(np.average([r.loss for r in results], weights=members))
        if not of.classes or "accuracy" not in found[0]:
            return out
        counts = [by_class(r, p.federation.num_classes) for r in results]
        per_class = np.average([c.per_class for c in counts], axis=0, weights=members)
        out["class_accuracy"] = [None if np.isnan(a) else float(a) for a in per_class]
        if run.clients:
            past = self._past(run)
            rows = np.vstack([past, per_class]) if len(past) else per_class[None]
            out["forgetting"] = mean(forgetting(rows))  # None at first: nothing to forget yet
            share = _shares(of, sorted(run.clients), run.round)  # a sum of floats depends on its order
            out["in_local_accuracy"] = mean(in_local(share, per_class))
            out["out_local_accuracy"] = mean(out_local(share, per_class))
        return out

    def _past(self, run: Running) -> npt.NDArray[np.float64]:
        """Return the accuracies by class of earlier rounds, [T, C], without one that was the last once."""
        judged = (m["round"] for m in run.history.metrics if m["round"] and m.get("class_accuracy") is not None)
        return run.history.per_class[[t % self.every == 0 for t in judged]]


class Predictions(Part):
    """The headline on the test set of what a server wants evaluated beside its global model (`Cohort.evaluate`)."""

    @classmethod
    def of(cls, job: Brief) -> Predictions | None:
        return None if job.federation.test is None else cls()

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        value = within(*range_of(main)) | None
        return (Entry(f"*_{main.name}", JsonType(value | mapped(value), "a number or null, or one for each client")),)

    def after(self, run: Running) -> Record:
        p, wanted, main, out = run.population, run.engine.traffic.to_judge, run.evaluation.main.name, Record()
        if wanted and p.behind:
            raise SettingError(
                f"{', '.join(wanted)} would be evaluated on inputs of none of the architectures, whose frozen "
                "fronts are computed once: set front = 'off' (--front off)"
            )
        test = p.at(run.round).test
        if not wanted or test is None:
            return out
        rate = functools.partial(rate_rows, task=p.task, measure=main, examples=test, device=p.device, dtype=p.dtype)
        for name, predict in wanted.items():
            if isinstance(predict, Mapping):
                out[f"{name}_{main}"] = {str(k): finite(rate(each)) for k, each in predict.items()}
            else:
                out[f"{name}_{main}"] = finite(rate(predict))
        return out


def _test_of(population: Population, name: str, round: int) -> Examples:
    """Return the global test set of a round with the inputs of an architecture."""
    test = population.seen_by(name, round).test
    assert test is not None
    return test


def _shares(of: Evaluation, cohort: Sequence[int], round: int) -> npt.NDArray[np.float64]:
    """Return the shares of classes of each client of the cohort, [K, C]; of all clients where data are pooled.

    Examples that arrive later, or have left, count too.
    """
    federation, owners = of.population.federation, of.engine.population.owners(cohort)
    y, classes = of.population.at(round).train.y, federation.num_classes
    rows = [y[federation.partition.rows(k)].cpu().numpy() for k in owners]
    counts = np.array([np.bincount(r, minlength=classes) for r in rows])
    shares: npt.NDArray[np.float64] = counts / counts.sum(1, keepdims=True)
    return shares
