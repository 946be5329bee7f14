"""Records of a run: their entries, gathered from the parts and modules that compute and declare them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from fedloom.coordinator.chosen_rounds import measures_of_task
from fedloom.core.errors import SettingError
from fedloom.core.json_types import JsonType
from fedloom.core.task_measures import TaskMeasure, chosen_measures, measures_of
from fedloom.evaluate.measure import METRICS, Column, Entry, Measure
from fedloom.storage.strict_json import short
from fedloom.tasks import Binary, Classification, MultiLabel, Regression

DECLARING = (
    "fedloom.coordinator.personal_models:Threshold",
    "fedloom.coordinator.personal_models:PersonalModels",
    "fedloom.coordinator.personal_models:TrainingLoss",
    "fedloom.coordinator.round_record",
    "fedloom.coordinator.schedule:Schedule",
    "fedloom.coordinator.global_model:GlobalModel",
    "fedloom.coordinator.global_model:Predictions",
    "fedloom.coordinator.per_client:PerClient",
    "fedloom.coordinator.newcomers:Newcomers",
)
"""Parts and modules that compute what records hold; pages have their numbers in this order."""
_ORDER = ("local_val", "partition", "test", "local_test", "")  # of the examples that numbers are measured on


def named(where: str) -> Any:
    """Return a module, or what it has: `module:name`."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def columns_for(main: TaskMeasure, others: Sequence[TaskMeasure] = ()) -> list[Column]:
    """Return all that records may hold, for a task with this headline measure, and others that are computed too."""
    return [column for where in DECLARING for column in named(where).columns_for(main, others)]


def measures_for(main: TaskMeasure, others: Sequence[TaskMeasure] = ()) -> dict[str, Measure]:
    """Return the numbers among `columns_for`, by name: those of the headline, of each other measure, then the rest."""
    titles = [main.title, *(other.title for other in others)]

    def place(measure: Measure) -> tuple[int, int]:
        of = titles.index(measure.what)
        return of if measure.tunable or not of else len(titles), _ORDER.index(measure.tunable)

    found = (c if c.what else replace(c, what=main.title) for c in columns_for(main, others) if isinstance(c, Measure))
    return {measure.name: measure for measure in sorted(found, key=place)}


def chosen(task: object, names: Sequence[str] = (), main: str = "") -> list[TaskMeasure]:
    """Return the measures of a task to compute, the headline first. `names`, `main`: as of `chosen_measures`.

    Raises:
        SettingError: the task has no measure of such a name.
    """
    known = measures_of(task)
    return [known[name] for name in chosen_measures(task, names, main)]


@functools.cache
def known() -> Mapping[str, Measure]:
    """Return the numbers of the records of all built-in tasks; what they share is as classification has it."""
    out: dict[str, Measure] = {}
    for task in (Binary(), MultiLabel(), Regression(), Classification()):
        first, *others = task.measures
        out |= measures_for(first, others)
    first, *_ = Classification().measures
    return out | measures_for(first)


def lower_is_better(name: str) -> bool:
    """Return whether a measure is good when it is low.

    A number that an algorithm notes itself is good when it is low if it is a loss.
    """
    return known()[name].better == "low" if name in known() else name.endswith("loss")


class Entries:
    """The types of entries by their names, by log: those that are named first, then those of a pattern."""

    def __init__(self, columns: Iterable[Column] = ()) -> None:
        self.kinds: dict[str, dict[str, JsonType]] = {}
        for column in columns:
            log = column.log if isinstance(column, Entry) else METRICS
            self.kinds.setdefault(log, {})[column.name] = column.kind
        self._found: dict[tuple[str, str], JsonType | None] = {}

    def names(self, log: str) -> list[str]:
        """Return the names of a log's entries."""
        return list(self.kinds.get(log, ()))

    def kind(self, log: str, name: str) -> JsonType | None:
        """Return the type that an entry must have; None where nobody declares it."""
        if (log, name) not in self._found:
            kinds = self.kinds.get(log, {})
            pattern = next((one for one in kinds if "*" in one and fnmatchcase(name, one)), "")
            self._found[log, name] = kinds.get(name) or kinds.get(pattern)
        return self._found[log, name]


def entries_of(manifest: Mapping[str, Any]) -> Entries:
    """Return the types of the entries of a run's records, by what its manifest says of its measures and columns.

    Raises:
        ValueError: it says something else than a run writes.
    """
    found = list[Column]()
    for name, kind, read in (("measures", TaskMeasure, _of_task), ("columns", Measure, columns_of)):
        try:
            found += read(manifest).values()
        except (TypeError, KeyError, AttributeError, SettingError):
            said = ", ".join(sorted(field.name for field in fields(kind)))
            raise ValueError(f"{name} must be a list of mappings of {said}, got {short(manifest[name])}") from None
    return Entries(found)


def _of_task(manifest: Mapping[str, Any]) -> dict[str, Column]:
    main, *others = measures_of_task(manifest)
    return {column.name: column for column in columns_for(main, others)}


def columns_of(manifest: Mapping[str, Any]) -> dict[str, Measure]:
    """Return the columns that a run's parts from outside have declared, by name."""
    said = ({**one, "range": tuple(one.get("range", (None, None)))} for one in manifest.get("columns", ()))
    return {one["name"]: Measure(**one) for one in said}


def noted_measures(records: Sequence[Mapping[str, Any]]) -> dict[str, Measure]:
    """Return descriptions of the numbers that clients (`client.note`) and a server (`cohort.note`) have noted."""
    found = {name: None for record in records for name, value in record.items() if not isinstance(value, list | dict)}
    return {name: measure for name in found if (measure := _noted(name, found)) is not None}


def _noted(name: str, others: Collection[str]) -> Measure | None:
    whose, _, what = name.partition("_")
    of = "Mean over the clients of a round of what each noted as"
    if whose == "client" and what.endswith("_std") and name.removesuffix("_std") in others:
        what = what.removesuffix("_std")
        title, of = (
            f"Spread of {what} over clients",
            "Standard deviation over the clients of a round of what each noted as",
        )
    elif whose == "client":
        title = f"Clients' {what}"
    elif whose == "server" and name not in ("server_loss", "server_refused"):
        title, of = f"Server's {what}", "Number that the server noted as"
    else:
        return None
    return Measure(name, title, name, f"{of} {what}.", unit="", better="low" if lower_is_better(name) else None)
