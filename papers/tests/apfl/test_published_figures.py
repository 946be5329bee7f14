"""Figures of APFL, of runs made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers.apfl.published_figures import figure_1, figure_2, figure_3
from published_runs import cell, made


def run(folder: Path, table: str, column: str, row: str, accuracies: list[float], losses: Sequence[float] = ()) -> Path:
    place = made(folder, cell(table, column, row), 0, 50.0, rounds=len(accuracies) - 1)
    lines: list[dict[str, object]] = [
        {"round": t, "personal_accuracy_by_samples": a, "train_loss": 1 - a, "server_measured": t in (2, 3)}
        for t, a in enumerate(accuracies)
    ]
    for line, loss in zip(lines, losses, strict=False):
        line["personal_train_loss"] = loss
    for line in lines:
        if row != "apfl_ni":
            del line["server_measured"]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def test_figure_1_has_the_mean_and_the_best_of_each_method(tmp_path: Path) -> None:
    run(tmp_path, "apfl-comparison", "mnist", "fedavg", [0.1, 0.3, 0.5, 0.3])
    run(tmp_path, "apfl-comparison", "mnist", "apfl_ni", [0.1, 0.5, 0.9, 0.9])
    found = figure_1([tmp_path])
    assert [[row[0], row[1], round(row[2], 6), round(row[3], 6)] for row in found.summary.rows] == [
        ["mnist", "fedavg", 30.0, 50.0], ["mnist", "apfl_ni", 60.0, 90.0],
    ]  # fmt: skip
    (axes,) = found.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["mnist\n3 of 150 rounds\n1 seed"]
    assert sorted(bar.get_height() for bar in axes.patches) == pytest.approx([30.0, 60.0])
    best = [float(lines.get_segments()[0][0][1]) for lines in axes.collections]
    assert sorted(best) == pytest.approx([50.0, 90.0])


def test_figure_2_has_a_star_where_importance_was_measured(tmp_path: Path) -> None:
    run(tmp_path, "apfl-comparison", "mnist", "fedavg", [0.1, 0.3, 0.5, 0.3])
    run(tmp_path, "apfl-comparison", "mnist", "apfl_ni", [0.1, 0.5, 0.8, 0.9])
    found = figure_2([tmp_path])
    accuracy, loss = found.figure.axes
    stars = [line for line in accuracy.lines if line.get_marker() == "*" and len(line.get_xdata())]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in stars] == [([2, 3], pytest.approx([80, 90]))]
    curves = [list(line.get_ydata()) for line in loss.lines if line.get_marker() != "*"]
    assert curves == [pytest.approx([0.9, 0.7, 0.5, 0.7]), pytest.approx([0.9, 0.5, 0.2, 0.1])]
    assert found.summary.rows == [["mnist", 0, 2], ["mnist", 0, 3]]
    assert accuracy.get_title(loc="left") == "mnist\n3 of 150 rounds, 1 seed"
    assert loss.get_title(loc="left") == "clients of a round"
    assert any(remark.startswith("On mnist not every method has a run with") for remark in found.remarks)


def test_figure_2_has_the_loss_over_all_clients_where_every_method_has_it(tmp_path: Path) -> None:
    for column, others in (("mnist", [2.3, 1.5, 1.0]), ("letters", [])):
        run(tmp_path, "apfl-comparison", column, "fedavg", [0.1, 0.3, 0.5], others)
        run(tmp_path, "apfl-comparison", column, "apfl_ni", [0.1, 0.5, 0.8], [2.3, 1.0, 0.5])
    found = figure_2([tmp_path])
    mnist, letters = found.figure.axes[2:]
    assert (mnist.get_title(loc="left"), letters.get_title(loc="left")) == ("all clients", "clients of a round")
    drawn = [list(line.get_ydata()) for line in mnist.lines if line.get_marker() != "*"]
    assert drawn == [[2.3, 1.5, 1.0], [2.3, 1.0, 0.5]]
    assert {row[2] for row in found.tables[0].rows if row[0] == "mnist"} == {
        "personal_accuracy_by_samples", "personal_train_loss",
    }  # fmt: skip
    (remark,) = (remark for remark in found.remarks if "not every method" in remark)
    assert remark.startswith("On letters not")


def test_figure_3_has_a_line_over_what_is_varied(tmp_path: Path) -> None:
    run(tmp_path, "apfl-rate", "mnist-lr0.01", "apfl_ni", [0.5, 0.7])
    run(tmp_path, "apfl-rate", "mnist-lr0.1", "apfl_ni", [0.7, 0.9])
    run(tmp_path, "apfl-epochs", "letters-e20", "fedavg", [0.4, 0.6])
    found = figure_3([tmp_path])
    assert [axes.get_title(loc="left") for axes in found.figure.axes] == [
        "letters\n1 of 200 rounds, 1 seed", "mnist\n1 of 150 rounds, 1 seed",
    ]  # fmt: skip
    (line,) = found.figure.axes[1].lines
    assert list(line.get_ydata()) == pytest.approx([float("nan")] * 2 + [60.0, 80.0], nan_ok=True)
    assert [label.get_text() for label in found.figure.axes[1].get_xticklabels()] == ["0.0001", "0.001", "0.01", "0.1"]


def test_figure_3_compares_means_over_as_many_rounds(tmp_path: Path) -> None:
    """The run of five local epochs is longer, as on CIFAR-10: its later rounds do not count."""
    run(tmp_path, "apfl-comparison", "letters", "apfl_ni", [0.5, 0.7, 0.9, 0.9])
    run(tmp_path, "apfl-epochs", "letters-e20", "apfl_ni", [0.6, 0.8])
    run(tmp_path, "apfl-rate", "mnist-lr0.1", "apfl_ni", [0.7, 0.9])
    found = figure_3([tmp_path])
    assert [row for row in found.summary.rows if row[1] == "epochs"] == [
        ["letters", "epochs", "apfl_ni", 5, pytest.approx(60.0), 1, 1],
        ["letters", "epochs", "apfl_ni", 20, pytest.approx(70.0), 1, 1],
    ]
    assert found.remarks[0].startswith("Not all runs are equally long.")
    assert "the first 1 of up to 3 on letters over epochs" in found.remarks[0]


@pytest.mark.parametrize("figure", [figure_1, figure_2, figure_3])
def test_nothing_to_draw_is_refused(figure: object, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"holds no runs of apfl-.*; name what --out named"):
        figure([tmp_path])  # type: ignore[operator]
