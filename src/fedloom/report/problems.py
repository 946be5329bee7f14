"""Problems of runs: data, partition, selection of clients, task. Only runs of one problem are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.history import History
from fedloom.coordinator.settings import RunSettings
from fedloom.experiments.problem import of_problem
from fedloom.experiments.settings_sections import ClientSettings, DataSettings, applies
from fedloom.report.printable import flat_settings, part, printable
from fedloom.sources.sources_by_name import SOURCES

_DEFAULTS = {
    section: {f.name: plain(f.default) for f in fields(of) if of_problem(f"{section}.{f.name}")}
    for section, of in (("data", DataSettings), ("clients", ClientSettings), ("run", RunSettings))
}
_BY_FOLDER = {name for name, source in SOURCES.items() if source.is_format}
_TABLES = (".csv", ".tsv", ".parquet")
_WILD = re.compile(r"\[[^]]*\]|[*]")  # of a pattern of files
UNKNOWN = "unknown data"  # the title where a run records nothing


@dataclass(frozen=True)
class Problem:
    """Problem on which methods are compared.

    `title`: unique among the problems of a report; `facts`: its settings by name.
    """

    title: str
    facts: dict[str, str]


def facts_of(history: History) -> dict[str, str]:
    """Return the settings of a run that define its problem, by name.

    Settings that its version did not know have their defaults. For a run from Python, they come from its manifest and
    federation.json, with fingerprints of its test examples, or of its training examples if there are none.
    """
    s, m, f = history.settings, history.manifest, history.federation
    facts: dict[str, Any] = {}
    data = s.get("data")
    if isinstance(data := {"source": data} if isinstance(data, str) else data, dict):
        facts["data"] = _DEFAULTS["data"] | data
        facts["data"]["source"] = _published(str(facts["data"]["source"])) or facts["data"]["source"]
        facts["clients"] = _DEFAULTS["clients"] | _mapping(s.get("clients"))
    elif m.get("federation") or f:
        recorded = _mapping(m.get("federation"))
        facts["federation"] = {name: recorded.get(name, f.get(name)) for name in ("clients", "classes")}
        facts["federation"]["partition"] = recorded.get("partition") or part(f, "data", "partition")
        for kind, prints in (("data", recorded.get("parts")), ("sample", part(f, "data", "sample"))):
            part_name = next((name for name in ("test", "train") if part(prints, name)), None)
            facts["federation"] |= {} if part_name is None else {f"{part_name} {kind}": part(prints, part_name)}
        rules = {name: recorded.get(name, f.get(name)) for name in ("arrives", "drift")}
        facts["federation"] |= {name: json.dumps(_without_seeds(rule)) for name, rule in rules.items() if rule}
        facts["federation"] = {name: value for name, value in facts["federation"].items() if value is not None}
    if m and "data" not in facts:
        facts |= {name: json.dumps(_without_seeds(m.get(name))) for name in ("sampler", "faults", "attack", "new")}
    facts |= {"run": _DEFAULTS["run"] | run} if isinstance(run := s.get("run"), dict) else {}
    if (task := s.get("task", "classification" if "data" in facts else m.get("task"))) is not None:
        facts["task"] = task if isinstance(task, str) else json.dumps(task)
    engine = part(s, "run", "engine")
    return {name: value for name, value in flat_settings(facts) if of_problem(name) and applies(name, engine)}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seeds(inner) for name, inner in value.items() if name != "seed"}
    return [_without_seeds(inner) for inner in value] if isinstance(value, list) else value


def number_repeats(names: Sequence[str]) -> list[str]:
    """Add numbers to the names that occur more than once, so that no two are the same."""
    return [n if names.count(n) == 1 else f"{n} ({names[: i + 1].count(n)})" for i, n in enumerate(names)]


def data_name(history: History) -> str:
    """Return a name of the data of a run, in a word or two; "" where nothing is known."""
    source = part(history.settings, "data", "source") or part(history.settings, "data")
    if not isinstance(source, str):
        return printable(str(part(history.federation, "data", "name") or ""), 40).removesuffix(" train")
    text = source.partition("?")[0]
    kind, colon, folder = text.partition(":")
    first, *more = text.split(",")
    if text.endswith(_TABLES) and more:
        return printable(f"{_last(first)} and {len(more)} more", 40)
    if text.endswith(_TABLES) and _WILD.search(text):
        return printable(_of_sites(text), 40)
    if (colon and kind in _BY_FOLDER) or text.endswith((".csv", ".tsv", ".npz")):
        return printable(f"{kind}:{_last(folder)}" if colon and kind in _BY_FOLDER else _last(text), 40)
    elsewhere = {"devices": "devices", "trained-elsewhere": "models trained elsewhere"}
    return elsewhere.get(kind) or printable(_published(text) or text, 60)


def _of_sites(pattern: str) -> str:
    """Return a name of the files of sites: of hospital-*.csv it is "hospital", of *.csv the name of their folder."""
    *folders, name = re.split(r"[/\\]", pattern)
    stem = _WILD.sub("", name.rpartition(".")[0]).strip("-_. ") if _WILD.search(name) else name
    named = [stem, *(folder for folder in reversed(folders) if not _WILD.search(folder))]
    return next((one for one in named if one.strip(".~")), "site files")


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/"))[-1]


def _published(source: str) -> str | None:
    """Return the name of published data, without the folder; None for other data."""
    name, colon, _ = source.partition(":")
    return name if colon and name in SOURCES and name not in _BY_FOLDER else None
