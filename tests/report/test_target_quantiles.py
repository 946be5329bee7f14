"""Targets by client: numbers by hand, a table, a figure, and the command that shows them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ks_2samp

from commands import call, error
from fedloom.core.errors import SettingError
from fedloom.data import Partition, by_lists
from fedloom.report import TargetTable, draw_targets, target_heterogeneity
from hospitals import write_hospitals


def shown(values: object, partition: Partition, **more: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(TargetTable(values, partition, **more))  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_by_hand() -> None:
    facts = target_heterogeneity([1.0, 1.0, 3.0, 3.0, 99.0], by_lists([[0, 1], [2, 3]]))
    assert (facts.sizes, facts.between, facts.distance) == ((2, 2.0, 2), 1, 0.5)
    alike = target_heterogeneity([1.0, 3.0, 1.0, 3.0], by_lists([[0, 1], [2, 3], []]))
    assert (alike.sizes, alike.between, alike.distance) == ((0, 2.0, 2), 0, 0)
    constant = target_heterogeneity([5.0, 5.0], by_lists([[0], [1]]))
    assert (constant.between, constant.distance) == (0, 0)


def test_the_distance_is_that_of_scipy_and_variances_add_up() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=90).round(1)
    lists = [rng.permutation(90)[:20], np.arange(5)]
    lists[1] = np.setdiff1d(np.arange(90), lists[0])[:33]
    partition = by_lists(lists)
    everyone = values[partition.indices]
    facts = target_heterogeneity(values, partition)
    assert facts.distance == pytest.approx(np.mean([ks_2samp(values[rows], everyone).statistic for rows in lists]))
    within = sum(((values[rows] - values[rows].mean()) ** 2).sum() for rows in lists)
    assert facts.between == pytest.approx(1 - within / ((everyone - everyone.mean()) ** 2).sum())


def test_a_table_of_clients() -> None:
    values = np.array([0.0, 1, 2, 3, 4, 10, 20])
    partition = Partition(np.array([0, 5, 5, 7]), np.arange(7), clients=("Kiel", "Bremen", "Hamburg"))
    text = shown(values, partition, name="los_days", shown=3)
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["Kiel"][1:8] == ["5", "2", "0", "1", "2", "3", "4"]
    assert lines["Bremen"] == ["Bremen", "0"]
    assert lines["Hamburg"][1:8] == ["2", "15", "10", "12.5", "15", "17.5", "20"]
    assert "los_days by client" in text
    box = next(line for line in text.splitlines() if line.startswith("Hamburg")).rstrip()
    assert box.split()[-1] == "──██┃███──"  # 10, 12.5, 15, 17.5 and 20 of 0 to 20, in 20 letters
    assert "variance between the means of clients: 80.1 % of all" in text
    assert "... and 2 more clients" in shown(values, partition, shown=1)


@pytest.mark.parametrize("values", [[[1.0, 2.0]], ["a", "b"], [1.0]])
def test_what_is_refused(values: object) -> None:
    with pytest.raises(SettingError, match="values must be a number for each row of the partition"):
        target_heterogeneity(values, by_lists([[0], [1]]))  # type: ignore[arg-type]


def test_a_figure_has_a_box_of_each_client() -> None:
    partition = Partition(np.array([0, 3, 6]), np.arange(6), clients=("Kiel", "Bremen"))
    figure = draw_targets(np.arange(6.0), partition, name="los_days", title="natural")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Kiel", "Bremen"]
    assert axes.get_ylabel() == "los_days"
    medians = [line.get_ydata()[0] for line in axes.lines if len(set(np.round(line.get_ydata(), 9))) == 1]
    assert {1.0, 4.0} <= set(medians)


def test_data_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_hospitals(tmp_path / "s")
    data = f"{tmp_path}/s/*.csv?target=los_days,creatinine&group=patient&drop=readmitted&prepare=standard&gaps=none"
    for rows in (tmp_path / "s").glob("*.csv"):  # no gaps in what is a target here
        text = rows.read_text().splitlines()
        k = text[0].split(",").index("creatinine")
        cells = [line.split(",") for line in text]
        filled = [[c if i != k or c not in ("", "NA") else "1" for i, c in enumerate(row)] for row in cells]
        rows.write_text("\n".join(",".join(row) for row in filled) + "\n")
    status, said, _ = call(capsys, "data", "show", "--data", data, "--out", str(tmp_path / "a.svg"))
    assert status == 0
    assert "training examples by target" in said
    assert "los_days by client" in said
    assert "creatinine by client" in said
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    text = error(capsys, "data", "show", "--data", data, "--partition", "shards:3")
    assert "partition shards:S divides classes, and s has targets that are none (los_days, creatinine)" in text
