"""Every run below some directories, grouped into methods that differ in more than their seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedloom.coordinator.history import History
from fedloom.core.errors import SettingError
from fedloom.experiments.catalogue import label
from fedloom.report.methods import Method, Run, free_in_a_method
from fedloom.report.order import ordered_runs
from fedloom.report.printable import printable
from fedloom.report.style import looks

_MOST = 1e30  # of a number; a loss beyond has diverged


def read_methods(directories: Sequence[str | os.PathLike[str]]) -> tuple[list[Method], list[str]]:
    """Every run below some directories, grouped by what was asked for but the seed; and remarks for the reader.

    Methods of a comparison stand in the order in which it named them.

    Raises:
        SettingError: a directory holds no run, or a file of one is damaged.
    """
    runs: list[Run] = []
    remarks: list[str] = []
    seen: set[Path] = set()
    for directory in directories:
        below = ordered_runs(directory)
        if not below:
            raise SettingError(f"{directory} holds no run (a folder with a metrics.jsonl); name one that does")
        for path in below:
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            name = path.relative_to(directory) if path != Path(directory) else Path(path.resolve().name)
            if len(directories) > 1 and path != Path(directory):
                name = Path(Path(directory).resolve().name) / name
            run = Run(printable(name.as_posix()), History.read(path))
            if _within(run.history):
                remarks.append(f"{run.folder}: numbers beyond {_MOST:g} are left out.")
            if run.history.metrics:
                runs.append(run)
            else:
                remarks.append(f"{run.folder}: no round is complete; left out.")
    if not runs:
        raise SettingError(f"no run below {', '.join(map(str, directories))} has a complete round yet; try again later")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.key(), []).append(run)
    ordered = [sorted(group, key=lambda run: -1 if run.seed is None else run.seed) for group in groups.values()]
    labels = _labels(ordered)
    names = [
        " ".join(dict.fromkeys([label(group[0].algorithm), called]))
        for called, group in zip(labels, ordered, strict=True)
    ]
    numbers = looks(names)
    methods = [
        Method(called, number, tuple(group)) for called, number, group in zip(labels, numbers, ordered, strict=True)
    ]
    return methods, remarks + [remark for method in methods for remark in _remarks(method)]


def differences(methods: Sequence[Method]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Settings that all methods share, and for each method those that not all have alike; without seeds."""
    facts = [{k: v for k, v in m.first.facts.items() if not free_in_a_method(k)} for m in methods]
    names = list(dict.fromkeys(name for f in facts for name in f))
    alike = {name for name in names if all(f.get(name) == facts[0].get(name) for f in facts)}
    return {n: facts[0][n] for n in names if n in alike}, [
        {n: f[n] for n in names if n in f and n not in alike} for f in facts
    ]


def _within(history: History) -> bool:
    """Leave out numbers that no figure can show and no mean be taken of; whether there were any."""
    records = [*history.metrics, *(t["seconds"] for t in history.timing)]
    beyond = [(r, k) for r in records for k, v in r.items() if isinstance(v, (int, float)) and abs(v) > _MOST]
    for record, name in beyond:
        del record[name]
    return bool(beyond)


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The algorithm; where that leaves twins, what differs in their settings if it is little, or the folder."""
    names = [label(run.algorithm) for run, *_ in groups]
    out = []
    for name, group in zip(names, groups, strict=True):
        twins = [other for other, n in zip(groups, names, strict=True) if n == name]
        facts = [other[0].facts for other in twins]
        changed = {
            k for f in facts for k in f if not free_in_a_method(k) and any(k not in g or g[k] != f[k] for g in facts)
        }
        folders = {_method_folder(run.folder) for run in group}
        if name and len(twins) == 1:
            out.append(name)
        elif name and 0 < len(changed) <= 2:
            own = group[0].facts
            out.append(" ".join([name, *(f"{k.rpartition('.')[2]}={own.get(k, '–')}" for k in sorted(changed))]))
        else:
            out.append(folders.pop() if len(folders) == 1 else name)
    out = [name or "run" for name in out]
    return [name if out.count(name) == 1 else f"{name} ({out[: i + 1].count(name)})" for i, name in enumerate(out)]


def _method_folder(folder: str) -> str:
    """The label of OUT/label/seed-0."""
    return "/".join(name for name in folder.split("/") if not name.startswith("seed-"))


def _remarks(method: Method) -> Iterator[str]:
    for run in method.runs:
        if run.stopped is not None and run.planned is not None and run.rounds < run.planned:
            yield f"{run.folder} ended after {run.rounds} of {run.planned} rounds: {run.stopped}."
        if not run.finished:
            left_out = "" if run in method.counted else "; means leave it out"
            yield f"{run.folder} is unfinished: {run.rounds} of {run.planned} rounds{left_out}."
    seeds = [run.seed for run in method.runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        yield f"{method.label}: a seed occurs twice, so that its spread is not one over seeds."
