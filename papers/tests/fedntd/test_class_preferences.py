"""The map of class preferences of several runs, made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import SettingError
from fedloom_papers import recipes
from fedloom_papers.fedntd.class_preferences import class_preferences
from fedloom_papers.reproduction.evidence import place
from published_runs import cell, made

TABLE = "fedntd-table2"
CSV = "round,neuron,received,client 3,client 5,aggregated\n200,0,4,4,1,4\n200,1,2,2,2,2\n200,2,-1,1,-1,0\n"


def analysed(folder: Path, column: str, row: str, csv: str = CSV, seed: int = 0) -> None:
    path = made(folder, cell(TABLE, column, row), seed, 50.0) / place("class-preference")
    path.parent.mkdir()
    path.write_text(csv)


def test_two_runs_are_of_iid_clients_and_the_others_those_of_table_1() -> None:
    found = {(r.column, r.row): r for r in recipes(TABLE)}
    assert len(found) == 3 * 2
    for (column, row), r in found.items():
        if column == "cifar10-iid":
            one = cell("fedntd-table1", "cifar10-s2", row)
            assert r.experiment == one.experiment.changed("data.partition", "iid")
            assert r.place == f"{TABLE}/{column}/{row}"
        else:
            assert r.place == cell("fedntd-table1", column, row).place


def test_a_panel_is_a_method_on_some_clients(tmp_path: Path) -> None:
    for seed in (1, 2):
        analysed(tmp_path, "cifar10-s2", "fedavg", seed=seed)
    analysed(tmp_path, "cifar10-s2", "fedntd")
    analysed(tmp_path, "cifar10-iid", "fedntd", CSV.replace("4,1,4", "4,4,4"))
    found = class_preferences([tmp_path])
    panels = {ax.get_title(loc="left"): ax for ax in found.figure.axes if ax.get_title(loc="left")}
    assert list(panels) == [f"{m}, {c}" for m in ("FedAvg", "FedNTD") for c in ("IID", "two shards a client")]
    assert [text.get_text() for text in panels["FedAvg, IID"].texts] == ["not analysed"]
    shown = panels["FedNTD, two shards a client"]
    table = np.ma.filled(shown.images[0].get_array(), -1)
    # neurons by their class in the received model: that of class 2, that of class 4, the dead one
    assert table.tolist() == [[2, 4, -1], [2, 4, 1], [2, 1, -1], [2, 4, 0]]
    names = [label.get_text() for label in shown.get_yticklabels()]
    assert names == ["received", "client 3, 100.0 %", "client 5, 50.0 %", "aggregated, 100.0 %"]
    rows = {tuple(row[:2]): row[2:] for row in found.summary.rows}
    assert rows == {
        ("cifar10-iid", "fedntd"): [0, 1.0, 1.0],
        ("cifar10-s2", "fedavg"): [1, 0.75, 1.0],
        ("cifar10-s2", "fedntd"): [0, 0.75, 1.0],
    }
    assert ["cifar10-iid", "fedntd", 0, "received", 2, -1] in [list(row) for row in found.tables[0].rows]


def test_runs_that_were_not_analysed_are_refused_with_the_command(tmp_path: Path) -> None:
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedavg"), 0, 50.0)
    with pytest.raises(SettingError, match=r"class-preference\.csv; fedloom analyse RUN class-preference makes it"):
        class_preferences([tmp_path])


def test_a_file_of_another_analysis_is_refused(tmp_path: Path) -> None:
    analysed(tmp_path, "cifar10-s2", "fedavg", "layer,model\na,b\n")
    with pytest.raises(SettingError, match=r"class-preference\.csv is not what class-preference wrote"):
        class_preferences([tmp_path])
