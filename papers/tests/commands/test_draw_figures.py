"""`fedloom figures`."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedloom_papers as papers
from commands import call, error
from published_runs import cell, made


@pytest.mark.slow
def test_figures_are_listed_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = call(capsys, "figures", "--list")
    names = [name for source in papers.STUDIES for name in papers.figures(source)]
    assert status == 0
    assert set(names) <= set(out.split())
    assert len(names) == len(set(names))
    made(tmp_path / "runs", cell("pfedsd-a", "cifar10-s2-r0.6", "pfedsd"), 0, 80.0, rounds=3)
    asked = ("pfedsd-a-spread",) * 2 + ("--known", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    status, out, _ = call(capsys, "figures", *asked)
    assert (status, out.count("files: ")) == (0, 1)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "pfedsd-a-spread.png", "pfedsd-a-spread.svg", "pfedsd-a-spread.pdf", "pfedsd-a-spread.csv",
    }  # fmt: skip


def test_what_cannot_be_drawn_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for lacking in (
        (),
        ("apfl-figure-3", "--out", "f"),
        ("apfl-figure-3", "--known", "k"),
        ("--known", "k", "--out", "f"),
    ):
        assert error(capsys, "figures", *lacking).startswith("say what to draw, of which runs, and where to")
    asked = ("--known", str(tmp_path), "--out", str(tmp_path / "out"))
    assert error(capsys, "figures", "apfl-figure-4", *asked).startswith(
        "there is no figure 'apfl-figure-4' (did you mean 'apfl-figure-3'"
    )
    assert "holds no runs of apfl-comparison" in error(capsys, "figures", "apfl-figure-1", *asked)
