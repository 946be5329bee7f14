"""Which runs are one method, and what it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made import made_run, methods

from fedloom.core.errors import SettingError
from fedloom.report.grouping import differences, read_methods


def test_runs_that_differ_in_their_seed_are_one_method(tmp_path: Path) -> None:
    for seed in (10, 2):
        made_run(tmp_path / f"fedavg/seed-{seed}", "fedavg", seed, settings={"data": {"seed": seed}})
    made_run(tmp_path / "fedntd/seed-2", "fedntd", 2)
    found = methods(tmp_path)
    assert [(m.label, [run.seed for run in m.runs]) for m in found] == [("fedavg", [2, 10]), ("fedntd", [2])]
    assert [run.folder for run in found[0].runs] == ["fedavg/seed-2", "fedavg/seed-10"]


def test_a_number_beyond_all_measure_is_no_end(tmp_path: Path) -> None:
    """A perplexity of 1e40 after one of 10: the run diverged, and 10 is not what it ended at."""
    for name, ends in (("fedavg", (20.0, 12.0)), ("fedprox", (10.0, 1e40))):
        folder = made_run(tmp_path / name, name, rounds=2)
        rows = [{"round": t, "global_loss": v, "global_accuracy": 0.5} for t, v in enumerate((60.0, *ends))]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept, diverged = (m.last("global_loss") for m in methods(tmp_path))
    assert kept is not None
    assert kept.mean == 12.0
    assert diverged is None


def test_how_it_was_computed_does_not_make_another_method(tmp_path: Path) -> None:
    for seed, threads, workers in ((0, 1, 2), (1, 8, 2), (2, 1, 6)):
        run = {"rounds": 4, "cohort_size": 2, "seed": seed, "threads": threads, "workers": workers}
        made_run(tmp_path / str(seed), seed=seed, settings={"run": run})
    assert len(methods(tmp_path)) == 1


def test_what_can_change_results_makes_another_method(tmp_path: Path) -> None:
    for seed, deadline in ((0, 1.0), (1, 60.0)):  # who is late is left out
        run = {"rounds": 4, "cohort_size": 2, "seed": seed, "deadline": deadline}
        made_run(tmp_path / str(seed), seed=seed, settings={"run": run})
    assert len(methods(tmp_path)) == 2


def test_another_value_makes_another_method_and_names_it(tmp_path: Path) -> None:
    for mu in (0.1, 1.0):
        made_run(tmp_path / f"mu{mu}" / "seed-0", "fedprox", settings={"fedprox": {"mu": mu, "shared": "*"}})
    assert [m.label for m in methods(tmp_path)] == ["fedprox mu=0.1", "fedprox mu=1.0"]


def test_where_much_differs_the_folder_names_a_method(tmp_path: Path) -> None:
    made_run(tmp_path / "mine/seed-0")
    made_run(tmp_path / "theirs/seed-0", settings={"local": {"epochs": 1, "lr": 0.2}, "model": "lenet"})
    assert [m.label for m in methods(tmp_path)] == ["mine", "theirs"]


def test_a_run_on_its_own_and_several_directories(tmp_path: Path) -> None:
    for name, algorithm in (("a", "fedavg"), ("b", "fedntd")):
        made_run(tmp_path / name, algorithm)
    assert [(m.label, m.first.folder) for m in methods(tmp_path / "a")] == [("fedavg", "a")]
    assert [m.label for m in methods(tmp_path / "b", tmp_path / "a")] == ["fedntd", "fedavg"]
    assert len(methods(tmp_path, tmp_path / "a")) == 2  # a is counted once


def test_runs_that_tell_nothing_of_their_settings_keep_their_folders(tmp_path: Path) -> None:
    for name in ("x", "y"):
        made_run(tmp_path / name, without=("settings.json", "manifest.json", "federation.json", "timing.jsonl"))
    assert [m.label for m in methods(tmp_path)] == ["x", "y"]


def test_of_a_run_from_python_the_manifest_tells_methods_apart(tmp_path: Path) -> None:
    kinds = (("a", 0.5, "f00"), ("b", 1.0, "f00"), ("c", 1.0, "f00"), ("d", 1.0, "bad"))
    for seed, (name, beta, data) in enumerate(kinds):
        folder = made_run(tmp_path / name, "fedntd", without=("settings.json",))
        (folder / "settings.json").write_text(
            json.dumps({"algorithm": "FedNTD", "run": {"rounds": 4, "seed": min(seed, 1)}})
        )
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["hyper_parameters"] = {"kind": "FedNTD", "beta": beta}
        manifest["federation"]["parts"] = {"train": "c0de", "partition": name, "test": data}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    found, remarks = read_methods([tmp_path])
    assert [[run.folder for run in m.runs] for m in found] == [["a"], ["b", "c"], ["d"]]
    assert any("a seed occurs twice" in remark for remark in remarks)


def test_settings_are_split_into_shared_and_own(tmp_path: Path) -> None:
    made_run(tmp_path / "a", "fedavg")
    made_run(tmp_path / "b", "fedprox", settings={"fedprox": {"mu": 0.1, "shared": "*"}})
    shared, own = differences(methods(tmp_path))
    assert shared["local.epochs"] == "5"
    assert shared["shared"] == "*"
    assert own == [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": "0.1"}]


def test_runs_without_a_round_are_left_out(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    folder = made_run(tmp_path / "b", "fedntd")
    (folder / "metrics.jsonl").write_text('{"round": 0, "global_acc')
    found, remarks = read_methods([tmp_path])
    assert len(found) == 1
    assert remarks == ["b: no round is complete; left out."]
    with pytest.raises(SettingError, match=r"no run below .* has a complete round yet"):
        read_methods([folder])


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"holds no run \(a folder with a metrics.jsonl\)"):
        read_methods([tmp_path])
