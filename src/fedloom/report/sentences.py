"""What a report says in sentences; each is computed from the runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedloom.evaluate.measure import MEASURES
from fedloom.experiments.trials import LAST
from fedloom.report.comparison import total_seconds
from fedloom.report.figures import MOST_BANDS, class_accuracy
from fedloom.report.grouping import by_problem
from fedloom.report.heterogeneity import Heterogeneity
from fedloom.report.methods import Method, Spread
from fedloom.report.number_table import amount, percent, signed, whole
from fedloom.report.printable import class_names, part, printable
from fedloom.report.problems import UNKNOWN
from fedloom.report.several_seeds import paired
from fedloom.report.sweeps import Swept

_MOST_NAMED = 3  # problems in a title
SERIES = (  # in the figure of a single run
    "global_accuracy",
    "personal_accuracy",
    "personal_worst_tenth",
    "in_local_accuracy",
    "out_local_accuracy",
    "val_accuracy",
)


def title(methods: Sequence[Method]) -> str:
    """Return the title of the page: what ran, on which data."""
    labels, problems = {m.label for m in methods}, by_problem(methods)
    what = methods[0].label if len(labels) == 1 else f"{len(labels)} methods"
    titles = [problem.title for problem, _ in problems if problem.title != UNKNOWN]
    if len(problems) > _MOST_NAMED:
        return f"{what} on {len(problems)} problems"
    return f"{what} on {' and '.join(titles)}" if titles else what


def introduction(methods: Sequence[Method]) -> str:
    """Describe methods, seeds, clients, rounds, models and time, in two or three sentences."""
    runs = [run for m in methods for run in m.runs]
    counts = sorted({len(m.runs) for m in methods})
    seeds = f"{counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    names = list(dict.fromkeys(m.label for m in methods))
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    if len(names) > 8:
        listed = f"{len(names)} methods"
    out = f"{'Compared' if len(names) > 1 else 'Run'}: {listed}, {seeds}{' each' * (len(names) > 1)}"
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
        out += "; " + ", ".join(f"{printable(str(n))} ({_thousands(str(p))} parameters)" for n, p in sizes.items())
    elif model := _same(part(run.history.settings, "model") for run in runs):
        out += f"; model {model}"
    spent = sum(map(total_seconds, runs))
    return out + "." + (f" Computing took {duration(spent)} in all, evaluation included." if spent else "")


def findings(methods: Sequence[Method]) -> Iterator[str]:
    """Yield the headline numbers in sentences, and how far to trust them."""
    for name in ("global_accuracy", "forgetting", "personal_accuracy", "personal_worst_tenth"):
        what, high, unit = MEASURES[name].title, MEASURES[name].better == "high", MEASURES[name].unit
        found = [(m, s) for m in methods if (s := m.last(name)) is not None]
        if not found:
            continue
        found.sort(key=lambda item: -item[1].mean if high else item[1].mean)
        first, best = found[0]
        if len(methods) == 1:
            yield f"{what} ends at {_value(best)} {unit}."
        elif len(found) == 1:
            yield f"{what} was measured for {first.label} only: {_value(best)} {unit}."
        elif percent(best.mean) == percent(found[-1][1].mean):
            yield f"{what} is {percent(best.mean)} {unit} with every method."
        else:
            ends, (second, next_best) = "is highest" if high else "is lowest", found[1]
            yield (
                f"{what} {ends} with {first.label}: {_value(best)} {unit}; the runner-up, {second.label}, has "
                f"{_value(next_best)}{_ahead(first, second, name)}."
            )
    if len(methods) > 1:
        fewest = min(len(m.counted) for m in methods)
        if fewest == 1:
            yield "Some methods ran with one seed only: differences between them may be chance."
        elif fewest < 5:
            yield f"With {fewest} seeds, differences of the size of a standard deviation may be chance."


def _ahead(first: Method, second: Method, name: str) -> str:
    """Say how far the best is from the runner-up, seed by seed; "" where they do not share two seeds."""
    gap = paired(first, second, name, "last", 1)
    if gap is None:
        return ""
    verdict = ", which leaves open which is better" if gap.low <= 0 <= gap.high else ""
    span = f"95 % interval {signed(gap.low)} to {signed(gap.high)}"
    return f" ({signed(gap.mean)} points over {gap.count} common seeds, {span}{verdict})"


def chosen(sweep: Swept) -> str:
    """Say which trial is best, by which number, and what it is ahead of; or why none is the best."""
    if sweep.problems:
        return (
            f"{len(sweep.trials)} trials by {MEASURES[sweep.by].title.lower()} (mean of the last {LAST}). They differ "
            f"in {', '.join(sweep.problems)}, which makes each another problem: none of them is the best."
        )
    (best, second, *_), what = sweep.trials, MEASURES[sweep.by].title.lower()
    caution = "" if sweep.by == "val_accuracy" else " This was chosen by test examples, which is optimistic."
    return (
        f"Best of {len(sweep.trials)} by {what} (mean of the last {LAST}): {best.method.label}, "
        f"{_value(best.result)} %; the runner-up, {second.method.label}, has {_value(second.result)}.{caution}"
    )


def ending(methods: Sequence[Method], name: str) -> str:
    """Say which method ends highest, and whose curve drops most from one point to the next."""
    found = [(s.mean, m.label) for m in methods if (s := m.last(name)) is not None]
    if not found:
        return ""
    best, who = max(found)
    out = f"Highest at the end: {who}, {percent(best)} %."
    drops = []
    for m in methods:
        curve = m.curve(name)
        if curve is not None and len(curve.mean) > 1:
            drops.append((float(np.max(-np.diff(curve.mean))), m.label))
    if drops and max(drops)[0] >= 0.05:
        drop, who = max(drops)
        out += f" Largest drop from one point to the next: {who}, {percent(drop)} points."
    return out


def band(methods: Sequence[Method]) -> str:
    """Say what lines and bands of a figure are, where there are several seeds."""
    if all(len(m.counted) == 1 for m in methods):
        return ""
    bands = "; band: lowest to highest over seeds" if len(methods) <= MOST_BANDS else ""
    return f" Line: mean over seeds{bands}."


def absent(methods: Sequence[Method], name: str) -> str:
    """Name the methods that have not measured a number that others have."""
    missing = [m.label for m in methods if m.curve(name) is None]
    return f" Not measured: {', '.join(missing)}." if 0 < len(missing) < len(methods) else ""


def weakest(method: Method) -> str:
    """Say which class ends lowest, mean over seeds, and how many end more than 20 points below their best."""
    rounds, table = class_accuracy(method)
    table = table[[t > 0 for t in rounds]]
    if not len(table):
        return "Before training only."
    last, best = table[-1], np.nanmax(np.where(np.isnan(table), -1, table), axis=0)
    measured = np.flatnonzero(~np.isnan(last))
    if not len(measured):
        return "The test set has no examples."
    low = measured[np.argmin(last[measured])]
    lost = int((best[measured] - last[measured] > 0.2).sum())
    more = f"; {lost} of {len(measured)} classes are more than 20 points below their best" if lost else ""
    called = class_names(method.first.history.federation)
    return f"Lowest at the end: class {called[low] if low < len(called) else low}, {percent(float(last[low]))} %{more}."


def duration(seconds: float) -> str:
    """Return a time as text: 12 s, 3 min 20 s, 1 h 5 min."""
    whole_seconds = round(seconds)
    if seconds < 60:
        return f"{amount(seconds) if seconds < 10 else whole_seconds} s"
    minutes, rest = divmod(whole_seconds, 60)
    hours, left = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if not hours else f"{hours:,} h {left} min"


def file_name(what: str, place: int, label: str) -> str:
    """Return the name of a file that tells a label, of letters, digits and underscores whatever the label is.

    `place`: among the methods, from 1.
    """
    label = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")[:40]
    return f"{what}_{place}" + (f"_{label}" if label else "")


def partition_of(method: Method) -> str:
    """Return the name of the partition; "" where it is not recorded."""
    h = method.first.history
    found = part(h.manifest, "federation", "partition") or part(h.settings, "data", "partition")
    return printable(str(found)) if found else ""


def holders(federation: dict[str, Any], shown: Heterogeneity) -> str:
    """Say how examples are spread over clients, by a run's federation.json."""
    sizes = federation.get("sizes", {})
    low, median, high = (sizes.get(k, s) for k, s in zip(("min", "median", "max"), shown.sizes, strict=True))
    each = f"{whole(low)} each" if low == high else f"{whole(low)} to {whole(high)}, median {whole(median)}"
    fewest, most = np.flatnonzero(shown.held)[[0, -1]]
    span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    few, many = len(federation["shown"]), federation["clients"]
    some = many > few  # whose classes are written down, so that what follows is about these alone
    return (
        f"Training examples by client{', the first ones' * some} and class: {many:,} clients with {each}"
        f"{f'; the first {few:,} ' * some or ', '}{'have examples ' * some}of {span} class{'es' * (span != '1')}. "
        f"Distance between a client's classes and those of all{' of these' * some} (total variation): "
        f"{shown.distance:.2f} on average; 0 is alike, 1 disjoint."
    )


def _value(spread: Spread) -> str:
    return percent(spread.mean) + ("" if np.isnan(spread.std) else f" ± {percent(spread.std)}")


def _same(values: Iterator[object]) -> str:
    """Return what all runs have alike; "" where they differ or one does not tell."""
    found = {printable(str(v)) if v is not None else "" for v in values}
    return found.pop() if len(found) == 1 else ""


def _thousands(text: str) -> str:
    return f"{int(text):,}" if text.isascii() and text.isdigit() and len(text) < 20 else text
