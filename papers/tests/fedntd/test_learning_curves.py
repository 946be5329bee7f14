"""Learning curves with 1 and 10 local epochs: recipes, and a figure of runs made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom_papers import recipes
from fedloom_papers.fedntd.learning_curves import learning_curves
from fedloom_papers.reproduction.evidence import place
from published_runs import cell, made

TABLE = "fedntd-learning-curves"
BLUE, RED = "#0072B2", "#D55E00"


def analysed(run: Path, *rounds: tuple[int, float, float]) -> None:
    path = run / place("local-accuracy-rounds")
    path.parent.mkdir()
    lines = [f"{t},0.5,{inside},0.4,{outside}" for t, inside, outside in rounds]
    head = "round,in_before_mean,in_after_mean,out_before_mean,out_after_mean"
    path.write_text("\n".join([head, *lines]) + "\n")


def test_recipes_are_those_of_table_1_with_one_and_ten_epochs() -> None:
    found = {(r.column, r.row): r for r in recipes(TABLE)}
    assert len(found) == 8 * 2 * 2
    for (column, row), r in found.items():
        skew, _, epochs = column.removeprefix("cifar10-").partition("-e")
        one = cell("fedntd-table1", f"cifar10-{skew}", row).experiment
        assert r.experiment == one.changed("local.epochs", epochs)
        assert (r.accuracy, r.target) == (None, False)
    shared = {(column, row): r.place for (column, row), r in found.items() if not r.place.startswith(TABLE)}
    assert len(shared) == 8
    assert shared["cifar10-s2-e10", "fedntd"] == "fedntd-table8/cifar10-s2-e10/fedntd"
    assert shared["cifar10-lda0.1-e1", "fedavg"] == "fedntd-table9/cifar10-lda0.1-e1/fedavg"


@pytest.mark.slow
def test_three_rows_over_the_skews_fedavg_blue_and_fedntd_red(tmp_path: Path) -> None:
    for column in ("cifar10-s2-e1", "cifar10-s2-e10", "cifar10-lda0.1-e10"):
        made(tmp_path, cell(TABLE, column, "fedavg"), 0, 40.0, rounds=4)
    for seed in (0, 1):
        run = made(tmp_path, cell(TABLE, "cifar10-s2-e10", "fedntd"), seed, 60.0 + seed, rounds=4)
        analysed(run, (1, 0.8, 0.2), (4, 0.9, 0.3 + 0.2 * seed))
    found = learning_curves([tmp_path])
    axes = np.reshape(found.figure.axes, (3, 2))
    assert [ax.get_title(loc="left") for ax in axes[0]] == ["shards, s = 2", "LDA, alpha = 0.1"]

    def lines(i: int, j: int) -> dict[str, tuple[str, str, list[int], list[float]]]:
        return {
            line.get_label(): (line.get_color(), line.get_linestyle(), list(line.get_xdata()), list(line.get_ydata()))
            for line in axes[i][j].lines
        }

    assert lines(0, 0) == {"FedNTD, E = 10": (RED, "-", [1, 4], pytest.approx([80, 90]))}
    assert lines(1, 0) == {"FedNTD, E = 10": (RED, "-", [1, 4], pytest.approx([20, 40]))}  # mean of two seeds
    assert lines(2, 0) == {
        "FedAvg, E = 1": (BLUE, "--", [0, 1, 2, 3, 4], pytest.approx([10, 40, 40, 40, 40])),
        "FedAvg, E = 10": (BLUE, "-", [0, 1, 2, 3, 4], pytest.approx([10, 40, 40, 40, 40])),
        "FedNTD, E = 10": (RED, "-", [0, 1, 2, 3, 4], pytest.approx([10, 60.5, 60.5, 60.5, 60.5])),
    }
    assert list(lines(2, 1)) == ["FedAvg, E = 10"]
    assert [text.get_text() for text in axes[0][1].texts] == ["not measured"]
    assert (
        "cifar10-s2-e1 fedavg, cifar10-s2-e10 fedavg, cifar10-lda0.1-e10 fedavg; fedloom analyse RUN"
        in (found.remarks[1])
    )
    last = {tuple(row[:3]): row[3:] for row in found.summary.rows}
    assert last["s2", "FedNTD", 10] == pytest.approx([4, 0.9, 0.4, 0.605])
    assert last["s2", "FedAvg", 1] == [4, None, None, pytest.approx(0.4)]


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs of fedntd-learning-curves; name what --out named"):
        learning_curves([tmp_path])
