"""The report of a run or of a comparison: what is said and shown, in which order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.errors import SettingError
from fedloom.evaluate.measure import MEASURES
from fedloom.experiments.trials import LAST
from fedloom.report import comparison, figures, sentences
from fedloom.report.grouping import by_problem, read_methods
from fedloom.report.heterogeneity import draw_federation, heterogeneity
from fedloom.report.methods import Method
from fedloom.report.printable import class_names, client_names
from fedloom.report.several_seeds import Summary, partitions, readings, renamed, seeds
from fedloom.report.sweeps import sweeps
from fedloom.storage.output import below, publish

if TYPE_CHECKING:
    from fedloom.report.page import Drawn, Page

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_MOST_MAPS = 6  # of accuracy by class, before the others are folded

_ENDS = ("global_accuracy", "personal_accuracy", "personal_worst_tenth")  # whose caption says who ends highest


def write_report(
    directories: Paths, out: str | os.PathLike[str] | None = None, *, names: Mapping[str, str] | None = None
) -> Path:
    """Write report.html about every run below some directories, and beside it all figures and tables.

    Runs whose settings differ in the seed only become one method: a mean and the range over seeds. The page needs no
    network and no other file, and its script only adds to it. The same runs give the same bytes. Runs on several
    problems, such as data sets, are in parts of their own.

    Args:
        directories: one or several folders: a run, or folders with runs below them.
        out: where report.html, figures/ (PNG, SVG, PDF) and tables/ (CSV) go; by default the folder report in the
            directory.
        names: what methods and problems are called instead, by what they are called otherwise.

    Returns:
        The path of report.html.

    Raises:
        SettingError: a directory holds no run, a file of one is damaged, `out` is missing for several directories, or
            matplotlib is not installed.
    """
    folders = [directories] if isinstance(directories, (str, os.PathLike)) else list(directories)
    if not folders or (out is None and len(folders) > 1):
        raise SettingError(f"a report on {len(folders)} directories needs a folder to go to: out = 'reports/first'")
    target = Path(out) if out is not None else below(Path(folders[0]), "report")
    methods, remarks = read_methods(folders)
    page = _page(renamed(methods, names or {}), remarks)
    for name, data in (page.files | {"report.html": page.html().encode("utf-8")}).items():
        publish(target, name, data)
    return target / "report.html"


def _page(methods: Sequence[Method], remarks: Sequence[str]) -> Page:
    from fedloom.report.page import Page  # with jinja2, which no other command loads

    labels, problems = {m.number: m.label for m in methods}, by_problem(methods)
    several = len(problems) > 1
    findings = [] if several else list(sentences.findings(methods))
    page = Page(sentences.title(methods), labels, sentences.introduction(methods), remarks, findings)
    reference = next((m.label for m in methods if not m.alone), methods[0].label)
    found = Summary(tuple(methods), reference)
    if several:
        _problems(page, found)
    for place, (problem, of) in enumerate(problems, 1):
        if several:
            page.part(f"p{place}-", problem.title, sentences.introduction(of), list(sentences.findings(of)))
        _summary(page, of)
        _sweeps(page, of)
        _targets(page, of)
        _curves(page, of)
        _cost(page, of)
        _classes(page, of)
        _clients(page, of)
        _federation(page, of)
        _failures(page, of)
        _settings(page, of)
    page.prefix = ""
    _runs(page, methods)
    page.files |= found.files()
    return page


def _problems(page: Page, found: Summary) -> None:
    """Add methods by problem, and what is varied with the problem; no number is marked as the best of two columns."""
    page.section("problems", "Methods by problem")
    for caption, table in found.across():
        page.table(table, f"{caption} Bold: the best mean of a column, which is no test of significance.")
    _sweeps(page, found.methods)


def _summary(page: Page, methods: Sequence[Method]) -> None:
    page.section("summary", "Summary")
    several = any(len(m.counted) > 1 for m in methods)
    over = f"mean ± standard deviation over {seeds(methods)}, {partitions(methods)}; " if several else ""
    marked = " Bold: the best mean of a column, which is no test of significance." if len(methods) > 1 else ""
    table = comparison.headline(methods)
    forgetting = any(c.name == "forgetting" for c in table.columns)
    explained = " Forgetting: drop of a class from its best earlier round, mean over classes, in points." * forgetting
    page.table(
        table,
        f"After the last round ({over}training: all phases but evaluation; MB of all clients of a round, down and up)."
        f"{explained}{marked}",
    )
    found = Summary(tuple(methods), next((m.label for m in methods if not m.alone), methods[0].label))
    if (gaps := found.differences()) is not None:
        page.heading("Differences over seeds")
        page.table(gaps, found.captions()[gaps.name])
    which = readings(methods, ["global_accuracy", "personal_accuracy"])
    if which is not None:
        page.heading("Which number it is")
        page.table(
            which,
            "The same accuracies, read in the ways that papers use: after the last round; mean of the last rounds; in "
            "the round with the best validation accuracy; the best on test examples, which is optimistic, since it "
            "chooses the round by what it reports; and the mean over all rounds, that before training included."
            + " The round with the best validation accuracy, and that accuracy, stand at the end."
            * any(c.name == "validated_round" for c in which.columns),
        )


def _sweeps(page: Page, methods: Sequence[Method]) -> None:
    """Add sections for sweeps; without a sweep there is no section, and nothing is said to be missing."""
    for place, sweep in enumerate(sweeps(methods), 1):
        again = f"-{place}" * (place > 1)
        page.section(f"sweep{again}", f"Sweep of {sweep.trials[0].method.first.algorithm}")
        page.text(sentences.chosen(sweep))
        spread = ", ± standard deviation over seeds" * any(t.result.count > 1 for t in sweep.trials)
        order = "in the order of their settings; " if sweep.problems else "best first, by "
        page.table(sweep.table(place), f"Trials, {order}the mean of the last {LAST} measurements{spread}.")
        drawn = []
        for name in sweep.names:
            caption = f"{MEASURES[sweep.by].title} by {name}: a dot per trial{spread}."
            if len(sweep.names) > 1:
                caption += " Lines join trials that have all other settings alike."
            drawn.append(
                page.figure(figures.sweep(sweep, name), sentences.file_name("sweep", place, name), name, caption)
            )
        page.grid(*drawn)


def _targets(page: Page, methods: Sequence[Method]) -> None:
    page.section("targets", "Cost of reaching an accuracy")
    mean = "; mean over seeds" if any(len(m.counted) > 1 for m in methods) else ""
    shown = False
    for metric in ("global_accuracy", "personal_accuracy"):
        table = comparison.targets(methods, metric)
        if table is None:
            continue
        shown = True
        page.heading(MEASURES[metric].title)
        dash = " A dash: not every run got there." if any(None in row for row in table.rows) else ""
        page.table(
            table,
            "The first round that reaches the accuracy, and what all clients had moved (down and up) and computed "
            f"until then, without evaluation{mean}.{dash}",
        )
    if not shown:
        page.missing("Not shown: no run rose above the accuracy that it started with.")


def _curves(page: Page, methods: Sequence[Method]) -> None:
    page.section("curves", "Learning curves")
    if len(methods) > 1:
        _grid(page, methods, ["global_accuracy", "personal_accuracy", "train_loss", "global_loss"])
        return
    series = {name: MEASURES[name].label for name in sentences.SERIES}
    figure = figures.together(methods[0], series, "accuracy (%)")
    if figure is None:
        page.missing("Accuracies are not shown: none was measured.")
    else:
        meanings = [
            f"{label.capitalize()}: {MEASURES[name].meaning}"
            for name, label in series.items()
            if methods[0].curve(name)
        ]
        caption = f"{' '.join(meanings)}{sentences.band(methods)}"
        names = dict(enumerate(series.values()))
        page.grid(page.figure(figure, "accuracy", "Accuracy", caption, wide=True, names=names, digits=1))
    _grid(page, methods, ["train_loss", "global_loss"])


def _cost(page: Page, methods: Sequence[Method]) -> None:
    page.section("cost", "Accuracy for what it costs")
    metric = "global_accuracy" if any(m.has("global_accuracy") for m in methods) else "personal_accuracy"
    name, label = MEASURES[metric].title, MEASURES[metric].axis
    runs = [run for m in methods for run in m.counted]
    drawn = []
    for x, measured, heading, cost in (
        ("bytes", any(run.rows[-1]["bytes"] for run in runs), "For bytes", "what all clients moved, down and up"),
        ("seconds", any(run.history.timing for run in runs), "For seconds", "seconds of computing without evaluation"),
    ):
        figure = figures.curves(methods, metric, label, x=x) if measured else None
        if figure is None:
            page.missing(f"{name} against {x} is not shown: no run has measured both.")
            continue
        remarks = sentences.absent(methods, metric) + sentences.band(methods)
        caption = f"{name} against {cost}. Further left is cheaper.{remarks}"
        drawn.append(page.figure(figure, f"{metric}_by_{x}", heading, caption, digits=1))
    page.grid(*drawn)


def _classes(page: Page, methods: Sequence[Method]) -> None:
    page.section("classes", "Classes: learned and forgotten")
    several, maps = len(methods) > 1, []
    for place, m in enumerate(methods, 1):
        if (figure := figures.class_map(m)) is not None:
            name, method = sentences.file_name("classes", place, m.label), m.number if several else None
            heading = m.label if several else "By class"
            maps.append(page.figure(figure, name, heading, sentences.weakest(m), method=method))
    if maps:
        mean = ", mean over seeds" if any(len(m.counted) > 1 for m in methods) else ""
        page.text(
            f"Accuracy of the global model by class and round{mean}. A row that turns light is a class that was "
            f"forgotten; a row that stays dark is remembered.{sentences.absent(methods, 'global_accuracy')}"
        )
    else:
        page.missing("Accuracy by class is not shown: no run has measured it (it takes a global model).")
    if not several:
        _grid(page, methods, ["forgetting"], beside=maps)
        return
    page.grid(*maps[:_MOST_MAPS])
    if rest := maps[_MOST_MAPS:]:
        page.fold(f"{len(rest)} more methods", *rest)
    _grid(page, methods, ["forgetting", "in_local_accuracy", "out_local_accuracy"])


def _clients(page: Page, methods: Sequence[Method]) -> None:
    page.section("clients", "Clients: how evenly they are served")
    figure = figures.personal(methods)
    if figure is None:
        page.missing("Personal accuracies are not shown: no run has measured them (it takes held-out examples).")
        return
    seeds = " (of all seeds together)" if any(len(m.counted) > 1 for m in methods) else ""
    caption = (
        f"A dot per client{seeds}, judged at the end; bar: the middle half; ring: median; red line: mean of the worst "
        "tenth. A tail to the left shows clients that a method leaves behind."
    )
    if any(len(figures.last_personal(m)) > figures.MOST_POINTS for m in methods):
        caption += f" Of more than {figures.MOST_POINTS} clients, as many quantiles."
    page.grid(page.figure(figure, "personal_by_client", "Accuracy of each client's model", caption, wide=True))
    page.keep(comparison.personal(methods))
    if (named := comparison.named_clients(methods)) is not None:
        page.table(named, "Each client by its name: the accuracy of its model on what it holds out.")
    table = comparison.gained(methods)
    if table is not None and (figure := figures.gain(methods)) is not None:
        caption = (
            f"A dot per client{seeds}: the accuracy of its model, less that of the one that it trains alone with the "
            "same seed. Right of 0 it gains from the others. Bar, ring and red line as above."
        )
        heading = "What each client gains over training alone"
        page.grid(page.figure(figure, "gain_by_client", heading, caption, wide=True))
        page.table(table, "The same in numbers.")
    elif len(methods) > 1:
        page.missing("Gains over training alone are not shown: no local_only run has data and seed of another method.")
    if len(methods) > 1:
        _grid(page, methods, ["personal_worst_tenth", "personal_std"])


def _federation(page: Page, methods: Sequence[Method]) -> None:
    page.section("federation", "Who holds which classes")
    m = next((m for m in methods if m.first.history.federation.get("shown")), None)
    if m is None:
        page.missing("Not shown: no run has a federation.json.")
        return
    f = m.first.history.federation
    counts, named = np.array(f["train"], np.int64), client_names(f)
    clients = [named.get(k, str(k)) for k in f["shown"]]
    caption = sentences.holders(f, heterogeneity(counts))
    if any(len(other.counted) > 1 for other in methods):
        caption += " This is the run of the lowest seed; others may divide the examples otherwise."
    heading = sentences.partition_of(m) or "Examples by client and class"
    figure = draw_federation(counts, clients=clients, classes=class_names(f))
    page.grid(page.figure(figure, "federation", heading, caption, wide=True))
    page.keep(comparison.examples("federation", f))


def _failures(page: Page, methods: Sequence[Method]) -> None:
    page.section("failures", "Clients that were lost")
    table = comparison.failures(methods)
    if table is None:
        page.text("Every client that was asked has answered, in every round of every run.")
    else:
        page.table(
            table, "Clients that were asked and did not answer, over all rounds of all runs; they count in no mean."
        )


def _settings(page: Page, methods: Sequence[Method]) -> None:
    page.section("settings", "Settings")
    shared, other = comparison.settings(methods)
    if other is not None:
        page.table(other, "What was not the same for all methods.")
        page.heading("The same for all")
    if shared:
        page.listing(shared)
    else:
        page.missing("The runs have no settings in common, or did not record any.")


def _runs(page: Page, methods: Sequence[Method]) -> None:
    page.section("runs", "Runs, engines and versions")
    facts, versions = comparison.facts(methods)
    alike = f" All of them with {versions}." if versions else ""
    page.table(facts, f"Each run, how it was computed and what it took.{alike}")
    page.keep(comparison.all_settings(methods))
    page.keep(comparison.rounds(methods))


def _grid(page: Page, methods: Sequence[Method], names: Sequence[str], *, beside: Sequence[Drawn] = ()) -> None:
    """Add figures of numbers over rounds, after those in `beside`, and a line for each number that no run has."""
    drawn, missing = list(beside), []
    for name in names:
        measure, loss = MEASURES[name], MEASURES[name].unit == "loss"
        heading, caption = measure.title, measure.caption
        figure = figures.curves(methods, name, measure.axis, percent=not loss)
        if figure is None:
            missing.append(f"{heading} is not shown: no run has measured it.")
            continue
        if name in _ENDS and len(methods) > 1:
            caption += f" {sentences.ending(methods, name)}"
        caption = caption.rstrip() + sentences.absent(methods, name) + sentences.band(methods)
        drawn.append(page.figure(figure, name, heading, caption, digits=3 if loss else 1))
    page.grid(*drawn)
    for sentence in missing:
        page.missing(sentence)
