"""Chance: the value of a measure for a model that looks at no input, and runs that end no better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedloom.coordinator.history import History
from fedloom.core.errors import SettingWarning, warn
from fedloom.core.local_training import Local
from fedloom.core.task_measures import Sum, TaskMeasure
from fedloom.data import Federation
from fedloom.data.inputs import IGNORED

_ROUNDING = 1e-9
_CLIENTS = 1000  # of which the chance of personal models is taken
_PATIENCE = 10  # rounds after which a run without a model above chance is warned of
_EXPLODED = 1000.0  # times the loss of the start


class Chance(NamedTuple):
    """The value of a measure for a model that looks at no input, and on how many examples; 0: it is not known.

    `start`: the value before training.
    """

    value: float
    examples: int
    start: float = 0.0

    @property
    def limit(self) -> float:
        """Value that shows no learning: two standard errors above chance, or that of untrained weights near chance."""
        luck = 2 * math.sqrt(self.value * (1 - self.value) / self.examples) if self.examples else 0.0
        untrained = self.start + _ROUNDING if self.start <= 2 * self.value else 0.0
        return max(self.value + luck, untrained)


def of_federation(federation: Federation, measures: Sequence[TaskMeasure]) -> dict[str, dict[str, float]]:
    """Return the chance of each measure that has one, by its name in records, as a manifest holds it.

    Of personal and validation models it is the mean over clients, or 1,000 of them, each of which answers what is most
    frequent among its own training examples.
    """
    f, y = federation, federation.train.y.cpu().numpy()
    sets: dict[str, list[_Targets]] = {} if f.test is None else {"global": [_Targets(_counted(f.test.y.cpu().numpy()))]}
    for whose, partition in (("personal", f.local_test), ("val", f.local_val)):
        if partition is not None and (f.train.remote is None or f.train.has_classes):  # devices send class counts alone
            sets[whose] = [
                _Targets(_counted(y[partition.rows(k)]), _counted(y[f.partition.rows(k)]))
                for k in np.linspace(0, f.num_clients - 1, min(f.num_clients, _CLIENTS)).astype(int).tolist()
            ]
    out = dict[str, dict[str, float]]()
    for whose, several in sets.items():
        filled = [one for one in several if len(one.answers)]
        for measure in measures:
            if filled and measure.chance is not None:
                mean = float(np.mean([one.chance(measure) for one in filled]))
                examples = sum(len(one.answers) for one in filled)
                out[f"{whose}_{measure.name}"] = {"value": mean, "examples": examples}
    return out


class _Targets(NamedTuple):
    """Targets that a model answers, and those that it was trained on; None: the same."""

    answers: npt.NDArray[Any]
    trained: npt.NDArray[Any] | None = None

    def chance(self, measure: TaskMeasure) -> float:
        declared = measure.chance
        if isinstance(declared, float):
            return declared
        if declared == "classes":
            return 1 / len(np.unique(self.answers))
        known = self.answers if self.trained is None or not len(self.trained) else self.trained
        values, counts = np.unique(known, return_counts=True)
        said = values[counts.argmax()]
        right = self.answers == said
        if declared == "constant" and isinstance(measure, Sum):
            true = np.bincount(self.answers, minlength=said + 1)
            one = np.arange(len(true)) == said
            total = np.stack([right.sum() * one, len(right) * one, true]).astype(np.float64)
            return measure.value(torch.from_numpy(total), len(right))
        return float(right.mean())


def _counted(y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the targets that count, in one row."""
    flat = y.reshape(-1)
    return flat[flat != IGNORED] if flat.dtype.kind == "i" else flat


def chance_of(history: History, name: str) -> Chance | None:
    """Return the chance of a number of a run's records; None where it is not known.

    A run of an earlier version has recorded none: that of its accuracies is at least 1 / classes.
    """
    recorded, classes = history.manifest.get("chance"), history.federation.get("classes", 0)
    start = next((float(r[name] or 0.0) for r in history.metrics[:1] if not r["round"] and name in r), 0.0)
    if not isinstance(recorded, Mapping):
        of_accuracy = name in ("global_accuracy", "personal_accuracy", "val_accuracy") and classes > 1
        return Chance(1 / classes, 0, start) if of_accuracy else None
    found = recorded.get(name)
    return None if found is None else Chance(float(found["value"]), int(found["examples"]), start)


def warn_of_ending(history: History, local: Local) -> None:
    """Warn of a run whose loss exploded, or whose models were never above chance."""
    name, records, main = history.algorithm, history.metrics, history.headline
    rate = f"lower local.lr (--lr), got {local.optimiser.lr:g}, or clip gradients (local.clip)"
    for loss in ("global_loss", "train_loss"):
        values = [(r["round"], r[loss]) for r in records if r.get(loss) is not None]
        usual = max(1.0, values[0][1] if values else 1.0)
        if values and (classes := history.federation.get("classes", 0)) > 1 and "targets" not in history.federation:
            usual = min(usual, max(1.0, math.log(classes)))  # of a model that looks at no input
        if values and values[-1][1] > _EXPLODED * usual:
            warn(
                f"{name}: the {loss} of round {values[-1][0]} is {values[-1][1]:.3g}, more than {_EXPLODED:,.0f} times "
                f"what training begins with: it diverged; {rate}",
                SettingWarning,
            )
            return
    if len(records) <= _PATIENCE or main.better == "low":
        return
    kinds = [f"{whose}_{main.name}" for whose in ("global", "personal")]
    measured = {kind: [r[kind] for r in records[1:] if r.get(kind) is not None] for kind in kinds}
    known = {kind: c for kind in kinds if measured[kind] and (c := chance_of(history, kind)) is not None}
    if known and all(max(measured[kind]) <= c.limit for kind, c in known.items()):
        kind, c = next(iter(known.items()))
        warn(
            f"{name}: no model was above chance in {len(records) - 1} rounds: {kind} ended at "
            f"{measured[kind][-1]:.4g}, and a model that looks at no input has {c.value:.4g}; change local.lr (--lr), "
            f"got {local.optimiser.lr:g}, train longer (--rounds, --epochs), or look at data and model",
            SettingWarning,
        )
