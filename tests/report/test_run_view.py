"""View of one run and of one client: its numbers are those of the records, few enough for a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import made_run, methods

from fedloom.coordinator import History
from fedloom.report import run_view, write_report
from fedloom.report.run_view import as_json


def test_a_run_has_its_own_settings_its_rounds_and_its_clients(tmp_path: Path) -> None:
    made_run(tmp_path / "fedavg", "fedavg", failed={"1": "low battery"}, settings={"local": {"epochs": 5, "lr": 0.3}})
    made_run(tmp_path / "local_only", "local_only", without=("global_accuracy",))
    view = run_view.run_view(methods(tmp_path))
    assert view["step"] == 1
    assert view["shared"]["local.epochs"] == "5"
    (run,) = (r for r in view["runs"] if r["run"] == "fedavg")
    (alone,) = (r for r in view["runs"] if r["run"] == "local_only")
    assert (run["settings"]["local.lr"], alone["settings"]["local.lr"]) == ("0.3", "0.1")
    assert "local.lr" not in view["shared"]
    records = History.read(tmp_path / "fedavg").metrics
    heads = ["round", "Global accuracy, %", "Personal accuracy, %", "Training loss", "Forgetting, points"]
    assert view["heads"] == [*heads, "asked", "lost", "MB", "seconds"]
    last = records[-1]
    assert run["rounds"][-1] == [
        4, round(100 * last["global_accuracy"], 1), round(100 * last["personal_accuracy"], 1), 0.5, 10.0, 2, 1, 5.0,
        0.751,
    ]  # fmt: skip
    assert run["rounds"][0][5:7] == [None, None]
    values = [round(100 * r["personal_by_client"]["1"], 1) for r in records]
    others = History.read(tmp_path / "local_only").metrics[-1]["personal_by_client"]["1"]
    gain = round(100 * (last["personal_by_client"]["1"] - others), 1)
    assert run["clients"]["1"] == [values[-1], gain, 4, 4, values]
    assert run["clients"]["0"][2:4] == [4, 0]
    assert alone["clients"]["1"][1] is None
    held = History.read(tmp_path / "fedavg").federation["train"][1]
    assert view["federations"][run["federation"]]["1"][1] == sum(held)
    assert len(view["federations"]) == 1


def test_of_many_numbers_rounds_are_left_out_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_run(tmp_path / "fedavg", rounds=20)
    monkeypatch.setattr(run_view, "_MOST_NUMBERS", 100)
    monkeypatch.setattr(run_view, "MOST_CLIENTS", 4)
    view = run_view.run_view(methods(tmp_path))
    assert view["step"] == 2  # of 21 rounds of 4 numbers and 4 clients each
    assert view["clients"]
    (run,) = view["runs"]
    assert [row[0] for row in run["rounds"]] == list(range(0, 21, 2))
    assert list(run["clients"]) == ["0", "1", "2", "3"]
    assert {len(curve) for *_, curve in run["clients"].values()} == {11}


def test_no_text_of_a_run_ends_its_json() -> None:
    text = as_json({"a": "</script><b>"})
    assert "<" not in text
    assert json.loads(text) == {"a": "</script><b>"}


@pytest.mark.slow
def test_the_page_has_the_view_and_says_what_is_there_without_its_script(tmp_path: Path) -> None:
    made_run(tmp_path / "run")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    json_text = page.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(json_text) == run_view.run_view(methods(tmp_path))
    assert page.index('class="view" hidden') < page.index("which does not run here")
