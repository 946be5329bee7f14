"""`fedloom figures`."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedloom as fl
import fedloom_papers as papers
from commands import call, error
from published_runs import cell, made
from tiny import LOCAL, federation, linear


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


@pytest.mark.slow
def test_curves_are_those_of_any_runs_over_what_they_cost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = fl.RunSettings(
        rounds=4, cohort_size=2, threads=1, clock="lognormal:example=0.01,down=20", global_every=3
    )
    history = fl.run(fl.FedAvg(local=LOCAL), federation(), linear, settings, directory=tmp_path / "runs" / "one")
    asked = ("curves", "--known", str(tmp_path / "runs"), "--out", str(tmp_path / "out"))
    for over, x in (("virtual_time", "virtual_seconds"), ("bytes", "bytes"), ("rounds", "round")):
        status, out, _ = call(capsys, "figures", *asked, "--over", over)
        assert (status, out.count("files: ")) == (0, 1)
        name = f"curves-{over.replace('_', '-')}"
        assert {f"{name}.{kind}" for kind in ("png", "svg", "pdf", "csv")} <= {
            p.name for p in (tmp_path / "out").iterdir()
        }
        head, *rows = (tmp_path / "out" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        assert head == f"method,{x},global_accuracy,lowest,highest"
        spent = [row[x] for row in history.rows() if row.get("global_accuracy") is not None]
        assert [float(row.split(",")[1]) for row in rows] == pytest.approx(spent)
        assert len(rows) == 3
    assert "over must be one of rounds, bytes, virtual_time" in error(capsys, "figures", *asked, "--over", "seconds")
    asked = ("apfl-figure-1", *asked, "--over", "bytes")
    assert "got --over bytes with apfl-figure-1: leave it out, or draw curves" in error(capsys, "figures", *asked)


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
