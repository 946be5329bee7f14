"""Problems that runs work on: data, who holds them, who is asked, what is learnt. Only runs of one are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedloom.coordinator.facts import plain
from fedloom.coordinator.history import History
from fedloom.coordinator.settings import RunSettings
from fedloom.data.sources import SOURCES
from fedloom.experiments.experiment import ClientSettings, DataSettings
from fedloom.experiments.problem import of_problem
from fedloom.report.printable import flat_settings, part, printable

_DEFAULTS = {
    section: {f.name: plain(f.default) for f in fields(of) if of_problem(f"{section}.{f.name}")}
    for section, of in (("data", DataSettings), ("clients", ClientSettings), ("run", RunSettings))
}
_BY_FOLDER = {name for name, source in SOURCES.items() if source.is_format}
UNKNOWN = "unknown data"  # the title where a run tells nothing


@dataclass(frozen=True)
class Problem:
    """Problem on which methods are compared.

    `title`: what tells it from the others beside it; `facts`: its settings by name.
    """

    title: str
    facts: dict[str, str]


def facts_of(history: History) -> dict[str, str]:
    """Return the settings of a run that are its problem, by name.

    Settings that its version did not know have their defaults. For a run from Python, they are what its manifest and
    federation.json say, with fingerprints of its test examples, or else of those to train on.
    """
    s, m, f = history.settings, history.manifest, history.federation
    known: dict[str, Any] = {}
    data = s.get("data")
    if isinstance(data := {"source": data} if isinstance(data, str) else data, dict):
        known["data"] = _DEFAULTS["data"] | data
        known["data"]["source"] = _published(str(known["data"]["source"])) or known["data"]["source"]
        known["clients"] = _DEFAULTS["clients"] | _mapping(s.get("clients"))
    elif m.get("federation") or f:
        told = _mapping(m.get("federation"))
        known["federation"] = {name: told.get(name, f.get(name)) for name in ("clients", "classes")}
        known["federation"]["partition"] = told.get("partition") or part(f, "data", "partition")
        for kind, prints in (("data", told.get("parts")), ("sample", part(f, "data", "sample"))):
            whose = next((name for name in ("test", "train") if part(prints, name)), None)
            known["federation"] |= {} if whose is None else {f"{whose} {kind}": part(prints, whose)}
        known["federation"] = {name: value for name, value in known["federation"].items() if value is not None}
    if m and "data" not in known:
        known |= {name: json.dumps(_without_seeds(m.get(name))) for name in ("sampler", "faults", "new")}
    known |= {"run": _DEFAULTS["run"] | run} if isinstance(run := s.get("run"), dict) else {}
    if (task := s.get("task", "classification" if "data" in known else m.get("task"))) is not None:
        known["task"] = task if isinstance(task, str) else json.dumps(task)
    return {name: value for name, value in flat_settings(known) if of_problem(name)}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seeds(inner) for name, inner in value.items() if name != "seed"}
    return [_without_seeds(inner) for inner in value] if isinstance(value, list) else value


def numbered(names: Sequence[str]) -> list[str]:
    """Add numbers to the names that occur more than once, so that no two are the same."""
    return [n if names.count(n) == 1 else f"{n} ({names[: i + 1].count(n)})" for i, n in enumerate(names)]


def data_name(history: History) -> str:
    """Return a name of the data of a run, in a word or two; "" where nothing is known."""
    source = part(history.settings, "data", "source") or part(history.settings, "data")
    if not isinstance(source, str):
        return printable(str(part(history.federation, "data", "name") or ""), 40).removesuffix(" train")
    text = source.partition("?")[0]
    kind, colon, folder = text.partition(":")
    if (colon and kind in _BY_FOLDER) or text.endswith((".csv", ".tsv", ".npz")):
        return printable(f"{kind}:{_last(folder)}" if colon and kind in _BY_FOLDER else _last(text), 40)
    return "devices" if kind == "devices" else printable(_published(text) or text, 60)


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/"))[-1]


def _published(source: str) -> str | None:
    """Return the name of original files, wherever they lie; None for other data."""
    name, colon, _ = source.partition(":")
    return name if colon and name in SOURCES and name not in _BY_FOLDER else None
