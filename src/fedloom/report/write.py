"""Report of a run or of a comparison: its sections, figures and tables, in order."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.errors import SettingError
from fedloom.experiments.trials import LAST
from fedloom.report import comparison, figures, sentences
from fedloom.report.class_maps import class_maps, describe_weakest, weakest_table
from fedloom.report.class_recall import class_recall
from fedloom.report.confusion_matrix import draw_confusion, read_confusions
from fedloom.report.cost_axes import check_over, other_axes
from fedloom.report.cost_sections import costs, targets
from fedloom.report.grouping import by_problem, read_methods, rename_methods
from fedloom.report.heterogeneity import draw_federation, heterogeneity
from fedloom.report.level_costs import TO, check_level
from fedloom.report.methods import Method, own_columns
from fedloom.report.opening import capital, first_measure, first_screen, over_rounds
from fedloom.report.order import tuning_of
from fedloom.report.over_seeds import compared, partitions_text, readings, seeds_text
from fedloom.report.printable import class_names, client_names, several_of
from fedloom.report.run_view import as_json, run_view
from fedloom.report.several_seeds import Summary
from fedloom.report.sweeps import sweeps
from fedloom.report.tuned_methods import describe_tuning, tuning_table
from fedloom.storage.files import path_of
from fedloom.storage.output import path_below, publish

if TYPE_CHECKING:
    from fedloom.report.page import Page, PageFigure

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def write_report(
    directories: Paths,
    out: str | os.PathLike[str] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    over: str = "rounds",
    to: str | float = TO,
) -> Path:
    """Write report.html about every run below some directories, and beside it all figures and tables.

    Runs whose settings differ in the seed alone are one method: a mean and the range over seeds. The page needs no
    network, no other file and no script. The same runs give the same bytes. Each problem, such as a data set, has its
    own part of the page.

    Args:
        directories: one or several folders: a run, or folders with runs below them.
        out: where report.html, figures/ (PNG, SVG, PDF) and tables/ (CSV) go; by default the folder report in the
            directory.
        names: new names of methods and problems, by their old ones.
        over: what the files of learning curves are drawn over, and what the page shows first where its script runs:
            rounds, bytes or virtual_time.
        to: level of the headline that methods are to reach, 0.8 or a share of where the first ends ("95%").

    Returns:
        The path of report.html.

    Raises:
        SettingError: a directory holds no run, a file of one is damaged, `out` is missing for several directories,
            curves of a run cannot be drawn over this, there is no such level, or matplotlib is not installed.
    """
    named = [directories] if isinstance(directories, (str, os.PathLike)) else list(directories)
    folders = [path_of(folder) for folder in named]
    if not folders or (out is None and len(folders) > 1):
        raise SettingError(f"a report on {len(folders)} directories needs a folder to go to: out = 'reports/first'")
    target = path_of(out) if out is not None else path_below(folders[0], "report")
    methods, remarks = read_methods(folders)
    check_over(over, methods)
    check_level(str(to), methods)
    page = _page(rename_methods(methods, names or {}), remarks, folders, over, str(to))
    for name, data in (page.files | {"report.html": page.html().encode("utf-8")}).items():
        publish(target, name, data)
    return target / "report.html"


def _page(methods: Sequence[Method], remarks: Sequence[str], folders: Sequence[Path], over: str, to: str) -> Page:
    from fedloom.report.page import Page  # with jinja2, which no other command loads

    labels, problems = {m.number: m.label for m in methods}, by_problem(methods)
    several = len(problems) > 1
    page = Page(sentences.title(methods), labels, sentences.introduction(methods), remarks, over=over, to=to)
    reference = next((m.label for m in methods if not m.is_local_only), methods[0].label)
    summary = Summary(tuple(methods), reference)
    if several:
        _problems(page, summary)
    else:
        page.keep_axes(other_axes(methods))
        page.verdict, page.first, page.standing = first_screen(page, methods)
    for place, (problem, methods_) in enumerate(problems, 1):
        if several:
            page.part(f"p{place}-", problem.title)
            page.keep_axes(other_axes(methods_))
            page.begin(sentences.introduction(methods_), *first_screen(page, methods_))
        _summary(page, methods_)
        _tuning(page, methods_, folders)
        _sweeps(page, methods_)
        targets(page, methods_)
        _curves(page, methods_)
        costs(page, methods_)
        if methods_[0].has_classes:
            _classes(page, methods_)
        _clients(page, methods_)
        _federation(page, methods_)
        page.section("one", "One run, one client")
        page.view(as_json(run_view(methods_)))
        page.section("how", "How it was run", folded=True)
        _failures(page, methods_)
        _settings(page, methods_)
    if several:
        page.prefix = ""
        page.section("runs", "Runs, engines and versions", folded=True)
    _runs(page, methods, is_part=not several)
    page.files |= summary.files()
    return page


def _problems(page: Page, summary: Summary) -> None:
    """Add methods by problem, and sweeps over problems; the best is marked within a column alone."""
    page.section("problems", "Methods by problem")
    for caption, table in summary.tables_by_problem():
        page.table(table, caption)
    _sweeps(page, summary.methods)


def _summary(page: Page, methods: Sequence[Method]) -> None:
    page.section("summary", "Summary")
    several = any(len(m.counted_runs) > 1 for m in methods)
    spread_note = (
        f"mean ± standard deviation over {seeds_text(methods)}, {partitions_text(methods)}; " if several else ""
    )
    table = comparison.headline(methods)
    forgetting = any(c.name == "forgetting" for c in table.columns)
    tails = [c.heading for c in table.columns if "_last_" in c.name]
    tail_note = f" {tails[0].capitalize()}: global, mean of the {tails[0]} rounds." if tails else ""
    explained = " Forgetting: drop of a class from its best earlier round, mean over classes, in points." * forgetting
    page.table(
        table,
        f"After the last round ({spread_note}training: all phases except evaluation; MB: downloads and uploads of all "
        f"clients of a round).{tail_note}{explained}",
    )
    summary = Summary(tuple(methods), next((m.label for m in methods if not m.is_local_only), methods[0].label))
    if (gaps := summary.differences()) is not None:
        page.heading("Differences over seeds")
        page.table(gaps, summary.captions()[gaps.name])
    main, kinds = methods[0].headline, compared(methods)
    table_of_readings = readings(methods, list(kinds))
    if table_of_readings is not None:
        page.heading("Which number it is")
        page.table(
            table_of_readings,
            f"The same {several_of(main.title)} in the readings that papers use: after the last round; mean of the "
            f"last rounds; in the round with the best validation {main.title}; the best on test examples, which is "
            "optimistic, since it chooses the round by the reported number; and the mean over all rounds, including "
            "round 0. Personal numbers are means over clients but where by samples is said."
            + f" The round with the best validation {main.title}, and that {main.title}, stand at the end."
            * any(c.name == "validated_round" for c in table_of_readings.columns),
        )


def _tuning(page: Page, methods: Sequence[Method], folders: Sequence[Path]) -> None:
    """Add what tuning moved, of each comparison whose methods were tuned."""
    for folder in folders:
        tuning = tuning_of(folder)
        within = f"{Path(folder.resolve().name)}/" if len(folders) > 1 else ""
        if tuning and (table := tuning_table(methods, tuning, within)) is not None:
            page.section("tuning", "What tuning moved")
            page.table(table, describe_tuning(tuning))


def _sweeps(page: Page, methods: Sequence[Method]) -> None:
    """Add a section for each sweep; without sweeps there is none, and no note."""
    for place, sweep in enumerate(sweeps(methods), 1):
        suffix = f"-{place}" * (place > 1)
        page.section(f"sweep{suffix}", f"Sweep of {sweep.trials[0].method.first.algorithm}")
        page.text(sentences.describe_choice(sweep))
        spread = ", ± standard deviation over seeds" * any(t.result.count > 1 for t in sweep.trials)
        order = "in the order of their settings; " if sweep.problems else "best first, by "
        page.table(sweep.table(place), f"Trials, {order}the mean of the last {LAST} measurements{spread}.")
        drawn_figures = []
        for name in sweep.names:
            caption = f"{methods[0].measures[sweep.measure].title} by {name}: a dot per trial{spread}."
            if len(sweep.names) > 1:
                caption += " Lines join trials that have all other settings alike."
            drawn_figures.append(
                page.figure(figures.sweep(sweep, name), sentences.file_name("sweep", place, name), name, caption)
            )
        page.grid(*drawn_figures)


def _curves(page: Page, methods: Sequence[Method]) -> None:
    page.section("curves", "Learning curves")
    asked = ["personal_train_loss"] * any(m.has("personal_train_loss") for m in methods)
    main, known, losses = methods[0].headline, compared(methods), ["train_loss", *asked, "global_loss"]
    beside = [name for name in known if name not in compared(methods, headline=True)]
    first = first_measure(methods)
    if first is not None:
        shown = methods[0].measures[first].title if len(methods) > 1 else capital(main.title)
        page.text(f"{shown} by round stands at the beginning of {'this part' if page.prefix else 'the page'}.")
    elif len(methods) == 1:
        page.note_missing(f"{capital(several_of(main.title))} are not shown: none was measured.")
    others = [name for name in compared(methods, headline=True) if name != first] if len(methods) > 1 else []
    _grid(page, methods, [*others, *losses])
    for name in own_columns(methods):
        _grid(page, [m for m in methods if name in m.measures], [name])
    _beside(page, methods, beside)


def _beside(page: Page, methods: Sequence[Method], names: Sequence[str]) -> None:
    """Add figures of the measures beside the headline that some run has, with how many clients have none."""
    _grid(page, methods, [name for name in names if any(m.has(name) for m in methods)])


def _classes(page: Page, methods: Sequence[Method]) -> None:
    page.section("classes", "Classes: learned and forgotten")
    several, of_global = len(methods) > 1, f"global_{methods[0].headline.name}"
    maps: list[PageFigure] = []
    if (figure := class_maps(methods)) is not None:
        mean = ", mean over seeds" if any(len(m.counted_runs) > 1 for m in methods) else ""
        caption = (
            f"Accuracy of the global model by class and round{mean}. A row that fades is a class that was "
            f"forgotten.{sentences.describe_missing(methods, of_global)}"
        )
        caption += " All maps have one scale." if several else f" {describe_weakest(methods[0])}"
        maps.append(page.figure(figure, "classes", "By class", caption, wide=several))
    else:
        page.note_missing("Accuracy by class is not shown: no run has measured it (it takes a global model).")
    if several and maps:
        page.grid(*maps)
        note = "Forgotten: classes that end more than 20 points below their best round."
        page.table(weakest_table(methods), f"The class that ends lowest. {note}")
    if (recall := class_recall(methods)) is not None:
        page.table(recall[1], recall[0])
    _confusions(page, methods)
    if not several:
        _grid(page, methods, ["forgetting"], first=maps)
        return
    _grid(page, methods, ["forgetting", "in_local_accuracy", "out_local_accuracy"])


def _confusions(page: Page, methods: Sequence[Method]) -> None:
    """Add the confusion matrices that were measured, of each method's run of the lowest seed."""
    drawn = []
    for place, m in enumerate(methods, 1):
        for found in read_confusions(m.first.directory) if m.first.directory is not None else ():
            name = sentences.file_name("confusion" + f"_client_{found.client}" * bool(found.client), place, m.label)
            heading = f"Confusion of {found.whose}" + f", {m.label}, {m.first.folder}" * (len(methods) > 1)
            figure = draw_confusion(found.counts, found.names)
            drawn.append(page.figure(figure, name, heading, found.describe(), wide=True))
    page.grid(*drawn)
    if len(methods) == 1 and not drawn:
        page.note_missing("Which classes it confuses is not shown: fedloom analyse RUN confusion measures it.")


def _clients(page: Page, methods: Sequence[Method]) -> None:
    page.section("clients", "Clients: how evenly they are served")
    figure = figures.personal(methods)
    main = methods[0].headline
    if figure is None:
        page.note_missing(
            f"Personal {several_of(main.title)} are not shown: no run has measured them (it takes held-out examples)."
        )
        return
    seeds_note = " (of all seeds together)" if any(len(m.counted_runs) > 1 for m in methods) else ""
    caption = (
        f"A dot per client{seeds_note}, evaluated at the end; bar: the middle half; ring: median; red line: mean of "
        f"the worst decile. A tail to the {'left' if main.better == 'high' else 'right'} shows clients that a method "
        f"serves badly.{sentences.describe_levels(methods, f'personal_{main.name}', figure)}"
    )
    if any(len(figures.all_personal(m)) > figures.MOST_POINTS for m in methods):
        caption += f" More than {figures.MOST_POINTS} clients are shown as {figures.MOST_POINTS} quantiles."
    heading = f"{capital(main.title)} of each client's model"
    page.grid(page.figure(figure, "personal_by_client", heading, caption, wide=True))
    page.add_csv(comparison.personal(methods))
    if (named := comparison.named_clients(methods)) is not None:
        page.table(named, f"Each client by its name: the {main.title} of its model on its held-out examples.")
    table = comparison.gains_table(methods)
    if table is not None and (figure := figures.gain(methods)) is not None:
        mine, alone = "that of its model", "that of the one that it trains alone with the same seed"
        if main.better == "high":
            mine = f"the {main.title} of its model"
        else:
            mine, alone = f"the {main.title}{alone.removeprefix('that')}", mine
        caption = (
            f"A dot per client{seeds_note}: {mine} minus {alone}. Right of 0 it gains from the others. Bar, ring and "
            "red line as above."
        )
        heading = "Gain of each client over training alone"
        page.grid(page.figure(figure, "gain_by_client", heading, caption, wide=True))
        page.table(table, "The same in numbers.")
    elif len(methods) > 1:
        page.note_missing(
            "Gains over training alone are not shown: no local_only run has data and seed of another method."
        )
    if len(methods) > 1:
        _grid(page, methods, ["personal_worst_tenth", "personal_std"])


def _federation(page: Page, methods: Sequence[Method]) -> None:
    page.section("federation", f"Examples by client{' and class' * methods[0].has_classes}")
    m = next((m for m in methods if m.first.history.federation.get("shown")), None)
    if m is None:
        page.note_missing("Not shown: no run has a federation.json.")
        return
    f = m.first.history.federation
    if changed := sentences.describe_changes(f):
        page.text(changed)
    if not m.has_classes:
        page.table(comparison.targets_of_clients(f), "Quartiles of the training targets of the first clients.")
        return
    counts, names = np.array(f["train"], np.int64), client_names(f)
    clients = [names.get(k, str(k)) for k in f["shown"]]
    caption = sentences.describe_holders(f, heterogeneity(counts))
    if any(len(other.counted_runs) > 1 for other in methods):
        caption += " This is the run of the lowest seed; other seeds may have other partitions."
    heading = sentences.partition_of(m) or "Examples by client and class"
    figure = draw_federation(counts, clients=clients, classes=class_names(f))
    page.grid(page.figure(figure, "federation", heading, caption, wide=True))
    page.add_csv(comparison.examples("federation", f))


def _failures(page: Page, methods: Sequence[Method]) -> None:
    page.heading("Lost responses")
    table = comparison.failures(methods)
    if table is None:
        page.text("Every selected client responded, in every round of every run.")
    else:
        page.table(table, "Selected clients without a response, over all rounds of all runs; they count in no mean.")


def _settings(page: Page, methods: Sequence[Method]) -> None:
    page.heading("Settings")
    shared, other = comparison.settings(methods)
    if other is not None:
        page.table(other, "Settings that differ between methods.")
        page.heading("Settings that all share")
    if shared:
        page.listing(shared)
    else:
        page.note_missing("The runs share no settings, or recorded none.")


def _runs(page: Page, methods: Sequence[Method], *, is_part: bool) -> None:
    if is_part:
        page.heading("Runs, engines and versions")
    facts, versions = comparison.facts(methods)
    versions_note = f" All of them with {versions}." if versions else ""
    page.table(
        facts,
        "Each run, its engine and its cost. Seconds: of the whole run; evaluation: seconds of it a round, which they "
        f"include.{versions_note}",
    )
    page.add_csv(comparison.all_settings(methods))
    page.add_csv(comparison.rounds(methods))


def _grid(page: Page, methods: Sequence[Method], names: Sequence[str], *, first: Sequence[PageFigure] = ()) -> None:
    """Add figures of measures over rounds, after those in `first`, and a note for each measure that no run has."""
    drawn = {name: over_rounds(page, methods, name) for name in names}
    page.grid(*first, *(figure for figure in drawn.values() if figure is not None))
    for name in (name for name, figure in drawn.items() if figure is None):
        page.note_missing(f"{methods[0].measures[name].title} is not shown: no run has measured it.")
