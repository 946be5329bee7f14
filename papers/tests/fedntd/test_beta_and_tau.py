"""FedNTD over beta and tau: recipes, and a figure of runs made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers import recipes
from fedloom_papers.fedntd.beta_and_tau import beta_and_tau
from published_runs import cell, made

TABLE = "fedntd-beta-tau"


def test_one_setting_is_varied_and_the_run_with_both_at_1_is_that_of_table_1() -> None:
    found = {(r.column, r.row): r for r in recipes(TABLE)}
    assert len(found) == 2 * 8
    for (_, row), r in found.items():
        own = r.experiment.settings["fedntd"]
        name, value = re.fullmatch(r"fedntd-(beta|tau)([\d.]+)", row).groups()  # type: ignore[union-attr]
        assert own == {"beta": 1.0, "tau": 1.0, name: float(value)}
        assert (r.accuracy, r.target) == (None, False)
    for column in ("cifar10-s2", "cifar10-lda0.1"):
        shared = cell("fedntd-table1", column, "fedntd").place
        assert {row for (c, row), r in found.items() if c == column and r.place == shared} == {
            "fedntd-beta1", "fedntd-tau1",
        }  # fmt: skip


def test_both_numbers_are_drawn_over_both_settings(tmp_path: Path) -> None:
    made(tmp_path, cell("fedntd-table1", "cifar10-s2", "fedntd"), 0, 60.0, forgetting=0.3)
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedntd-beta0.3"), 0, 50.0, forgetting=0.4)
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedntd-tau10"), 0, 40.0, forgetting=0.5)
    found = beta_and_tau([tmp_path])
    assert found.summary.rows == [
        ["cifar10-s2", "beta", 0.3, 50.0, 0.4],
        ["cifar10-s2", "beta", 1.0, 60.0, 0.3],
        ["cifar10-s2", "tau", 1.0, 60.0, 0.3],
        ["cifar10-s2", "tau", 10.0, 40.0, 0.5],
    ]
    drawn = [(list(axes.lines[0].get_xdata()), list(axes.lines[0].get_ydata())) for axes in found.figure.axes]
    assert drawn == [([1, 2], [50.0, 60.0]), ([1, 2], [0.4, 0.3]), ([1, 3], [60.0, 40.0]), ([1, 3], [0.3, 0.5])]


def test_forgetting_of_fedavg_is_a_dashed_line(tmp_path: Path) -> None:
    made(tmp_path, cell("fedntd-table1", "cifar10-lda0.1", "fedavg"), 0, 45.0, forgetting=0.55)
    made(tmp_path, cell(TABLE, "cifar10-lda0.1", "fedntd-tau3"), 0, 50.0, forgetting=0.4)
    axes = beta_and_tau([tmp_path]).figure.axes
    dashed = [[line for line in ax.lines if line.get_linestyle() == "--" and len(line.get_xdata())] for ax in axes]
    assert [[set(line.get_ydata()) for line in lines] for lines in dashed] == [[], [{0.55}], [], [{0.55}]]
    (own,) = (line for line in axes[3].lines if list(line.get_ydata()) == [0.4])
    assert dashed[3][0].get_color() == own.get_color()


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs of fedntd-beta-tau; name what --out named"):
        beta_and_tau([tmp_path])
