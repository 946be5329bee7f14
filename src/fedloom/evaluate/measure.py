"""Numbers and other entries of a round's record, as whoever computes them declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.json_types import JsonType, number
from fedloom.core.task_measures import TaskMeasure
from fedloom.wording import did_you_mean

METRICS = "metrics.jsonl"  # the log of what the seed determines
Range = tuple[float | None, float | None]
_RANGES: dict[str, Range] = {"%": (0.0, 1.0), "points": (-1.0, 1.0)}


@dataclass(frozen=True)
class Measure:
    """A number of a round's record."""

    name: str
    """Its key in `metrics.jsonl`."""
    title: str
    """Heading."""
    label: str
    """Its name among others of its kind: in legends and columns."""
    meaning: str
    """Its meaning, and over whom. One sentence; a remark may follow."""
    unit: Literal["%", "points", "loss", "s", ""] = "%"
    """Shares (0..1 in the record) are printed in %, differences of shares in points, other numbers as they are."""
    better: Literal["high", "low"] | None = "high"
    """None: neither."""
    tunable: Literal["", "partition", "local_val", "local_test", "test"] = ""
    """The part of a federation with the examples that it is measured on, where a sweep can choose settings by it."""
    what: str = ""
    """The measure of the task that is taken of each model."""
    range: Range = (None, None)
    """Least and greatest value, None: any. Of shares it is (0, 1) and of their differences (-1, 1) unless it is said.
    Values beyond it are refused when they are recorded and when records are read."""

    def __post_init__(self) -> None:
        low, high = self.range if self.range != (None, None) else _RANGES.get(self.unit, (None, None))
        object.__setattr__(self, "range", (low, high))
        check_choices(self)
        if low is not None and high is not None and low > high:
            raise SettingError(
                f"range of {self.name} is the least value before the greatest, got {(low, high)}: swap them"
            )

    @property
    def kind(self) -> JsonType:
        """The type of its values, null where it is undefined."""
        return number(*self.range)

    @property
    def caption(self) -> str:
        """Meaning of the measure, with its direction where a reader may mistake it."""
        return self.meaning + " Lower is better." * (self.unit == "points" and self.better == "low")

    @property
    def axis(self) -> str:
        """The label of an axis."""
        of = f"{self.title.lower()} ({self.unit})"
        return {"%": f"{self.what} (%)", "points": of, "s": of, "loss": "loss"}.get(self.unit, self.title)


@dataclass(frozen=True)
class Entry:
    """An entry of a record that is no measure, such as who was asked."""

    name: str
    """Its key; `*` stands for any text. In `clients.jsonl` it is `judged.own` and the like."""
    kind: JsonType
    log: str = METRICS


Column = Measure | Entry


def title_of(measure: TaskMeasure) -> str:
    """Return what begins a sentence about a measure of a task."""
    return measure.title[:1].upper() + measure.title[1:]


def added_up(measure: TaskMeasure) -> str:
    """Return what begins a sentence about a measure over the examples of all clients together."""
    return "All right answers" if measure.name == "accuracy" else title_of(measure)


def range_of(measure: TaskMeasure) -> Range:
    """Return the range of a measure of a task."""
    return _RANGES.get(measure.unit, (None, None))


def difference(measure: TaskMeasure) -> Literal["points", ""]:
    """Return the unit of differences of a measure of a task."""
    return "points" if measure.unit == "%" else ""


HEADLINE = "global_accuracy"
"""The measure that is watched where nothing is said; where the headline is another one it stands for that."""
VALIDATION = "val_accuracy"
"""The measure that spares the test examples, by which to choose settings."""


def monitored(name: str, measures: Mapping[str, Measure]) -> Measure:
    """Return the measure that a run watches under a name, of those of its task (`measures_for`).

    Raises:
        SettingError: it has none of this name, or one that cannot be watched.
    """
    if name == HEADLINE:
        name = next(n for n in measures if n.startswith("global_"))
    known = [n for n, measure in measures.items() if measure.tunable]
    if name not in known:
        raise SettingError(
            f"monitor must be one of the measures of this task, {', '.join(known)}, got {name!r}"
            f"{did_you_mean(name, known)}: choose one of them, or compute it too (--measures) [FL-TASK-006]"
        )
    return measures[name]
