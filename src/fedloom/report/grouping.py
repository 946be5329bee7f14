"""Runs below some directories, grouped into methods that differ in more than their seed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.coordinator.history import History
from fedloom.core.errors import SettingError
from fedloom.experiments.catalogue import label
from fedloom.experiments.problem import of_problem
from fedloom.report.methods import Method, Run, free_in_a_method
from fedloom.report.order import ordered_runs
from fedloom.report.printable import part, printable
from fedloom.report.problems import UNKNOWN, Problem, data_name, number_repeats
from fedloom.storage.files import path_of
from fedloom.wording import did_you_mean

# beginnings of names of settings that every method has
_OF_ALL = ("model", "start", "local.", "run.", "hyper_parameters.local.", "data.", "federation.")
_MOST = 1e30  # of a number; a loss beyond has diverged
_PARTS = ("train", "test", "public")
_BARE = ("data.partition", "federation.partition")  # settings whose values are clear without a name
_NAMED = 3  # settings in a title


def read_methods(directories: Sequence[str | os.PathLike[str]]) -> tuple[list[Method], list[str]]:
    """Read every run below some directories; return the runs as methods, and remarks for the reader.

    Runs of one method agree in all settings except the seed. Methods of a comparison are in its order.

    Raises:
        SettingError: a directory holds no run, or a file of one is damaged.
        StorageError: a log or a document of a run was changed after it was written.
    """
    runs: list[Run] = []
    remarks: list[str] = []
    visited: set[Path] = set()
    for directory in map(path_of, directories):
        below = ordered_runs(directory)
        if not below:
            raise SettingError(f"{directory} holds no run (a folder with a metrics.jsonl); name one that does")
        for path in below:
            if path.resolve() in visited:
                continue
            visited.add(path.resolve())
            name = path.relative_to(directory) if path != directory else Path(path.resolve().name)
            if len(directories) > 1 and path != directory:
                name = Path(directory.resolve().name) / name
            run = Run(printable(name.as_posix()), History.read(path), path)
            if _drop_extremes(run.history):
                remarks.append(f"{run.folder}: numbers beyond {_MOST:g} are left out.")
            if run.history.metrics:
                runs.append(run)
            else:
                remarks.append(f"{run.folder}: no round is complete; left out.")
    if not runs:
        raise SettingError(f"no run below {', '.join(map(str, directories))} has a complete round yet; try again later")
    methods = methods_of(runs)
    return methods, remarks + remarks_of(methods)


def methods_of(runs: Sequence[Run], names_of_runs: Sequence[str] | None = None) -> list[Method]:
    """Group runs into methods, problem by problem; a method has one name and one look on all problems.

    `names_of_runs`: the method of each run, where the caller has named them.
    """
    problems = group_by_problem(runs)
    given_names = {} if names_of_runs is None else dict(zip(map(id, runs), names_of_runs, strict=True))
    groups: list[list[list[Run]]] = []
    for group in problems:
        by_key: dict[str, list[Run]] = {}
        for run in group:
            by_key.setdefault(given_names.get(id(run)) or run.key(), []).append(run)
        groups.append([sorted(g, key=lambda r: -1 if r.seed is None else r.seed) for g in by_key.values()])
    if given_names:
        labels = [[given_names[id(run)] for run, *_ in groups_of_problem] for groups_of_problem in groups]
    else:
        labels = [number_repeats(names) for names in _labels(groups)]
    names = {
        text: " ".join(dict.fromkeys([label(group[0].algorithm), text]) if not given_names else [text])
        for texts, groups_of_problem in zip(labels, groups, strict=True)
        for text, group in zip(texts, groups_of_problem, strict=True)
    }
    numbers = {text: number for number, text in enumerate(names)}
    return [
        Method(text + _mark(group), numbers[text], tuple(group), problem)
        for problem, texts, groups_of_problem in zip(with_titles(problems), labels, groups, strict=True)
        for text, group in zip(texts, groups_of_problem, strict=True)
    ]


def differences(methods: Sequence[Method]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Return the settings that all methods share, and for each method those that differ between them; without seeds."""
    facts = [{k: v for k, v in m.first.facts.items() if not free_in_a_method(k)} for m in methods]
    names = list(dict.fromkeys(name for f in facts for name in f))
    alike = {name for name in names if all(f.get(name) == facts[0].get(name) for f in facts)}
    return {n: facts[0][n] for n in names if n in alike}, [
        {n: f[n] for n in names if n in f and n not in alike} for f in facts
    ]


def _drop_extremes(history: History) -> bool:
    """Make numbers undefined that are too large for a figure or a mean; return whether there were any."""
    beyond = [(record, name) for record in history.metrics for name in record if _is_beyond(record[name])]
    for record, name in beyond:
        record[name] = None  # deleted, it would count as not measured, and the value before it as that of the end
    laps = [(t["seconds"], phase) for t in history.timing for phase in t["seconds"] if _is_beyond(t["seconds"][phase])]
    for seconds, phase in laps:
        del seconds[phase]
    return bool(beyond or laps)


def _is_beyond(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) > _MOST


def _labels(problems: Sequence[Sequence[Sequence[Run]]]) -> list[list[str]]:
    """Name each method by its algorithm; where methods share one, also by settings, or by the folder.

    Settings are named where few differ; otherwise the folder stands for them. A setting that differs between problems
    alone, such as a learning rate that was tuned on each, does not tell methods apart.
    """
    groups = [group for of in problems for group in of]
    settings_of = {id(group): _method_settings(group[0]) for group in groups}
    of_columns = columns_settings([[settings_of[id(group)] for group in of] for of in problems])
    out: list[list[str]] = []
    for of in problems:
        out.append([])
        for group in of:
            name = label(group[0].algorithm)
            facts = [settings_of[id(other)] for other in groups if label(other[0].algorithm) == name]
            differing = {k for f in facts for k in f if any(k not in g or g[k] != f[k] for g in facts)} - of_columns
            folders = {method_folder(run.folder) for run in group}
            if name and not differing:
                text = name
            elif name and len(differing) <= 2:
                known = settings_of[id(group)]
                text = " ".join([name, *(f"{k.rpartition('.')[2]}={known.get(k, '–')}" for k in sorted(differing))])
            else:
                text = folders.pop() if len(folders) == 1 else name
            out[-1].append(text or "run")
    return out


def _method_settings(run: Run) -> dict[str, str]:
    """Return the settings that define a run's method."""
    return {k: v for k, v in run.facts.items() if not free_in_a_method(k) and not of_problem(k)}


def columns_settings(problems: Sequence[Sequence[dict[str, str]]]) -> set[str]:
    """Return the settings that belong to no single algorithm and that all methods of a problem have alike."""
    names = {k for of in problems for facts in of for k in facts if k.startswith(_OF_ALL)}
    return {k for k in names if all(len({facts.get(k) for facts in of}) == 1 for of in problems)}


def _mark(group: Sequence[Run]) -> str:
    """Return the suffix of a method's name: " (unproved)" if the numbers of a run have no proof."""
    return " (unproved)" * any(run.history.unproved for run in group)


def method_folder(folder: str) -> str:
    """Return a run's folder without its seed: the label of OUT/label/seed-0."""
    return "/".join(name for name in folder.split("/") if not name.startswith("seed-"))


def remarks_of(methods: Sequence[Method]) -> list[str]:
    """Return remarks on unproved, shortened and unfinished runs of some methods."""
    return [remark for method in methods for remark in _remarks(method)]


def _remarks(method: Method) -> Iterator[str]:
    for run in method.runs:
        if run.history.unproved:
            yield f"{run.folder}: {run.history.unproved}; its numbers are marked as unproved."
        if run.stopped is not None and run.planned_rounds is not None and run.rounds < run.planned_rounds:
            yield f"{run.folder} ended after {run.rounds} of {run.planned_rounds} rounds: {run.stopped}."
        if not run.finished:
            left_out = "" if run in method.counted_runs else "; means leave it out"
            yield f"{run.folder} is unfinished: {run.rounds} of {run.planned_rounds} rounds{left_out}."
    seeds = [run.draw for run in method.runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        yield f"{method.label}: a seed occurs twice, so its spread is not over seeds alone."


# ---- by problem


def group_by_problem(runs: Sequence[Run]) -> list[list[Run]]:
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
    """Return whether two runs agree in all that they record of their problems.

    Settings may agree although a file was changed. So two runs with the same draw must also have the same fingerprints.
    """
    a, b = one.problem, other.problem
    if any(_records(a, kind) != _records(b, kind) for kind in ("data.", "federation.")):
        return False
    if any(a[name] != b[name] for name in a.keys() & b.keys()):
        return False
    mine, theirs = one.history.headline, other.history.headline
    if (mine.name, mine.unit, mine.better) != (theirs.name, theirs.unit, theirs.better):
        return False
    return one.draw != other.draw or not any(_differ(one.history, other.history, name) for name in _PARTS)


def _records(facts: dict[str, str], kind: str) -> bool:
    return any(name.startswith(kind) for name in facts)


def _differ(one: History, other: History, name: str) -> bool:
    """Return whether two runs record different fingerprints of a part of their data."""
    for path in (("manifest", "federation", "parts", name), ("federation", "data", "sample", name)):
        a, b = (part(vars(history), *path) for history in (one, other))
        if a is not None and b is not None:
            return bool(a != b)
    return False


def with_titles(groups: Sequence[Sequence[Run]]) -> list[Problem]:
    """Return the problem of each group, titled by its data and the settings that differ between groups."""
    facts_of_groups = [group[0].problem for group in groups]
    names = dict.fromkeys(name for facts in facts_of_groups for name in facts if name != "data.source")
    differing = [name for name in names if len({facts.get(name) for facts in facts_of_groups}) > 1]
    if any(name.endswith(" data") for name in differing):
        differing = [name for name in differing if not name.endswith(" sample")]  # the same difference once more
    titles = []
    for (first, *_), facts in zip(groups, facts_of_groups, strict=True):
        words = [_setting_text(name, facts[name]) for name in differing if name in facts][:_NAMED]
        titles.append(", ".join(filter(None, (data_name(first.history), *words))) or UNKNOWN)
    full = [
        printable(facts.get("data.source", title), 60) for facts, title in zip(facts_of_groups, titles, strict=True)
    ]
    titles = [f if titles.count(t) > 1 and not differing else t for t, f in zip(titles, full, strict=True)]
    return [Problem(title, facts) for title, facts in zip(number_repeats(titles), facts_of_groups, strict=True)]


def by_problem(methods: Sequence[Method]) -> list[tuple[Problem, list[Method]]]:
    """Group methods by the problem that their runs work on."""
    problems = list(dict.fromkeys(m.problem.title for m in methods))
    groups = [[m for m in methods if m.problem.title == title] for title in problems]
    return [(group[0].problem, group) for group in groups]


def _setting_text(name: str, value: str) -> str:
    return value if name in _BARE else f"{name.rpartition('.')[2]}={value}"


def rename_methods(methods: Sequence[Method], names: Mapping[str, str]) -> list[Method]:
    """Rename methods and problems; `names` has new names by old ones.

    Raises:
        SettingError: there is no method or problem of a name, or two would have the same name.
    """
    kinds = [list(dict.fromkeys(group)) for group in ([m.label for m in methods], [m.problem.title for m in methods])]
    old_names = [name for group in kinds for name in group if name]
    for old, new in names.items():
        if old not in old_names:
            raise SettingError(
                f"there is no {old!r} to rename to {new!r}: there are {', '.join(old_names)}"
                f"{did_you_mean(old, old_names)}"
            )
    for group in kinds:
        new_names = [names.get(name, name) for name in group]
        if repeated := [name for name in new_names if not name.strip() or new_names.count(name) > 1]:
            raise SettingError(f"names must be unique, got {repeated[0]!r} {new_names.count(repeated[0])} times")
    return [
        replace(m, label=printable(names.get(m.label, m.label)), problem=replace(m.problem, title=printable(title)))
        for m in methods
        for title in [names.get(m.problem.title, m.problem.title)]
    ]
