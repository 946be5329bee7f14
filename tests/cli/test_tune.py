"""`fedloom compare --tuned`: the tries, what is chosen of them, and the runs before and after."""

from __future__ import annotations

import argparse
import csv
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import call, error
from fedloom import History
from fedloom.cli import tune as cli_tune
from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.tuning import Tuned
from fedloom.report.order import ordered_runs, tuning_of

FEW = [
    "--model",
    "logistic",
    "--rounds",
    "2",
    "--clients",
    "4",
    "--cohort",
    "4",
    "--partition",
    "iid",
    "--engine",
    "loop",
    "--threads",
    "1",
]
METHODS = ["compare", "fedavg", "fedprox", "--no-local-only", "--val-fraction", "0.2", *FEW]
TUNED = [*METHODS, "--tuned", "3", "--seed", "0,1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng, arrays = np.random.default_rng(0), {}
    for part, n in (("train", 200), ("test", 60)):
        arrays[f"y_{part}"] = y = np.arange(n) % 3
        arrays[f"x_{part}"] = (np.eye(3)[y] + rng.normal(0, 0.9, (n, 3))).astype("f4")
    path = tmp_path_factory.mktemp("data") / "own.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture(scope="module")
def tuned(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "runs"
    assert main([*TUNED, "--data", data, "--out", str(out)]) == 0
    return out


def places(out: Path) -> list[str]:
    return [str(run.relative_to(out)) for run in ordered_runs(out)]


@pytest.mark.slow
def test_the_best_try_on_validation_examples_runs_with_every_seed(tuned: Path) -> None:
    tuning, folders = tuning_of(tuned), []
    assert (tuning["tries"], tuning["with"], tuning["by"]) == (3, "grid", "val_accuracy")
    for method in ("fedavg", "fedprox"):
        with (tuned / "tuning" / method / "sweep.csv").open(newline="") as file:
            scores = [float(row["score"]) for row in csv.DictReader(file)]
        assert len(scores) == 3
        one, best = tuning["methods"][method], int(np.argmax(scores))
        assert (one["given_score"], one["score"], one["moved"]) == (scores[0], scores[best], best > 0)
        assert one["folder"] == method + "-tuned" * (best > 0)
        folders += dict.fromkeys([method, one["folder"]])
        for seed in (0, 1):
            chosen = Experiment.from_directory(tuned / one["folder"] / f"seed-{seed}")
            assert one["chosen"]["local.lr"] == chosen.local.optimiser.lr
            assert chosen.run.seed == seed
    assert any(one["moved"] for one in tuning["methods"].values())
    assert places(tuned) == [f"{folder}/seed-{seed}" for folder in folders for seed in (0, 1)]  # and none of the tries


@pytest.mark.slow
def test_tables_say_what_tuning_moved(
    tuned: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, said, _ = call(capsys, *TUNED, "--data", data, "--out", str(tuned), "--resume")
    assert status == 0
    assert "What tuning moved" in said
    assert "Each method had 3 tries of a grid, the first with the settings given, all with one seed" in said
    tuning = tuning_of(tuned)["methods"]
    for method in ("fedavg", "fedprox"):
        one, means = tuning[method], []
        for folder in (method, one["folder"]):
            ends = [History.read(tuned / folder / f"seed-{seed}").metrics[-1]["global_accuracy"] for seed in (0, 1)]
            means.append(100 * float(np.mean(ends)))
        row = next(line for line in said[said.index("What tuning moved") :].splitlines() if line.startswith(method))
        moved = means[1] - means[0]
        assert f"{100 * one['score']:.1f}" in row
        assert re.findall(r"(\S+) ± ", row)[:2] == [f"{mean:.1f}" for mean in means]
        assert f"{'+' * (moved > 0)}{moved:.1f}" in row
    assert main(["report", str(tuned), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "What tuning moved" in page
    assert "trial-00" not in page
    table = list(csv.DictReader((tmp_path / "tables/tuning.csv").read_text().splitlines()))
    assert [row["method"] for row in table] == ["fedavg", "fedprox"]
    assert [float(row["score"]) for row in table] == [tuning[m]["score"] for m in ("fedavg", "fedprox")]


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_to_the_same_end(tuned: Path, data: str, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    shutil.copytree(tuned, out)
    for folder in [path for path in out.iterdir() if path.is_dir() and path.name != "tuning"]:
        shutil.rmtree(folder)
    shutil.rmtree(out / "tuning" / "fedprox")
    assert main([*TUNED, "--data", data, "--out", str(out), "--resume"]) == 0
    assert (out / "comparison.json").read_bytes() == (tuned / "comparison.json").read_bytes()
    assert places(out) == places(tuned)
    for run in places(out):
        assert (out / run / "metrics.jsonl").read_bytes() == (tuned / run / "metrics.jsonl").read_bytes()


@pytest.mark.some(1)
@pytest.mark.parametrize("seeds", ["0", "0,1"])
def test_one_method_is_tuned_as_several_are(seeds: str, data: str, tmp_path: Path) -> None:
    command = ["compare", "fedavg", *METHODS[3:], "--tuned", "2", "--seed", seeds]
    assert main([*command, "--data", data, "--out", str(tmp_path / "runs")]) == 0
    one = tuning_of(tmp_path / "runs")["methods"]["fedavg"]
    ends = [f"/seed-{seed}" for seed in seeds.split(",")] if "," in seeds else [""]
    assert places(tmp_path / "runs") == [f + end for f in dict.fromkeys(["fedavg", one["folder"]]) for end in ends]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tuned", "3"], "--tuned keeps its tries in a directory; name it with --out DIR"),
        (["--tuned", "1", "--out", "OUT"], "at least 2 tries, the first with the settings given, got 1: write 8"),
        (["--tuned", "--out", "OUT", "--val-fraction", "0"], "hold some out with --val-fraction 0.2"),
        (["--tuned", "--out", "OUT", "--leave-one-site-out"], "leave one out"),
        (["--tuned", "--out", "OUT", "--engine", "gloo"], "takes an engine of this machine, got gloo"),
    ],
)
def test_mistakes(
    flags: list[str], message: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tmp_path / "runs") if flag == "OUT" else flag for flag in flags]
    assert message in error(capsys, *METHODS, "--data", data, *given)
    assert not (tmp_path / "runs").exists()


def test_a_method_that_is_best_as_given_has_no_other_folder_and_what_tuning_said_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = {"fedavg": False, "fedprox": True}
    found = {name: Tuned(name, {}, {"lr": 1}, 0.5, 0.5, Experiment(algorithm=name), moved[name]) for name in moved}
    monkeypatch.setattr(Tuned, "of", lambda sweep, trials: found[sweep.name])
    sweeps: Any = {
        name: SimpleNamespace(name=name, count=3, by="val_accuracy", run=lambda *args, **more: []) for name in found
    }
    written: list[tuple[list[str], Any]] = []
    monkeypatch.setattr(cli_tune, "write_order", lambda out, names, facts: written.append((names, {**facts})))
    monkeypatch.setattr(cli_tune, "tuning_of", lambda out: {"of": "before"})
    args = argparse.Namespace(out=str(tmp_path), tuned=3, tune_with="grid", resume=False)
    out, facts = cli_tune.tune(sweeps, args, Terminal(), lambda *args, **more: None)  # type: ignore[arg-type,return-value]
    assert list(out) == ["fedprox-tuned"]
    assert [facts["methods"][name]["folder"] for name in found] == ["fedavg", "fedprox-tuned"]
    assert written[0] == (["fedavg", "fedprox"], {"of": "before"})
    assert written[1][0] == ["fedavg", "fedprox", "fedprox-tuned"]


def test_tries_are_made_with_the_first_seed_on_validation_examples(tmp_path: Path) -> None:
    given = Experiment(algorithm="fedavg").changed("data.val_fraction", 0.2)
    args = argparse.Namespace(out=str(tmp_path), leave_one_site_out=False, seeds="4,1", tuned=3, tune_with="grid")
    assert cli_tune.planned(args, [given])["fedavg"].base.run.seed == 4
    with pytest.raises(SettingError, match=r"data.val_fraction is 0: hold some out with --val-fraction 0.2"):
        cli_tune.planned(args, [Experiment(algorithm="fedavg")])
