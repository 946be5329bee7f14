"""Curves in the protocol of FedAlign, of runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.fedntd.fedalign_curves import fedalign_curves
from published_runs import cell, made

TABLE = "fedntd-table13"


def test_each_method_is_a_line_in_the_panel_of_its_clients_and_alpha(tmp_path: Path) -> None:
    for row, accuracy in (("fedavg", 40.0), ("fedntd", 60.0), ("fedalign", 30.0)):
        for seed in (0, 1):
            made(tmp_path, cell(TABLE, "cifar10-lda0.1-k64", row), seed, accuracy + 2 * seed, rounds=3)
    made(tmp_path, cell(TABLE, "cifar10-lda0.05-k16", "fedntd"), 0, 50.0, rounds=2)
    found = fedalign_curves([tmp_path])
    panels = {ax.get_title(loc="left"): ax for ax in found.figure.axes}
    assert list(panels) == [f"{clients} clients, LDA {alpha}" for clients in (16, 64) for alpha in (0.05, 0.1, 0.5)]
    drawn = {line.get_label(): list(line.get_ydata()) for line in panels["64 clients, LDA 0.1"].lines}
    assert drawn == {
        "FedAvg": pytest.approx([10, 41, 41, 41]),  # mean of two seeds; before training 10 %
        "FedNTD": pytest.approx([10, 61, 61, 61]),
        "FedAlign": pytest.approx([10, 31, 31, 31]),
    }
    (alone,) = panels["16 clients, LDA 0.05"].lines
    assert (list(alone.get_xdata()), list(alone.get_ydata())) == ([0, 1, 2], pytest.approx([10, 50, 50]))
    assert [text.get_text() for text in panels["16 clients, LDA 0.5"].texts] == ["not run"]
    assert found.summary.rows[0] == ["cifar10-lda0.05-k16", "fedntd", 50.0, 49.43, 2, 1]
    assert ["cifar10-lda0.1-k64", "fedalign", 3, pytest.approx(31)] in [list(row) for row in found.tables[0].rows]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs of fedntd-table13; name what --out named"):
        fedalign_curves([tmp_path])
