"""The records of a run so far, and the numbers that are read from them."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.coordinator import run_documents as reading
from fedloom.coordinator.chosen_rounds import (
    ClassRows,
    Reached,
    Summaries,
    measures_of_task,
    newest,
    validated_round,
)
from fedloom.coordinator.record_entries import columns_of, known, lower_is_better, measures_for, noted_measures
from fedloom.coordinator.verification import unproved
from fedloom.core.errors import SettingError
from fedloom.core.task_measures import TaskMeasure
from fedloom.evaluate.measure import Measure
from fedloom.storage import files
from fedloom.wording import did_you_mean, install

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from torch import nn

    from fedloom.coordinator.trained_networks import TrainedNetworks

Record = dict[str, Any]

SUMS = ("bytes", "seconds")  # of all rounds so far, in `rows`
EVALUATION = "evaluate"
# the phases that are no part of training: models after a round, what clients receive (`per_client`), new clients
MEASURING = frozenset({EVALUATION, "look", "new"})


@dataclass(repr=False)
class History:
    """The records of a run: one before training (round 0) and one after each round.

    `metrics` holds only what the seed determines; `timing` the seconds beside it, `per_client` the numbers of each
    client where `RunSettings.per_client` asks for them. All only grow. Weights after the last round are in `server` (by
    architecture; "" where the algorithm mixes them), `networks` makes `module` of them. `settings`: how the run was
    asked for; `manifest`: engine, versions, number of parameters; `federation`: who holds how many examples of which
    class. `stopped`: why the run ended before its last round, None if it did not. `unproved`: what no checkpoint proves
    of the logs that were read, in words; "" where nothing is in doubt.
    """

    algorithm: str
    engine: str = ""
    engine_reason: str = ""
    metrics: list[Record] = field(default_factory=list)
    timing: list[Record] = field(default_factory=list)
    per_client: list[Record] = field(default_factory=list)
    server: Any = None
    clients: Mapping[int, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    federation: dict[str, Any] = field(default_factory=dict)
    stopped: str | None = None
    unproved: str = ""
    networks: TrainedNetworks | None = field(default=None, repr=False, compare=False)
    _classes: ClassRows = field(default_factory=ClassRows, init=False, repr=False, compare=False)

    @functools.cached_property
    def task_measures(self) -> list[TaskMeasure]:
        """The measures of the task that its records have, the headline first."""
        return measures_of_task(self.manifest)

    @property
    def headline(self) -> TaskMeasure:
        """Measure by which models are compared: records have it as `global_<name>` and `personal_<name>`."""
        return self.task_measures[0]

    @functools.cached_property
    def measures(self) -> dict[str, Measure]:
        """Descriptions of all numbers of a record that are one a round, by name."""
        return measures_for(self.headline, self.task_measures[1:]) | self.columns

    @property
    def columns(self) -> dict[str, Measure]:
        """Descriptions of those among them that parts of the run have declared, or its code has noted, by name."""
        return columns_of(self.manifest) | noted_measures(self.metrics)

    def lower_is_better(self, name: str) -> bool:
        """Return whether a measure of the records is good when it is low.

        Args:
            name: as in the records.
        """
        return self.measures[name].better == "low" if name in self.measures else lower_is_better(name)

    @property
    def _headlines(self) -> list[str]:
        return [f"{whose}_{self.headline.name}" for whose in ("global", "personal", "val")]

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> History:
        """Return what a run directory holds, finished or not; `server` and `clients` stay empty.

        A last line that was cut off when the run was killed is left out. Logs and documents are compared with the
        digests that all checkpoints and the manifest have of them. A directory that was made by hand needs
        metrics.jsonl alone; a manifest that names no format is of such a directory, and proves nothing.

        Args:
            directory: of one run.

        Raises:
            SettingError: there is no run, or a file is damaged; names the file and the line.
            StorageError: the run is of another format, a file is not what the run wrote (DamageError), or cannot be
                read.
        """
        folder = files.path_of(directory)
        reading.check_there(folder)
        settings, manifest = reading.mapping(folder / "settings.json"), reading.mapping(folder / "manifest.json")
        nothing = ""  # proves it, and nothing has to
        if of_a_run := "format" in manifest:
            manifest = reading.manifest(folder)
        elif not files.exists(folder / "manifest.json") and files.exists(folder / "checkpoints"):
            nothing = "its manifest.json, which names the digests of all else, is not here"
        metrics, timing, per_client = reading.logs(folder, manifest)

        def fact(name: str) -> str:
            return str(manifest.get(name) or settings.get(name) or "")

        return cls(
            algorithm=fact("algorithm"), engine=fact("engine"), engine_reason=fact("engine_reason"),
            metrics=metrics, timing=timing, per_client=per_client, settings=settings, manifest=manifest,
            federation=reading.federation(folder / "federation.json"),
            unproved=unproved(folder, manifest, metrics) if of_a_run else nothing,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"History({', '.join(self._description())})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how the run ended, and its accuracies in all readings."""
        names = [name for name in self._headlines if len(self.series(name))]
        head = "".join(f"<th>{field}</th>" for field in ("", *(Summaries._fields if names else ())))
        rows = ""
        for name in names:
            cells = "".join(f"<td>{'–' if math.isnan(v) else f'{v:.4f}'}</td>" for v in self.summaries(name))
            rows += f"<tr><th>{name}</th>{cells}</tr>"
        return f"<p>{escape(', '.join(self._description()))}</p><table><tr>{head}</tr>{rows}</table>"

    def _description(self) -> list[str]:
        """Describe the run in a few words."""
        done = self.metrics[-1]["round"] if self.metrics else 0
        last = {name: self.last(name) for name in self._headlines}
        parts = [self.algorithm, f"{done} round{'s' * (done != 1)}"]
        parts += [f"{name}={value:.4f}" for name, value in last.items() if not math.isnan(value)]
        return parts + [f"stopped: {self.stopped}"] * (self.stopped is not None)

    def plot(self, *names: str, ax: Axes | None = None) -> Axes:
        """Draw measured numbers over rounds: those that are named, or the accuracies.

        Args:
            names: as `series` has them.
            ax: where to draw; without it, axes of a new figure, which a notebook shows.

        Returns:
            The axes, to change or to save: `history.plot().figure.savefig("run.png")`.

        Raises:
            SettingError: no round has measured a number, or matplotlib is not installed.
        """
        shown = names or tuple(name for name in self._headlines if self._values(name))
        for name in shown or self._headlines[:1]:
            if not self._values(name):
                raise self._unmeasured(name)
        from fedloom.display.line_plot import lines  # when it is asked for, as what it draws with

        return lines({f"{self.algorithm}: {name.replace('_', ' ')}": self._values(name) for name in shown}, ax)

    def _unmeasured(self, name: str) -> SettingError:
        """Return the error that a number was never measured; it names those that were."""
        known = sorted({key for row in self.rows() for key, value in row.items() if value is not None})
        there = ", ".join(known) or "nothing"
        return SettingError(
            f"no round has measured {name!r}{did_you_mean(name, known)}; measured: {there} [FL-TASK-007]"
        )

    def newest_accuracy(self) -> str:
        """Return in words the number that says best how the run is doing: "global 0.8312", "personal -" before any."""
        name = "global" if len(self.series(self._headlines[0])) else "personal"
        value = self.last(f"{name}_{self.headline.name}")
        return f"{name} {'-' if math.isnan(value) else f'{value:.4f}'}"

    def __iter__(self) -> Iterator[Record]:
        return iter(self.metrics)

    def _values(self, name: str) -> list[tuple[int, float]]:
        """Return a number by round, in the rounds that have it: of `metrics`, or one that `rows` makes of them.

        Raises:
            SettingError: it is several numbers a round.
        """
        values = [(m["round"], m[name]) for m in self._records(name) if m.get(name) is not None]
        if any(not isinstance(value, (int, float)) for _, value in values):
            remedy = "class_accuracy_0, ... are numbers" if name == "class_accuracy" else "read it in `metrics`"
            raise SettingError(f"a number over rounds is one a round, and {name!r} has several: {remedy}")
        return values

    def _records(self, name: str) -> list[Record]:
        """Return the records that may have a number: those of `rows`, where these derive it."""
        derived = _many(name) or name in ("clients", "failed", *SUMS)
        return self.rows() if derived else self.metrics

    def _known_values(self, name: str) -> list[tuple[int, float]]:
        """Return a number by round as `_values`, none where this run has not measured it.

        Raises:
            SettingError: there is no such number, in these records or of any task.
        """
        there = self._values(name)
        of_some = not self.metrics or name in known() or name in self.measures or name.startswith(_NOTED)
        if not (there or of_some) and not any(name in row for row in self.rows()):
            raise self._unmeasured(name)
        return there

    def has(self, name: str) -> bool:
        """Return whether a round has measured a number.

        Args:
            name: as in `metrics` or in `frame`.

        Raises:
            SettingError: it is several numbers a round.
        """
        return bool(self._values(name))

    def series(self, name: str) -> npt.NDArray[np.float64]:
        """Return one measured number over the rounds that have it.

        Args:
            name: as in `metrics` or in `frame`.

        Raises:
            SettingError: there is no such number, or it is several numbers a round, as `personal_by_client`.
        """
        return np.array([value for _, value in self._known_values(name)], np.float64)

    def last(self, name: str, count: int = 1) -> float:
        """Return the mean of a number over the last rounds; NaN if it was never measured, or was undefined at the end.

        Where it was measured in none of these rounds, its newest value is returned. What was measured before training
        is in no such mean.

        Args:
            name: as in `metrics`.
            count: over how many rounds.

        Raises:
            SettingError: as of `series`.
        """
        if not (there := self._known_values(name)) or self._undefined_at_end(name):
            return math.nan
        first = max(1, self.metrics[-1]["round"] - count + 1)
        return float(np.mean([value for t, value in there if t >= first] or [there[-1][1]]))

    def summaries(self, name: str, tail: int | None = None) -> Summaries:
        """Return a measured number, read in five ways.

        Args:
            name: as in `metrics`.
            tail: over how many of the last rounds its mean is taken; None: by the number of rounds (`newest`).

        Raises:
            SettingError: as of `series`.
        """
        there = self._known_values(name)
        if not there:
            return Summaries(*[math.nan] * 5)
        values = np.array([value for _, value in there], np.float64)
        chosen = validated_round((m for m in self._records(name) if name in m), self.headline)
        many = newest(self.metrics[-1]["round"]) if tail is None else tail
        known = not self._undefined_at_end(name)
        return Summaries(
            last=float(values[-1]) if known else math.nan,
            tail=self.last(name, many),
            validated=math.nan if chosen is None else float(dict(there).get(chosen, math.nan)),
            best=float(values.min() if self.lower_is_better(name) else values.max()),
            mean=float(values.mean()) if known else math.nan,
        )

    def _undefined_at_end(self, name: str) -> bool:
        """Return whether a number had no value when it was measured last: that of a model that diverged, say."""
        return next((m[name] is None for m in reversed(self._records(name)) if name in m), False)

    def module(self, name: str | None = None) -> nn.Module:
        """Return the global network on the CPU, in evaluation mode; what is frozen in it is what the run began with.

        Args:
            name: of the architecture, where there are several.

        Raises:
            SettingError: there is no such model, or this history was read from a directory.
        """
        if self.networks is None:
            raise SettingError(
                "history.module() is of a run in this process; fedloom export DIR FILE writes a finished run's network"
            )
        return self.networks.module(self.server, name)

    @property
    def validated_round(self) -> int | None:
        """Best round on validation data, as `validated_round` of the records."""
        return validated_round(self.metrics, self.headline)

    @property
    def per_class(self) -> npt.NDArray[np.float64]:
        """Accuracy of the global model by evaluated round (after training began) and class, [T, C]."""
        return self._classes.of(self.metrics)

    def rows(self) -> list[Record]:
        """Return one flat record per round, of numbers and None: the columns of `frame`."""
        timing = {t["round"]: t["seconds"] for t in self.timing}
        moved, seconds, out = 0, 0.0, []
        for metrics in self.metrics:
            row: Record = {"round": metrics["round"], "clients": len(metrics.get("clients", ()))}
            row["failed"] = len(metrics.get("failed", ()))
            for name, value in metrics.items():
                if name not in row and (value is None or isinstance(value, (int, float))):
                    row[name] = value
            row.update({f"class_accuracy_{c}": a for c, a in enumerate(metrics.get("class_accuracy") or ())})
            laps = timing.get(metrics["round"], {} if metrics["round"] == 0 else None)
            row.update({f"seconds_{phase}": s for phase, s in (laps or {}).items()})
            moved += (metrics.get("bytes_down") or 0) + (metrics.get("bytes_up") or 0)
            seconds += math.nan if laps is None else sum(s for phase, s in laps.items() if phase not in MEASURING)
            out.append({**row, "bytes": moved, "seconds": None if math.isnan(seconds) else seconds})
        return out

    def frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with one row per round and one column per measured number.

        Accuracies by class are in `class_accuracy_0`, ...; seconds by phase in `seconds_train`, ...; `clients` and
        `failed` are numbers of clients. `bytes` (down and up) and `seconds` (all phases but `MEASURING`) are sums
        since the start.

        Raises:
            SettingError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise SettingError(f"a data frame needs pandas: {install('report')}") from None
        rows = self.rows()
        names = sorted(dict.fromkeys(name for row in rows for name in row), key=_many)
        frame: pd.DataFrame = pd.DataFrame(rows, columns=names).apply(pd.to_numeric)  # None becomes NaN
        return frame

    def to_target(self, metric: str, target: float) -> Reached | None:
        """Return the first round in which a number reaches a target, and its cost until then; None if none does.

        Accuracies reach a target from below; losses, forgetting, drops and standard deviations from above.

        Args:
            metric: as in `metrics`.
            target: the value to reach.

        Returns:
            The round; bytes down and up in all rounds until then; seconds of every phase but `MEASURING`: training
            alone.

        Raises:
            SettingError: no round has this number.
        """
        lower = self.lower_is_better(metric)
        rows = self.rows()
        if not self._values(metric):
            raise self._unmeasured(metric)
        for row in rows:
            value = row.get(metric)
            if value is not None and (value <= target if lower else value >= target):
                seconds = math.nan if row["seconds"] is None else row["seconds"]
                return Reached(row["round"], row["bytes"], seconds)
        return None


_NOTED = ("client_", "server_", "bytes_", "new_", "class_accuracy_", "seconds_")  # that only some runs have


def _many(name: str) -> bool:
    """Return whether a column is one of many of a kind; those come last."""
    return name.startswith(("class_accuracy_", "seconds_"))
