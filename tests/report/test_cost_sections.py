"""Sections about costs: what a dash means, and curves over virtual time where there is a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made import methods
from test_cost_axes import clocked
from test_page import method

from fedloom.report import cost_sections
from fedloom.report.number_table import Column, Table
from fedloom.report.page import Page


@pytest.mark.parametrize(("rows", "dash"), [([["a", 1], ["b", None]], True), ([["a", 1]], False)])
def test_a_dash_is_explained_where_there_is_one(rows: list[Any], dash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("targets", [Column("m", "method"), Column("r", "rounds")], rows)
    monkeypatch.setattr(cost_sections.comparison, "targets", lambda methods, metric: table)
    page = Page("title", {}, "lead")
    cost_sections.targets(page, [method()])
    shown = [shown for kind, shown in page.sections[0].blocks if kind == "table"]
    captions = [one.caption for one in shown if one.name == "targets"]
    assert captions
    assert all(("A dash: not every run reached it." in caption) is dash for caption in captions)


def test_curves_over_virtual_time_are_there_where_there_is_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Page, "figure", lambda page, figure, name, *more, **others: name)
    clocked(tmp_path / "a", "fedavg", [1_000_000, 1_000_000], [60.0, 240.0])
    clocked(tmp_path / "b", "fedavg", [1_000_000, 1_000_000], None)
    for name, more in (("a", ["global_accuracy_by_virtual_seconds"]), ("b", [])):
        page = Page("title", {}, "lead")
        cost_sections.costs(page, methods(tmp_path / name))
        (drawn,) = [shown for kind, shown in page.sections[0].blocks if kind == "grid"]
        assert list(drawn) == ["global_accuracy_by_bytes", "global_accuracy_by_seconds", *more]
        assert not any("virtual" in str(shown) for kind, shown in page.sections[0].blocks if kind == "missing")


def test_the_page_has_the_cost_of_the_level_that_was_asked_for(tmp_path: Path) -> None:
    clocked(tmp_path / "a", "fedavg", [1_000_000] * 4, [60.0, 240.0, 300.0, 360.0])
    for to, rounds in (("50%", 2.0), ("0.3", 3.0)):
        page = Page("title", {}, "lead", to=to)
        cost_sections.targets(page, methods(tmp_path))
        (found,) = [shown.table for kind, shown in page.sections[0].blocks if kind == "table" and "cost" in shown.name]
        assert found.rows[0][1].costs == (rounds,)
