"""Numbers that clients and servers note, in the summary: its tables, LaTeX, terminal and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from test_console import shown as on_terminal
from test_several_seeds import history, shown

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.report import comparison_table, summary

GAPS = {"a": [[1.0, 3.0], [2.0, 5.0]], "b": [[7.0, 8.0], [9.0, 8.5]]}


def noting(name: str, seed: int, gaps: list[float]) -> fl.History:
    """A run of two rounds whose clients note a gap, and whose server notes a step."""
    run = history(name, seed, [0.1, 0.3, 0.5])
    for record, gap in zip(run.metrics[1:], gaps, strict=True):
        record |= {"client_gap": gap, "client_gap_std": gap / 10, "client_gap_by_client": [gap], "server_moved": -gap}
    return run


def made(**more: Any) -> Any:
    runs = {name: [noting(name, seed, gaps) for seed, gaps in enumerate(of)] for name, of in GAPS.items()}
    return summary({**runs, "plain": [history("plain", seed, [0.1, 0.2, 0.3]) for seed in range(2)]}, **more)


def table_of(found: Any) -> Any:
    return next((table for table in found.tables() if table.name == "noted"), None)


def test_what_is_noted_is_a_table_of_the_summary() -> None:
    table = table_of(made())
    assert [c.name for c in table.columns] == ["method", "client_gap", "client_gap_std", "server_moved"]
    assert [row[0] for row in table.rows] == ["a", "b", "plain"]
    gap = table.rows[0][1]
    assert (gap.mean, gap.std, gap.count) == (4.0, pytest.approx(np.std([3.0, 5.0], ddof=1)), 2)
    assert table.rows[2][1:] == [None] * 3  # absent, not 0
    assert table_of(made(reading="best")).rows[1][1].mean == 8.25  # nothing says which gap is the best
    assert table_of(made(reading="mean")).rows[1][1].mean == 8.125


def test_latex_markdown_and_terminal_have_what_is_noted() -> None:
    found = made()
    tex = found.latex()
    assert r"\shortstack[r]{Clients'\\gap}" in tex
    assert r"a & 4.00 $\pm$ 1.41 & 0.400 $\pm$ 0.141 & $-$4.00 $\pm$ 1.41 \\" in tex
    assert "Numbers of one's own (last round), mean $\\pm$ standard deviation over 2 seeds. Of clients they" in tex
    assert "| a | 4.00 ± 1.41 |" in found.markdown()
    for width in (50, 80, 160):
        words = shown(found, width)
        assert all(text in words for text in ("4.00 ± 1.41", "0.400 ± 0.141", "-4.00 ± 1.41"))
        assert max(map(len, words.splitlines())) <= width
    (one,) = (summary({"a": noting("a", 0, [1.0, 2.0])}),)
    assert "Numbers of one's own (last round), one seed each" in " ".join(shown(one).split())


def test_columns_choose_among_what_is_noted() -> None:
    assert [c.name for c in table_of(made(columns=["last", "client_gap"])).columns] == ["method", "client_gap"]
    assert len(table_of(made(columns=["last", "noted"])).columns) == 4
    assert table_of(made(columns=["last"])) is None
    with pytest.raises(SettingError, match=r"noted, client_gap, .*got 'client_gape' \(did you mean 'client_gap'\?\)"):
        made(columns=["last", "client_gape"])


def test_the_file_has_every_reading_of_a_note_but_a_best_one() -> None:
    rows = [r for r in csv.DictReader(io.StringIO(made().csv())) if r["metric"] == "client_gap"]
    assert [(r["method"], r["reading"]) for r in rows] == [(m, w) for m in "ab" for w in ("last", "tail", "mean")]
    assert (float(rows[3]["mean"]), float(rows[3]["difference"])) == (8.25, 4.25)


def test_a_run_prints_what_it_notes() -> None:
    for width in (60, 140):
        words = on_terminal(comparison_table([("a", noting("a", 0, [1.0, 3.0]))]), width)
        assert all(number in words for number in ("3.0000", "0.3000", "-3.0000"))
        assert "client_gap" not in words
