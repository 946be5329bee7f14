"""`fedloom sweep`, as a person uses it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import call
from fedloom.cli import main as cli
from fedloom.cli.sweep import _show, _space
from fedloom.coordinator import History, Job
from fedloom.display.terminal import Terminal

QUICK = "--model logistic --clients 6 --cohort 3 --rounds 2 --epochs 1 --partition iid --threads 1"


pytestmark = pytest.mark.usefixtures("_eighty_columns")


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Sweeps over grey images of three classes, into the folder `s`: (exit status, stdout, stderr)."""
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    x = (100 * np.eye(3)[y][:, :, None] + rng.integers(0, 99, (120, 3, 3))).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])

    def swept(text: str, *more: str) -> tuple[int, str, str]:
        name, *rest = text.split()
        own = ["--data", str(tmp_path / "own.npz"), "--out", str(tmp_path / "s")]
        return call(capsys, "sweep", name, *QUICK.split(), *own, *rest, *more)

    return swept


def refused(found: tuple[int, str, str]) -> str:
    status, _, err = found
    assert status == 2
    return err.removeprefix("error: ").strip()


def rows(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "s/sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_sweep_ends_in_a_table_and_settings_that_run_takes(
    sweep: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = "fedntd --val-fraction 0.25 --seed 0,1 --over local.lr=1e-5,0.1 --over beta=0.5,1"
    status, out, err = sweep(argv)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "sweep: 4 trials of 2 runs, chosen by val_accuracy"
    said = "data: own, 54 training and 30 test examples of 1 x 3 x 3, 3 classes; clients hold out 36 more"
    assert lines[1].startswith(said)
    assert sum(line.startswith("data:") for line in lines) == 1
    table = [line.split() for line in lines if line.startswith("trial-") and ":" not in line]
    written = {row["trial"]: row for row in rows(tmp_path)}
    scores = [float(row[3]) for row in table]
    assert scores == sorted(scores, reverse=True)
    for name, lr, beta, score, std, test, personal in table:
        row = written[name]
        assert (float(row["local.lr"]), float(row["fedntd.beta"])) == (float(lr), float(beta))
        shown = [f"{float(row[c]):.4f}" for c in ("score", "score_std", "global_accuracy", "personal_accuracy")]
        assert shown == [score, std, test, personal]
    name, lr, beta, *_ = table[0]
    assert f"best: {name}, local.lr={lr}, fedntd.beta={beta}" in lines
    accuracy = float(written[name]["global_accuracy"])
    assert any(
        line.startswith(f"its test measures in the same rounds: global accuracy {accuracy:.4f}") for line in lines
    )
    best = str(tmp_path / "s/best.json")
    assert lines[-1] == f"once more: fedloom run --settings {best}"
    assert cli.main(["run", "--settings", best, "--out", str(tmp_path / "again")]) == 0
    first = tmp_path / "s" / name / "seed-0"
    assert (tmp_path / "again/metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    assert cli.main(["report", str(tmp_path / "s")]) == 0
    assert cli.main(["replay", str(first), "1"]) == 0
    assert cli.main(["export", str(first), str(tmp_path / "best.safetensors")]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_an_interrupted_sweep_shows_what_it_has_and_goes_on(
    sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Job.run

    def second_trial_interrupted(job: Job, directory: Path, **more: Any) -> History:
        if "trial-001" in str(directory):
            raise KeyboardInterrupt
        return run(job, directory, **more)

    argv = "fedavg --val-fraction 0.25 --over local.lr=log:0.001:1 --search 3"
    with monkeypatch.context() as patch:
        patch.setattr(Job, "run", second_trial_interrupted)
        status, out, err = sweep(argv)
    said = f"interrupted; what was written is kept in {tmp_path / 's'}: the same command with --resume continues\n"
    assert (status, err) == (130, said)
    assert out.splitlines()[-1] == "1 of 3 trials are done; continue with the same command and --resume"
    assert [row["status"] for row in rows(tmp_path)] == ["done"]
    assert "already holds a sweep; continue it (--resume)" in refused(sweep(argv))
    assert "holds another sweep: space.local.lr was" in refused(
        sweep("fedavg --val-fraction 0.25 --over local.lr=log:0.01:1 --search 3 --resume")
    )
    assert "holds another sweep: seed was 0 and is 1" in refused(sweep(argv, "--resume", "--search-seed", "1"))
    status, out, _ = sweep(argv, "--resume")
    assert status == 0
    assert [row["status"] for row in rows(tmp_path)] == ["done"] * 3
    assert "trial-000/seed-0: stacked engine (about 3 clients in parallel), from round 2" in out
    assert out.splitlines()[-1].startswith("once more: ")


@pytest.mark.slow
def test_a_choice_by_test_data_is_warned_of(sweep: Any) -> None:
    status, _, err = sweep("fedavg --over local.lr=0.1 --by global_accuracy")
    assert status == 0
    assert err.startswith(
        "warning: global_accuracy is measured on test data: selecting by it reports too good a number"
    )


@pytest.mark.slow
def test_trials_that_fail_are_counted(sweep: Any, tmp_path: Path) -> None:
    status, out, _ = sweep("fedavg --val-fraction 0.25 --over local.lr=1e38,0.1")
    assert status == 0
    assert any(line.startswith("trial-000 failed: seed 0: ") for line in out.splitlines())
    assert "1 failed" in out
    said = refused(sweep("fedavg --val-fraction 0.25 --over local.lr=1e38,1e37", "--out", str(tmp_path / "t")))
    assert said == f"no trial has a score; {tmp_path / 't/sweep.csv'} says why"


@pytest.mark.slow
def test_values_that_hold_commas(sweep: Any, tmp_path: Path) -> None:
    assert sweep("fedavg --val-fraction 0.25 --over model=logistic,mlp|mlp")[0] == 0
    asked = json.loads((tmp_path / "s/sweep.json").read_text())
    assert asked["trials"] == {"trial-000": {"model": "logistic,mlp"}, "trial-001": {"model": "mlp"}}


def test_values_are_parted_by_bars_where_they_hold_commas_and_ranges_stay() -> None:
    over = ["model=mlp,lenet", "hidden=1,2|3", "local.lr=log:0.1:1"]
    assert _space(over) == {"model": ["mlp", "lenet"], "hidden": ["1,2", "3"], "local.lr": "log:0.1:1"}


@pytest.mark.parametrize(("ranked", "problems", "told"), [(20, (), None), (21, (), "1 more"), (2, ("data",), None)])
def test_the_table_says_what_it_leaves_out_and_whether_there_is_a_best(
    ranked: int, problems: tuple[str, ...], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def trial(i: int, score: float | None) -> Any:
        return SimpleNamespace(name=f"trial-{i:03}", score=score, std=0.0, settings={"lr": 0.1 * i}, measures={})

    trials = [trial(i, 1 / (i + 1)) for i in range(ranked)]
    plan: Any = SimpleNamespace(
        seeds=(0,), by="val_accuracy", problems=problems, space={"lr": []}, measures={"val_accuracy": 0},
        count=ranked + 3, ranked=lambda found: [t for t in found if t.score is not None],
    )  # fmt: skip
    lost = [trial(i, None) for i in range(ranked, ranked + 3)]
    _show(plan, [*trials, *lost], Path("s"), Terminal())
    out = " ".join(capsys.readouterr().out.split())
    assert "3 failed" in out
    assert ("more are in sweep.csv" in out) is bool(told)
    assert (told or "") in out
    assert ("best first" in out, "best: trial-000" in out) == (not problems, not problems)
    assert ("no best trial: trials differ in data" in out) is bool(problems)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("fedavg", "a sweep needs at least one setting to vary"),
        ("fedavg --over lr", "--over takes KEY=V1,V2,... or KEY=log:LOW:HIGH, got 'lr'"),
        ("fedavg --over local.lr=", "--over takes KEY=V1,V2,... or KEY=log:LOW:HIGH, got 'local.lr='"),
        ("fedavg --over local.lr=0.1,", "--over takes KEY=V1,V2,... or KEY=log:LOW:HIGH, got 'local.lr=0.1,'"),
        ("fedavg --over local.lr=1 --over local.lr=2", "--over takes each setting once, got local.lr again; give its"),
        ("fedavg --over local.lr=log:1", "local.lr = log:1 is searched: say how many"),
        ("fedavg --over local.lr=log:0.1:1", "local.lr = log:0.1:1 is searched: say how many trials (--search 20)"),
        ("fedavg --over local.lr=0.1 --out ./own.npz", "own.npz is a file; name a directory"),
        (
            "fedavg --over local.lr=0.1 --val-fraction 0",
            "val_accuracy is measured on validation examples, and --val-fraction is 0: hold some out with --val-",
        ),
        ("fedavg --over local.lr=0.1 --by accuracy", "a sweep chooses by one of val_accuracy, train_loss, "),
        ("fedavg --over local.lr=0.1 --seed 0,0", "each seed must be named once, got --seed 0,0"),
        ("fedavg --over local.lr=0.1 --track nowhere:x", "a tracker is one of tensorboard:DIR"),
        ("fedavgg --over local.lr=0.1", "unknown algorithm 'fedavgg' (did you mean 'fedavg'?)"),
    ],
)
def test_mistakes_are_explained(
    argv: str, message: str, sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *rest = argv.split()
    assert refused(sweep(f"{name} --val-fraction 0.25", *rest)).startswith(message)
    assert not (tmp_path / "s").exists()


def test_a_sweep_needs_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", "fedavg", "--over", "local.lr=0.1"]) == 2
    assert capsys.readouterr().err == "error: a sweep keeps its trials in a directory; name it with --out DIR\n"


def test_help_fits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["sweep", "--help"])
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "--engine {" not in line]  # which is one word
    assert max(map(len, lines)) <= 80
    flat = " ".join(out.split())
    for text in ("--over KEY=VALUES", "--search N", "log:LOW:HIGH", "(default: val_accuracy"):
        assert text in flat
