"""Measure the personal models of clients: on held-out, on validation and on training examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedloom.coordinator.evaluation import per_row
from fedloom.coordinator.history import Record
from fedloom.coordinator.part import Brief, Part, Running
from fedloom.core.algorithm import Algorithm
from fedloom.core.json_types import COUNT, JsonType, in_words, mapped, number, within
from fedloom.core.task import ChoosesThreshold
from fedloom.core.task_measures import TaskMeasure, sign
from fedloom.evaluate.measure import Column, Entry, Measure, added_up, difference, range_of

_WHOSE: tuple[tuple[str, str, str, Literal["local_val", "local_test"]], ...] = (
    ("val", "validation", "validation", "local_val"),
    ("personal", "personal", "held-out", "local_test"),
)


class Threshold(Part):
    """The threshold of a task's measures, chosen by the clients' validation examples in rounds with evaluations.

    They are evaluated by the models that `PersonalModels` evaluates.
    """

    def __init__(self, rhythms: Sequence[int]) -> None:
        self.rhythms, self._chosen = rhythms, -1  # the round that it was chosen in last

    @classmethod
    def of(cls, job: Brief) -> Threshold | None:
        if not isinstance(job.task, ChoosesThreshold) or job.task.chosen_by is None:
            return None
        return cls((job.settings.global_every, job.settings.eval_every))

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        return (Entry("threshold", number(0, 1)),)

    def after(self, run: Running) -> Record:
        return {} if all(run.done % every for every in self.rhythms) else self._choose(run)

    def due(self, run: Running) -> Record:
        return {} if self._chosen == run.done else self._choose(run)  # of a last round

    def _choose(self, run: Running) -> Record:
        of, task, self._chosen = run.evaluation, run.population.task, run.done
        assert isinstance(task, ChoosesThreshold)
        assert task.chosen_by is not None
        found = of.clients(run.server, run.round, "val", keep=True)
        sums = [one.sums[task.chosen_by] for one in found.values()]
        known = bool(sums) and not any(one.silent for one in found.values())
        threshold = task.choose(sum(sums[1:], sums[0])) if known else None
        of.valued = task.measured_at(threshold)
        return {"threshold": threshold}


class PersonalModels(Part):
    """Each client of the panel, judged by its personal model on its own held-out and validation examples."""

    @classmethod
    def of(cls, job: Brief) -> PersonalModels:
        return cls()

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        what, unit, better = main.title, main.unit, main.better
        values = range_of(main)
        by_client = JsonType(mapped(within(*values)), f"a mapping of clients to numbers{in_words(*values)}")
        return (
            Measure(
                f"val_{main.name}", f"Validation {what}", "validation",
                f"Mean over clients of the {what} of each one's personal model on its validation examples.",
                unit, better, tunable="local_val",
            ),
            Measure(
                f"personal_{main.name}", f"Personal {what}", "personal",
                f"Mean over clients of the {what} of each one's personal model on its own held-out examples.",
                unit, better, tunable="local_test",
            ),
            Measure(
                "personal_std", "Spread over clients", "spread",
                f"Standard deviation of personal {what} over clients.",
                unit=difference(main), better="low", tunable="local_test", range=(0.0, values[1]),
            ),
            Measure(
                "personal_worst_tenth", f"Personal {what} of the worst decile", "worst decile",
                f"Mean personal {what} of the 10 % of clients with the {'lowest' if better == 'high' else 'highest'} "
                f"{what}.",
                unit, better, tunable="local_test",
            ),
            Measure(
                f"personal_{main.name}_by_samples", f"Personal {what} by samples", "personal, by samples",
                f"{added_up(main)} of personal models over all held-out examples: large clients count for more.",
                unit, better,
            ),
            *(
                Measure(
                    f"{whose}_{of.name}", f"{whose.capitalize()} {of.title}", f"{label} {of.title}",
                    f"Mean over clients, personal models on {examples} examples. {of.meaning}",
                    of.unit, of.better, tunable=part, what=of.title,
                )
                for of in others
                for whose, label, examples, part in _WHOSE
            ),
            Entry("without_personal", COUNT),
            Entry("personal_by_client", by_client),
            *(Entry(f"{whose}_*_undefined", COUNT) for whose, *_ in _WHOSE),
        )  # fmt: skip

    def due(self, run: Running) -> Record:
        out: Record = {}
        of = run.evaluation
        found, main = of.clients(run.server, run.round, "test"), of.main.name
        if found:
            rate = {k: found[k].values[main] for k in of.panel if k in found and math.isfinite(found[k].values[main])}
            values, up = np.array([*rate.values()]), sign(of.main.better)
            known = len(values) > 0 and of.mean_over(main, found.values()) is not None
            worst = up * np.sort(up * values)[: max(1, len(values) // 10)]
            # an algorithm may tell clients without a model of their own from others
            tells = type(of.algorithm).has_personal is not Algorithm.has_personal
            out = {
                f"personal_{main}": float(values.mean()) if known else None,
                f"personal_{main}_by_samples": of.by_samples(main, found.values()),
                "personal_std": float(values.std()) if known else None,
                "personal_worst_tenth": float(worst.mean()) if known else None,
                **({"without_personal": sum(not one.own for one in found.values())} if tells else {}),
                "personal_by_client": {str(k): value for k, value in rate.items()},
            }
            out |= of.others("personal", found)
        found = of.clients(run.server, run.round, "val")
        if found:
            out[f"val_{main}"] = of.mean_over(main, found.values())
            out |= of.others("val", found)
        return out

    def lacks(self, records: Sequence[Record]) -> bool:
        begun, ended = (any(name.startswith(("personal_", "val_")) for name in r) for r in (records[0], records[-1]))
        return begun and not ended  # personal models are judged before the first round too, where that can be


class TrainingLoss(Part):
    """The mean loss over all training examples of the panel, each client's by its personal model."""

    @classmethod
    def of(cls, job: Brief) -> TrainingLoss | None:
        return cls() if job.settings.evaluate_training else None

    @staticmethod
    def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure]) -> tuple[Column, ...]:
        return (
            Measure(
                "personal_train_loss", "Training loss of all clients", "training, all clients",
                "Mean loss of personal models over all training examples of their clients, without augmentation and "
                "without the extra terms of an algorithm: it compares methods.",
                unit="loss", better="low",
            ),
        )  # fmt: skip

    def due(self, run: Running) -> Record:
        of, engine = run.evaluation, run.engine
        pooled = (holders := engine.population.holders(of.panel)) is not of.panel
        found = engine.evaluate(run.server, holders, run.round, "all") if pooled else of.results(run.server, run.round)
        results = found.values()
        rows, total = sum(int(of.trained) for of in results), sum(float(of.train_loss) for of in results)
        return {"personal_train_loss": per_row(total, rows)}
