"""Curves over bytes and virtual time: units, what the page's script gets, and who has no clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import made_run, methods

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.report import figures, page as page_module
from fedloom.report.cost_axes import check_over, cost_axis, other_axes
from fedloom.report.page import Page, _templates
from fedloom.report.style import dashes

CLOCK = fl.Measure("virtual_seconds", "Virtual time", "virtual time", "Since the start.", unit="s", better=None)


def clocked(folder: Path, algorithm: str, moved: list[int], seconds: list[float] | None, seed: int = 0) -> None:
    """A run with these bytes by round, and virtual seconds since the start, as a part of one's own would have."""
    made_run(folder, algorithm, seed, rounds=len(moved))
    records: list[dict[str, Any]] = [{"round": 0, "global_accuracy": 0.1}]
    records += [{"round": t, "global_accuracy": t / 10, "bytes_up": b} for t, b in enumerate(moved, 1)]
    for record, at in zip(records, [0.0, *(seconds or [])], strict=False):
        record |= {"virtual_seconds": at} if seconds else {}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("name", "most", "label", "unit"),
    [
        ("round", 5e9, "round", 1),
        ("bytes", 0, "kB downloaded and uploaded", 1e3),
        ("bytes", 1.9e6, "kB downloaded and uploaded", 1e3),
        ("bytes", 2e6, "MB downloaded and uploaded", 1e6),
        ("bytes", 3e9, "GB downloaded and uploaded", 1e9),
        ("bytes", 5e12, "TB downloaded and uploaded", 1e12),
        ("seconds", 119, "s of computing", 1),
        ("virtual_seconds", 120, "min of virtual time", 60),
        ("virtual_seconds", 7200, "h of virtual time", 3600),
    ],
)
def test_a_unit_is_one_of_which_there_are_at_least_two(name: str, most: float, label: str, unit: float) -> None:
    assert cost_axis(name, most) == (label, unit)


def test_the_page_gets_what_had_been_spent_after_each_round(tmp_path: Path) -> None:
    for seed, more in ((0, 0), (1, 2_000_000)):
        clocked(tmp_path / f"a-{seed}", "fedavg", [3_000_000 + more, 1_000_000], [60.0, 240.0], seed)
    clocked(tmp_path / "b", "fedntd", [500_000, 500_000], [10.0, 30.0])
    both = methods(tmp_path)
    found = other_axes(both)
    assert found == {
        "bytes": {
            "label": "MB downloaded and uploaded",
            "of": {0: [[0, 1, 2], [0, 4.0, 5.0]], 1: [[0, 1, 2], [0, 0.5, 1.0]]},
        },
        "virtual_time": {
            "label": "min of virtual time",
            "of": {0: [[0, 1, 2], [0, 1.0, 4.0]], 1: [[0, 1, 2], [0, 0.166667, 0.5]]},
        },
    }
    alone = other_axes(both[1:])  # the lines of its first figure are measures, and no methods
    assert alone["bytes"]["of"] == {"": [[0, 1, 2], [0, 500, 1000]]}
    page = Page("t", {}, "l", over="bytes", prefix="p1-")
    page.keep_axes({})
    assert not page.axes
    page.keep_axes(found)
    html = (
        _templates()
        .get_template("page.html")
        .render(page=page, css="", script="", policy={"style": "", "script": ""}, tables=[])
    )
    assert '<main data-over="bytes">' in html
    text = html.partition('class="axes" data-prefix="p1-">')[2].partition("</script>")[0]
    assert json.loads(text) == json.loads(json.dumps(found))


def test_who_has_no_clock_is_named_and_others_have_no_axis_of_it(tmp_path: Path) -> None:
    clocked(tmp_path / "a", "fedavg", [0, 0], [60.0, 240.0])
    clocked(tmp_path / "b", "fedntd", [0, 0], None)
    both = methods(tmp_path)
    assert other_axes(both) == {}  # nor of bytes, of which nobody sent any
    for over in ("rounds", "bytes"):
        check_over(over, both)
    check_over("virtual_time", both[:1])
    with pytest.raises(SettingError, match=r"need virtual_seconds in every run, and fedntd has none: give its runs a"):
        check_over("virtual_time", both)
    with pytest.raises(SettingError, match=r"over must be one of rounds, bytes, virtual_time, got 'byte' .did you"):
        check_over("byte", both)


def test_figures_are_drawn_over_a_cost_and_files_over_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocked(tmp_path / "a", "fedavg", [3_000_000_000, 1_000_000_000], [60.0, 7200.0])
    (method,) = methods(tmp_path)
    series = {"global_accuracy": "global"}
    for draw in (
        lambda x: figures.curves([method], "global_accuracy", "accuracy", x=x),
        lambda x: figures.together(method, series, "accuracy", x=x),
    ):
        for x, label, ends in (
            ("round", "round", [0, 1, 2]),
            ("bytes", "GB downloaded and uploaded", [0, 3, 4]),
            ("virtual_seconds", "h of virtual time", [0, 60 / 3600, 2]),
        ):
            figure = draw(x)
            assert figure is not None
            axes = figure.axes[0]
            (line,) = [line for line in axes.lines if line.get_gid() == f"line.{method.number}"]
            assert axes.get_xlabel() == label
            assert line.get_xdata() == pytest.approx(ends)
            assert axes.get_xlim() == (0, ends[-1])
    monkeypatch.setattr(page_module, "FIGURES", ("svg",))
    page = Page("t", {}, "l", over="bytes")
    shown, kept = (figures.curves([method], "global_accuracy", "accuracy", x=x) for x in ("round", "bytes"))
    assert shown is not None
    drawn = page.figure(shown, "a", "A", "Caption.", digits=1, kept=kept)
    assert 'data-unit="round"' in drawn.svg
    assert 'data-axes=""' in drawn.svg
    assert drawn.svg.count('data-axis="x"') == 1
    assert b">GB downloaded and uploaded<" in page.files["figures/a.svg"]


def test_a_legend_has_whole_lines_where_lines_take_turns(tmp_path: Path) -> None:
    for name in ("fedavg", "fedntd"):
        clocked(tmp_path / name, name, [1_000_000, 1_000_000], None)
    figure = figures.curves(methods(tmp_path), "global_accuracy", "accuracy", x="bytes")
    assert figure is not None
    handles = figure.legends[0].get_lines()
    assert [handle._unscaled_dash_pattern for handle in handles] == [(0, None), dashes(1)]  # type: ignore[attr-defined]
    drawn = [line for line in figure.axes[0].lines if str(line.get_gid()).startswith("line.")]
    assert all(line._unscaled_dash_pattern[1] for line in drawn)  # type: ignore[attr-defined]


def test_seconds_are_a_unit_of_measures() -> None:
    assert CLOCK.axis == "virtual time (s)"
