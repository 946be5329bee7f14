"""Forgetting over heterogeneity, of runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.fedntd.forgetting_over_skew import forgetting_over_skew
from published_runs import cell, made


def test_a_line_is_over_the_skews_that_have_runs(tmp_path: Path) -> None:
    for column, forgetting in (("cifar10-s2", 0.6), ("cifar10-s10", 0.2), ("cifar10-lda0.1", 0.5), ("mnist-s2", 0.1)):
        made(tmp_path, cell("fedntd-table1", column, "fedavg"), 0, 50.0, forgetting=forgetting)
    found = forgetting_over_skew([tmp_path])
    assert [row[:5] for row in found.summary.rows] == [
        ["shards", "s10", "fedavg", 0.2, 0.26],
        ["shards", "s2", "fedavg", 0.6, 0.59],
        ["LDA", "lda0.1", "fedavg", 0.5, 0.51],
    ]
    ours, printed = found.figure.axes[0].lines
    assert (list(ours.get_xdata()), list(ours.get_ydata())) == ([0, 3], [0.2, 0.6])
    assert list(printed.get_ydata()) == [0.26, 0.59]


def test_methods_stand_side_by_side_over_the_rounds_that_their_runs_have(tmp_path: Path) -> None:
    for row, column, rounds in (
        ("fedavg", "cifar10-s2", 40), ("fedntd", "cifar10-s2", 200), ("fedntd", "cifar10-lda0.1", 40),
        ("fedavg", "cifar10-lda0.1", 40),
    ):  # fmt: skip
        made(tmp_path, cell("fedntd-table1", column, row), 0, 50.0, rounds)
    shards, lda = forgetting_over_skew([tmp_path]).figure.axes
    drawn = [line for line in shards.lines if line.get_label() in ("fedavg", "fedntd")]
    assert [list(line.get_xdata()) for line in drawn] == [[pytest.approx(2.85)], [pytest.approx(3.15)]]
    assert shards.get_xlabel() == "shards a client\n40 to 200 of 200 rounds, 1 seed"
    assert lda.get_xlabel() == "alpha\n40 of 200 rounds, 1 seed"
    made(tmp_path / "full", cell("fedntd-table1", "cifar10-s2", "fedavg"), 0, 50.0)
    (whole,) = forgetting_over_skew([tmp_path / "full"]).figure.axes
    assert whole.get_xlabel() == "shards a client\n200 of 200 rounds, 1 seed"


def test_the_experiment_of_section_2_has_panels_of_its_own(tmp_path: Path) -> None:
    for column, forgetting in (("cifar10-iid", 0.1), ("cifar10-lda0.05", 0.7), ("cifar100-lda0.5", 0.4)):
        made(tmp_path, cell("fedntd-section2", column, "fedavg"), 0, 50.0, forgetting=forgetting)
    found = forgetting_over_skew([tmp_path])
    assert [row[:5] for row in found.summary.rows] == [
        ["LDA, constant rate", "iid", "fedavg", 0.1, None],
        ["LDA, constant rate", "lda0.05", "fedavg", 0.7, None],
        ["CIFAR-100, LDA, constant rate", "lda0.5", "fedavg", 0.4, None],
    ]
    drawn = [list(axes.lines[0].get_xdata()) for axes in found.figure.axes]
    assert drawn == [[0, 4], [1]]
    assert [axes.get_title(loc="left") for axes in found.figure.axes] == [
        "CIFAR-10, LDA, constant rate", "CIFAR-100, LDA, constant rate",
    ]  # fmt: skip
    assert [tick.get_text() for tick in found.figure.axes[0].get_xticklabels()] == ["iid", "0.5", "0.3", "0.1", "0.05"]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs of fedntd-table1 or fedntd-section2; name what --out named"):
        forgetting_over_skew([tmp_path])
