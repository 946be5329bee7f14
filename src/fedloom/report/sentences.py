"""Sentences of a report, computed from the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.evaluate.measure import Measure
from fedloom.experiments.trials import LAST
from fedloom.report.comparison import total_seconds
from fedloom.report.figures import MOST_BANDS, same_lines, shows_chance
from fedloom.report.grouping import by_problem
from fedloom.report.heterogeneity import Heterogeneity
from fedloom.report.methods import Method
from fedloom.report.number_table import amount, format_of, percent, whole, with_unit
from fedloom.report.over_seeds import seeds_text
from fedloom.report.printable import client_names, part, printable
from fedloom.report.problems import UNKNOWN
from fedloom.report.standings import chance_text, listed, spread_text, standing_of, value_text
from fedloom.report.sweeps import SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMED = 3  # problems in a title
_SHOWN_CHANGES = 20  # of devices
_CHANGES = {  # of a device, by the event of the registry
    "came": "came", "removed": "was removed", "back": "was back", "renewed": "had other examples",
}  # fmt: skip
_OF_GLOBAL = ("global_", "forgetting", "in_local_", "out_local_")
_BY_CLASS = ("in_local_accuracy", "out_local_accuracy")


def series(method: Method) -> dict[str, Measure]:
    """Return the measures in the figure of a single run, by name."""
    main, known = method.headline.name, method.measures
    names = (f"global_{main}", f"personal_{main}", "personal_worst_tenth", *_BY_CLASS, f"val_{main}")
    return {name: known[name] for name in names if name in known}


def title(methods: Sequence[Method]) -> str:
    """Return the title of the page: methods and data."""
    labels, problems = {m.label for m in methods}, by_problem(methods)
    methods_text = methods[0].label if len(labels) == 1 else f"{len(labels)} methods"
    titles = [problem.title for problem, _ in problems if problem.title != UNKNOWN]
    if len(problems) > _MOST_NAMED:
        return f"{methods_text} on {len(problems)} problems"
    return f"{methods_text} on {' and '.join(titles)}" if titles else methods_text


def introduction(methods: Sequence[Method]) -> str:
    """Describe methods, seeds, clients, rounds, models and time, in two or three sentences."""
    runs = [run for m in methods for run in m.runs]
    seeds = seeds_text(methods, unfinished=True)
    names = list(dict.fromkeys(m.label for m in methods))
    shown = listed(names) if len(names) <= 8 else f"{len(names)} methods"
    out = f"{'Compared' if len(names) > 1 else 'Run'}: {shown}, {seeds}{' each' * (len(names) > 1)}"
    clients = _same(
        run.history.federation.get("clients") or part(run.history.settings, "data", "clients") for run in runs
    )
    clients = clients or _same(part(run.history.manifest, "federation", "clients") for run in runs)
    partition = _same(
        part(run.history.manifest, "federation", "partition") or part(run.history.settings, "data", "partition")
        for run in runs
    )
    if clients:
        out += f", on {_thousands(clients)} clients" + (f" ({partition})" if partition else "")
    rounds = sorted({run.rounds for run in runs})
    span = f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,} to {rounds[-1]:,}"
    cohort = _same(part(run.history.settings, "run", "cohort_size") for run in runs)
    out += f". {span} round{'s' * (rounds != [1])}" + (f" of {_thousands(cohort)} clients each" if cohort else "")
    models = {repr(m): m for run in runs if isinstance(m := part(run.history.manifest, "models"), dict)}
    if len(models) == 1:
        (sizes,) = models.values()
        frozen = next(part(run.history.manifest, "frozen") or {} for run in runs)
        out += "; " + ", ".join(_sized(str(n), p, frozen.get(n, 0)) for n, p in sizes.items())
    elif model := _same(part(run.history.settings, "model") for run in runs):
        out += f"; model {model}"
    spent = sum(map(total_seconds, runs))
    return out + "." + (f" Computing took {duration(spent)} in all, evaluation included." if spent else "")


def _sized(name: str, trained: Any, frozen: Any) -> str:
    """Describe a network by the number of its parameters: "net (18 trained of 53 parameters)"."""
    if not (isinstance(trained, int) and isinstance(frozen, int) and frozen):
        return f"{printable(name)} ({_thousands(str(trained))} parameters)"
    return f"{printable(name)} ({trained:,} trained of {trained + frozen:,} parameters)"


def describe_choice(sweep: SweepResult) -> str:
    """Name the best trial, its measure and the runner-up; or the reason why there is no best trial."""
    of = sweep.trials[0].method.measures[sweep.measure]
    measure = of.title[:1].lower() + of.title[1:]
    if sweep.problems:
        return (
            f"{len(sweep.trials)} trials by {measure} (mean of the last {LAST}). They "
            f"vary in {', '.join(sweep.problems)}, so each is another problem, and there is no best trial."
        )
    failed = f" Undefined at the end, so without a result: {', '.join(sweep.without)}." if sweep.without else ""
    best, second, *_ = sweep.trials
    chance = standing_of([trial.method for trial in sweep.trials], of).chance
    if chance is not None and of.better == "high" and best.result.mean <= chance.limit:
        return (
            f"No trial of {len(sweep.trials)} is above chance in {measure} (mean of the last {LAST}): the highest, "
            f"{best.method.label}, has {value_text(best.result, of.unit)}.{failed}"
        )
    caution = "" if of.tunable == "local_val" else " This was chosen by test examples, which is optimistic."
    return (
        f"Best of {len(sweep.trials)} by {measure} (mean of the last {LAST}): {best.method.label}, "
        f"{value_text(best.result, of.unit)}; the runner-up, {second.method.label}, has "
        f"{spread_text(second.result, of.unit)}.{caution}{failed}"
    )


def describe_ending(methods: Sequence[Method], name: str) -> str:
    """Name the method with the best end and, of shares, the one with the largest drop between points; no reference."""
    measure = methods[0].measures[name]
    high, unit, one = measure.better == "high", measure.unit, standing_of(methods, measure)
    if not one.ranked:
        return ""
    best, names = one.ranked[0][1].mean, [m.label for m, _ in one.equal_to(0)]
    out = f"{'Highest' if high else 'Lowest'} at the end: {listed(names)}, {with_unit(format_of(unit)(best), unit)}."
    if not one.is_above_chance:
        out = "No method ends above chance."
    drops = []
    for m in methods if high and unit == "%" else ():
        curve = None if m.is_reference else m.curve(name)
        if curve is not None and len(curve.mean) > 1:
            drops.append((float(np.max(-np.diff(curve.mean))), m.label))
    if drops and max(drops)[0] >= 0.05:
        drop, label = max(drops)
        out += f" Largest drop from one point to the next: {label}, {percent(drop)} points."
    return out


def describe_bands(methods: Sequence[Method]) -> str:
    """Explain lines and bands of a figure with several seeds."""
    if all(len(m.counted_runs) == 1 for m in methods):
        return ""
    bands = "; band: lowest to highest over seeds" if len(methods) <= MOST_BANDS else ""
    ends = " A line ends in the last round that all seeds of a method have." if any(map(_ends_differ, methods)) else ""
    return f" Line: mean over seeds{bands}.{ends}"


def describe_missing(methods: Sequence[Method], name: str) -> str:
    """Name the methods without a measure that others have."""
    missing = [m for m in methods if m.curve(name) is None]
    if len(missing) == len(methods):
        return ""
    alone = [m.label for m in missing if m.is_local_only and name.startswith(_OF_GLOBAL)]
    others = [m.label for m in missing if m.label not in alone]
    out = f" Not measured: {', '.join(others)}." if others else ""
    return out + f" {listed(alone)}: no global model." * bool(alone)


def describe_levels(methods: Sequence[Method], name: str, figure: Figure) -> str:
    """Say where chance is in a figure, and what references reach in it."""
    out, one = "", standing_of(methods, methods[0].measures[name])
    if one.chance is not None and shows_chance(figure):
        out = f" Dotted line: chance, what a model reaches that looks at no input ({chance_text(one)})."
    elif one.chance is not None:
        out = f" Chance ({chance_text(one)}) lies beyond the axis."
    ends = [f"{m.label}, {value_text(spread, one.measure.unit)}" for m, spread in one.references]
    return out + f" Thin line: what {listed(ends)}, reaches." * bool(ends and len(methods) > 1)


def describe_same(methods: Sequence[Method], name: str) -> str:
    """Name the methods whose lines are the same, so that one hides the others."""
    groups = [[m.label for m in group] for group in same_lines(methods, name) if len(group) > 1]
    return "".join(f" The lines of {listed(labels)} are the same." for labels in groups)


def _ends_differ(method: Method) -> bool:
    return len({run.rounds for run in method.counted_runs}) > 1


def duration(seconds: float) -> str:
    """Return a time as text: 12 s, 3 min 20 s, 1 h 5 min."""
    whole_seconds = round(seconds)
    if seconds < 60:
        return f"{amount(seconds) if seconds < 10 else whole_seconds} s"
    minutes, rest = divmod(whole_seconds, 60)
    hours, left = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if not hours else f"{hours:,} h {left} min"


def file_name(kind: str, place: int, label: str) -> str:
    """Return a file name for a label, of letters, digits and underscores alone.

    `place`: among the methods, from 1.
    """
    label = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")[:40]
    return f"{kind}_{place}" + (f"_{label}" if label else "")


def partition_of(method: Method) -> str:
    """Return the name of the partition; "" where it is not recorded."""
    h = method.first.history
    found = part(h.manifest, "federation", "partition") or part(h.settings, "data", "partition")
    return printable(str(found)) if found else ""


def describe_holders(federation: dict[str, Any], heterogeneity: Heterogeneity) -> str:
    """Describe the distribution of examples over clients, by a run's federation.json."""
    sizes = federation.get("sizes", {})
    low, median, high = (sizes.get(k, s) for k, s in zip(("min", "median", "max"), heterogeneity.sizes, strict=True))
    sizes_text = f"{whole(low)} each" if low == high else f"{whole(low)} to {whole(high)}, median {whole(median)}"
    fewest, most = np.flatnonzero(heterogeneity.clients_by_classes)[[0, -1]]
    span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    num_shown, num_clients = len(federation["shown"]), federation["clients"]
    is_part = num_clients > num_shown  # the file has classes of the first clients alone
    return (
        f"Training examples by client{', the first ones' * is_part} and class: {num_clients:,} clients with "
        f"{sizes_text}{f'; the first {num_shown:,} have examples ' * is_part or ', '}of {span} "
        f"class{'es' * (span != '1')}. "
        f"Distance between a client's classes and those of all{' of these' * is_part} (total variation): "
        f"{heterogeneity.distance:.2f} on average; 0 is alike, 1 disjoint."
    )


def describe_changes(federation: dict[str, Any]) -> str:
    """Describe which devices came later, left or brought other examples, by a run's federation.json; "" for none."""
    called, told = client_names(federation), list[str]()
    for event in federation.get("events") or ():
        round, client = part(event, "round"), part(event, "client")
        if (what := _CHANGES.get(str(part(event, "event")))) and isinstance(round, int) and isinstance(client, int):
            told.append(f"client {called.get(client, client)} {what} from round {round:,} on")
    more = f"; and {len(told) - _SHOWN_CHANGES:,} changes more" * (len(told) > _SHOWN_CHANGES)
    return f"Devices changed: {'; '.join(told[:_SHOWN_CHANGES])}{more}." if told else ""


def _same(values: Iterator[object]) -> str:
    """Return the value that all runs share; "" where they differ or one has none."""
    found = {printable(str(v)) if v is not None else "" for v in values}
    return found.pop() if len(found) == 1 else ""


def _thousands(text: str) -> str:
    return f"{int(text):,}" if text.isascii() and text.isdigit() and len(text) < 20 else text
