"""What a person sees of a run from Python: progress where somebody looks, one-line texts, tables, a figure."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from torch import nn

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.display.progress import RunSequence, progress


def federation() -> fl.Federation:
    train = fl.from_arrays(np.eye(12, 4, dtype=np.float32), np.arange(12) % 2, classes=("cat", "<dog>"))
    return fl.federate(train, fl.iid(train.y, 3, seed=0), test=train, val_fraction=0.3)


def run(**more: Any) -> fl.History:
    settings = fl.RunSettings(rounds=2, cohort_size=2, threads=1, engine="loop", compilation="none")
    return fl.run(fl.FedAvg(), federation(), nn.Linear(4, 2), settings, **more)


def looking(monkeypatch: pytest.MonkeyPatch, **how: Any) -> io.StringIO:
    """As if standard error were a terminal, or the program a notebook."""
    seen = io.StringIO()

    def console(**_: Any) -> Console:
        return Console(file=seen, width=80, color_system=None, **how)

    monkeypatch.setattr("fedloom.display.progress.Console", console)
    return seen


def test_progress_is_shown_where_a_person_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = looking(monkeypatch, force_terminal=True)
    called: list[int] = []
    run(on_round=lambda history: called.append(len(history.metrics)))
    assert "FedAvg" in seen.getvalue()
    assert "2/2" in seen.getvalue()
    assert called == [2, 3]
    before = seen.getvalue()
    run(progress=False)
    assert seen.getvalue() == before
    assert looking(monkeypatch).getvalue() == ""  # a log file
    run()
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_one_line_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in one that is run by a program and saved, where what is written over would stay."""
    shown: list[tuple[str, str]] = []

    class Line:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(("changed", data["text/plain"]))

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Line:
        assert raw
        assert display_id
        shown.append(("new", data["text/plain"]))
        return Line()

    looking(monkeypatch, force_jupyter=True)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    run()
    assert [what for what, _ in shown] == ["new", "changed"]
    assert shown[0][1].startswith("FedAvg: round 1 of 2, global ")
    assert shown[1][1].startswith("FedAvg: round 2 of 2, global ")
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what it does with figures of pyplot."""
    made: list[Any] = []

    def subplots(**how: Any) -> tuple[Any, Any]:
        made.append(Figure(**how).add_subplot())
        return made[0].figure, made[0]

    monkeypatch.setattr("fedloom.display.line_plot.Console", lambda: Console(force_jupyter=True))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", SimpleNamespace(subplots=subplots))
    monkeypatch.setattr("matplotlib.pyplot", sys.modules["matplotlib.pyplot"], raising=False)
    history = run(progress=False)
    assert [history.plot()] == made
    assert made[0].get_legend() is not None
    own = Figure().add_subplot()
    assert (history.plot(ax=own), len(made)) == (own, 1)


def test_the_newest_number_is_that_of_the_global_model_if_there_is_one() -> None:
    rounds = [{"round": 0}, {"round": 1, "global_accuracy": 0.3333, "personal_accuracy": 0.5}]
    assert fl.History(algorithm="A", metrics=rounds).newest_accuracy() == "global 0.3333"
    assert (
        fl.History(algorithm="A", metrics=[{"round": 1, "personal_accuracy": 0.5}]).newest_accuracy()
        == "personal 0.5000"
    )
    assert fl.History(algorithm="A", metrics=rounds[:1]).newest_accuracy() == "personal -"


@pytest.mark.parametrize("terminal", [False, True])
def test_several_runs_have_a_number_and_a_time_of_all(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    now = 0.0

    def clock() -> float:
        return now

    sequence = RunSequence([2, 4], clock=clock)
    for name, rounds in (("fedavg", 2), ("fedntd", 4)):
        with progress(console, name, rounds, sequence=sequence, interval=30.0, clock=clock) as show:
            now += 40 if name == "fedavg" else 100
            show(1, "global 0.5")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search("0:00:40 left.*; run 1 of 2, 0:03:20 for all", text)
    assert re.search("0:05:00 left.*; run 2 of 2, 0:03:30 for all", text)
    assert RunSequence([5]).position == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_time_left_is_that_of_the_rounds_computed_now(terminal: bool) -> None:
    """A run that goes on after its round 30 of 40 has computed none of those before, which took it no time; and rounds
    may be long.
    """
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    now = 1000.0
    with progress(console, "fedavg", 40, interval=30.0, clock=lambda: now) as show:
        for done in (31, 32):
            now += 60
            show(done, "global 0.5")
    assert "0:08:00 left" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 79, 80])
def test_the_line_fits_a_narrow_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with progress(console, "fedavg", 100) as show:
        show(1, "global 0.3333")
    frames = console.file.getvalue()  # type: ignore[attr-defined]
    assert "global 0.3333" in frames
    assert "…" not in frames


def test_one_line_tells_what_a_thing_is(tmp_path: Path) -> None:
    clients = federation()
    assert repr(clients.train) == "Examples(arrays: 12 of 4 torch.float32, 2 classes)"
    assert repr(fl.iid(clients.train.y, 3, seed=0)) == "Partition(iid: 3 clients of 4 examples)"
    assert repr(clients) == (
        "Federation(Examples(arrays: 12 of 4 torch.float32, 2 classes), Partition(iid: 3 clients of 2 examples); "
        "3 local test; 3 local validation; 12 test)"
    )
    history = run()
    assert repr(history).startswith("History(FedAvg, 2 rounds, global_accuracy=0.")
    assert repr(fl.History(algorithm="A", stopped="it was enough")) == "History(A, 0 rounds, stopped: it was enough)"
    for thing in (clients, history):
        assert "\n" not in repr(thing)


def test_notebooks_show_tables() -> None:
    html = federation()._repr_html_()
    assert "<th>&lt;dog&gt;</th>" in html
    assert html.count("<tr>") == 4  # a heading, three clients
    many = fl.federate(fl.from_arrays(np.eye(30), np.arange(30) % 2), fl.iid(np.arange(30) % 2, 30, 0), test_fraction=0)
    assert "and 10 more clients" in many._repr_html_()
    html = run()._repr_html_()
    assert "<th>last</th><th>tail</th><th>validated</th><th>best</th><th>mean</th>" in html
    assert "<th>personal_accuracy</th>" in html


def test_a_history_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    history = run()
    axes = history.plot()
    assert [line.get_label() for line in axes.lines] == [
        f"FedAvg: {name} accuracy" for name in ("global", "personal", "val")
    ]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), history.series("global_accuracy"))
    assert len(history.plot("train_loss", ax=axes).lines) == 4
    with pytest.raises(
        SettingError, match=r"no round has measured 'global_acuracy' \(did you mean 'global_accuracy'\?\)"
    ):
        history.plot("global_acuracy")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(
        SettingError, match=r"needs matplotlib: pip install '<PATH>\[report\]', where <PATH> is fedloom's"
    ):
        history.plot()
