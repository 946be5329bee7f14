"""Problems that runs work on: data, who holds them, who is asked, what is learnt. Only runs of one are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fedloom.coordinator.facts import plain
from fedloom.coordinator.history import History
from fedloom.coordinator.settings import RunSettings
from fedloom.data.sources import SOURCES
from fedloom.experiments.experiment import ClientSettings, DataSettings
from fedloom.experiments.problem import of_problem
from fedloom.report.printable import flat_settings, part, printable

if TYPE_CHECKING:
    from fedloom.report.methods import Method, Run

_DEFAULTS = {
    section: {f.name: plain(f.default) for f in fields(of) if of_problem(f"{section}.{f.name}")}
    for section, of in (("data", DataSettings), ("clients", ClientSettings), ("run", RunSettings))
}
_BY_FOLDER = ("images", "leaf", "femnist")  # sources whose names do not say what is in the folder
_PARTS = ("train", "test", "public")
_BARE = ("data.partition", "federation.partition")  # whose values tell what they are of
_MOST = 3  # settings in a title
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


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """Group runs by their problem; groups are in the order of their first runs."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if all(_one_problem(run, other) for other in group):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _one_problem(one: Run, other: Run) -> bool:
    """Return whether nothing differs in what two runs tell of their problems.

    Settings may be the same although a file was changed. Two runs with the same draw of it must therefore also have the
    same fingerprints.
    """
    a, b = one.problem, other.problem
    if any(_tells(a, kind) != _tells(b, kind) for kind in ("data.", "federation.")):
        return False
    if any(a[name] != b[name] for name in a.keys() & b.keys()):
        return False
    return one.draw != other.draw or not any(_differ(one.history, other.history, name) for name in _PARTS)


def _tells(facts: dict[str, str], kind: str) -> bool:
    return any(name.startswith(kind) for name in facts)


def _differ(one: History, other: History, name: str) -> bool:
    """Return whether two runs tell different fingerprints of a part of their data."""
    for path in (("manifest", "federation", "parts", name), ("federation", "data", "sample", name)):
        a, b = (part(vars(history), *path) for history in (one, other))
        if a is not None and b is not None:
            return bool(a != b)
    return False


def titled(groups: Sequence[Sequence[Run]]) -> list[Problem]:
    """Return the problem of each group, titled by its data and by what else tells it from the others."""
    found = [group[0].problem for group in groups]
    names = dict.fromkeys(name for facts in found for name in facts if name != "data.source")
    other = [name for name in names if len({facts.get(name) for facts in found}) > 1]
    if any(name.endswith(" data") for name in other):
        other = [name for name in other if not name.endswith(" sample")]  # the same once more
    titles = []
    for (first, *_), facts in zip(groups, found, strict=True):
        words = [_said(name, facts[name]) for name in other if name in facts][:_MOST]
        titles.append(", ".join(filter(None, (data_name(first.history), *words))) or UNKNOWN)
    full = [printable(facts.get("data.source", title), 60) for facts, title in zip(found, titles, strict=True)]
    titles = [f if titles.count(t) > 1 and not other else t for t, f in zip(titles, full, strict=True)]
    return [Problem(title, facts) for title, facts in zip(numbered(titles), found, strict=True)]


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


def by_problem(methods: Sequence[Method]) -> list[tuple[Problem, list[Method]]]:
    """Group methods by the problem that their runs work on."""
    problems = list(dict.fromkeys(m.problem.title for m in methods))
    groups = [[m for m in methods if m.problem.title == title] for title in problems]
    return [(group[0].problem, group) for group in groups]


def _last(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/"))[-1]


def _published(source: str) -> str | None:
    """Return the name of original files, wherever they lie; None for other data."""
    name, colon, _ = source.partition(":")
    return name if colon and name in SOURCES and name not in _BY_FOLDER else None


def _said(name: str, value: str) -> str:
    return value if name in _BARE else f"{name.rpartition('.')[2]}={value}"
