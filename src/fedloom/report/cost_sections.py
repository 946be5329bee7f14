"""Sections of a page about costs: of reaching an accuracy, and what had been spent when it was reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedloom.report import comparison, figures, sentences
from fedloom.report.level_costs import SHOWN, cost_table, reached
from fedloom.report.methods import Method
from fedloom.report.opening import capital
from fedloom.report.over_seeds import compared
from fedloom.report.printable import with_article

if TYPE_CHECKING:
    from fedloom.report.page import Page


def targets(page: Page, methods: Sequence[Method]) -> None:
    """Add what it costs to reach some values of the headline."""
    main = methods[0].headline
    page.section("targets", f"Cost of reaching {with_article(main.title)}")
    mean = "; mean over seeds" if any(len(m.counted_runs) > 1 for m in methods) else ""
    is_shown = False
    for metric, measure in compared(methods, headline=True).items():
        table = comparison.targets(methods, metric)
        if table is None:
            continue
        is_shown = True
        page.heading(measure.title)
        dash = " A dash: not every run reached it." if any(None in row for row in table.rows) else ""
        page.table(
            table,
            f"The first round that reaches the {main.title}, with the downloads and uploads of all clients and the "
            f"seconds until then, without evaluation{mean}.{dash}",
        )
        against = next((m for m in methods if not m.is_local_only), methods[0])
        found = reached(methods, against, metric, page.to, "last", SHOWN)
        if found is not None:
            caption, table = cost_table(found, page.to, "last")
            page.table(table, caption)
    if not is_shown:
        improved = "rose above" if main.better == "high" else "fell below"
        page.note_missing(f"Not shown: no run {improved} its first {main.title}.")


def costs(page: Page, methods: Sequence[Method]) -> None:
    """Add the headline over what had been spent."""
    page.section("cost", f"{capital(methods[0].headline.title)} by cost")
    of_global, of_clients = compared(methods, headline=True).values()
    measure = of_global if any(m.has(of_global.name) for m in methods) else of_clients
    metric, name, label, share = measure.name, measure.title, measure.axis, measure.unit == "%"
    runs = [run for m in methods for run in m.counted_runs]
    clocked, drawn = any(m.has("virtual_seconds") for m in methods), []
    for x, is_measured, heading, cost in (
        ("bytes", any(run.rows[-1]["bytes"] for run in runs), "For bytes", "downloads and uploads of all clients"),
        ("seconds", any(run.history.timing for run in runs), "For seconds", "seconds of computing without evaluation"),
        ("virtual_seconds", clocked, "For virtual time", "virtual time since the start of the run"),
    ):
        figure = figures.curves(methods, metric, label, x=x, percent=share) if is_measured else None
        if figure is None and x == "virtual_seconds":
            continue  # a run without a clock lacks nothing
        if figure is None:
            page.note_missing(f"{name} against {x} is not shown: no run has measured both.")
            continue
        remarks = sentences.describe_levels(methods, metric, figure)
        remarks += sentences.describe_missing(methods, metric) + sentences.describe_bands(methods)
        caption = f"{name} against {cost}. Further left is cheaper.{remarks}"
        drawn.append(page.figure(figure, f"{metric}_by_{x}", heading, caption, digits=1 if share else 3))
    page.grid(*drawn)
