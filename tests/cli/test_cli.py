"""The command line, as a person uses it."""

from __future__ import annotations

import json
import warnings
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from commands import call, error, interrupted
from fedloom import ALGORITHMS, FedNTD, __version__
from fedloom.cli import main as cli
from fedloom.cli.parser import parser
from fedloom.coordinator import History, Job
from fedloom.core.errors import ClientError, NonFiniteError
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.shown_runs import describe_shape
from tiny import federation, mlp

QUICK = ["--clients", "6", "--cohort", "3", "--rounds", "2", "--epochs", "1", "--model", "logistic"]


pytestmark = pytest.mark.usefixtures("_eighty_columns")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file with grey images of three classes."""
    return save(tmp_path / "own.npz", images(90, (8, 8)), images(30, (8, 8)))


def images(n: int, shape: tuple[int, ...], kind: str = "uint8") -> tuple[Any, Any]:
    """Bright where the class says."""
    y = np.arange(n) % 3
    rng = np.random.default_rng(n)
    x = rng.integers(0, 60, (n, *shape))
    for i, c in enumerate(y):
        x[i, c * 2 : c * 2 + 2] += 150
    return (x.astype(np.uint8) if kind == "uint8" else (x / 255).astype(kind)), y


def save(path: Path, train: tuple[Any, Any], test: tuple[Any, Any], **changes: Any) -> str:
    arrays = {"x_train": train[0], "y_train": train[1], "x_test": test[0], "y_test": test[1], **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def test_what_people_have_named_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder may be called a[b]c: rich would leave out [b], and fail on [/b]."""
    pytest.importorskip("cryptography")
    (tmp_path / "a[b]c[").mkdir()
    folder = tmp_path / "a[b]c[" / "b]"
    status, out, _ = call(capsys, "certs", "authority", str(folder))
    assert status == 0
    assert f"{folder}/authority.crt goes to all devices" in out
    for path in (Path(cli.__file__ or "").parent).glob("*.py"):
        assert "rich.console import Console\n" not in path.read_text(encoding="utf-8"), f"{path} prints with markup"


# ---- what works


def test_algorithms_lists_all_with_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "algorithms")
    assert status == 0
    first = {line.split()[0] for line in out.splitlines() if line and not line.startswith((" ", "─"))}
    assert set(ALGORITHMS) <= first
    for setting in ("beta=1.0", "tau=1.0", "lam=1.0", "divisor=adaptive", "distill.lr=0.02", "rho=0.7"):
        assert setting in out
    assert "not-true" in out
    assert "--set NAME=VALUE" in out
    assert max(map(len, out.splitlines())) <= 80


def listed(out: str) -> set[str]:
    return {line.split()[0] for line in out.splitlines() if line and not line.startswith((" ", "─"))} & set(ALGORITHMS)


def test_algorithms_are_listed_by_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    personal, shared = (listed(call(capsys, "algorithms", flag)[1]) for flag in ("--personal", "--global"))
    assert personal | shared == set(ALGORITHMS)
    assert personal & shared == set()
    assert ({"pfedsd", "fedper"} <= personal, {"fedavg", "scaffold"} <= shared) == (True, True)
    assert listed(call(capsys, "algorithms", "--one-shot")[1]) == {"dense", "fed_dafl", "fed_adi"}
    both = listed(call(capsys, "algorithms", "--needs", "public", "--needs", "classes")[1])
    assert both == {n for n, kind in ALGORITHMS.items() if kind().requires.public and kind().requires.targets}
    nothing = listed(call(capsys, "algorithms", "--needs", "nothing")[1])
    assert "fedavg" in nothing
    assert not nothing & {"scaffold", "kt_pfl", "fedntd", "fedfomo"}
    assert "leave a flag out" in error(capsys, "algorithms", "--global", "--one-shot", "--needs", "validation")


def test_an_algorithm_is_shown_with_its_facts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "algorithms", "fedprox", "scaffold")
    assert status == 0
    text = " ".join(out.split())
    assert "mu in 0.001, 0.01, 0.1, 1" in text
    assert "2 / 2 / 1 times FedAvg's bytes down / bytes up / work on the clients" in text  # of SCAFFOLD
    assert "mu = 0 is FedAvg" in text
    assert "Li, Sahu" in text or "Li et al." in text
    assert "did you mean 'fedprox'" in error(capsys, "algorithms", "fedprx")


def test_run_says_what_it_runs_and_ends_in_a_table(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "run", "fedavg", *QUICK, "--data", own, "--partition", "iid")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "data: own, 72 training and 30 test examples of 1 x 8 x 8, 3 classes; clients hold out 18 more"
    assert lines[1] == "clients: 6, iid, 12 examples each to train on; 3 a round for 2 rounds"
    assert lines[2] == "model: logistic (195 parameters)"
    assert lines[3] == "fedavg: stacked engine (about 3 clients in parallel)"
    numbers, readings = (line.split() for line in lines if line.split()[:1] == ["fedavg"])
    assert numbers[-1] == "stacked"
    assert numbers[1] == readings[1]  # the accuracy after the last round
    assert "warning" not in out


@pytest.mark.slow
def test_run_on_the_embedded_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = [
        "run",
        "fedavg",
        "--clients",
        "50",
        "--cohort",
        "3",
        "--rounds",
        "2",
        "--epochs",
        "2",
        "--model",
        "logistic",
    ]
    status, out, _ = call(capsys, *argv, "--out", str(tmp_path / "run"))
    assert status == 0
    assert "data: fashion_mnist_small, 8,000 training and 2,000 test examples of 1 x 28 x 28, 10 classes; " in out
    assert f"settings, metrics and timing: {tmp_path / 'run'}" in out.replace("\n", "")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == 2
    assert last["global_accuracy"] > 0.2
    assert len(last["personal_by_client"]) == 50
    assert f"{last['global_accuracy']:.4f}" in out


@pytest.mark.slow
def test_compare_writes_each_run_and_hands_settings_to_their_owner(
    own: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out_dir = tmp_path / "runs"
    argv = ["compare", "fedavg", "fedntd", *QUICK, "--data", own, "--partition", "shards:2"]
    status, out, _ = call(
        capsys, *argv, "--set", "fedntd.beta=0.5", "--set", "fedavg.aggregation=uniform", "--out", str(out_dir)
    )
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[-5:-2]] == ["fedavg", "fedntd", "local_only"]
    assert "run 2 of 3, fedntd: stacked engine" in out
    chosen = {n: json.loads((out_dir / n / "manifest.json").read_text()) for n in ("fedavg", "fedntd")}
    assert chosen["fedntd"]["hyper_parameters"]["beta"] == 0.5
    assert chosen["fedntd"]["hyper_parameters"]["aggregation"] == "samples"
    assert chosen["fedavg"]["hyper_parameters"]["aggregation"] == "uniform"
    assert chosen["fedavg"]["federation"] == chosen["fedntd"]["federation"]
    clients = [
        [json.loads(line).get("clients") for line in (out_dir / n / "metrics.jsonl").read_text().splitlines()]
        for n in ("fedavg", "fedntd")
    ]
    assert clients[0] == clients[1]  # the same cohorts


@pytest.mark.slow
def test_every_option_reaches_the_run(own: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = (
        "--partition dirichlet:5 --clients 4 --test-fraction 0.25 --public 9 --model logistic,mlp --cohort 2 "
        "--rounds 3 --epochs 2 --batch-size 7 --lr 0.05 --momentum 0.5 --weight-decay 0.001 --decay 0.9 --seed 5 "
        "--engine stacked --compilation trace --chunk 3 --threads 2 --dtype float64 --eval-every 2 "
        "--on-nonfinite refuse --set num_public=4 --set distill.lr=0.3 --set distill.epochs=2"
    )
    status, _, _ = call(capsys, "run", "kt_pfl", "--data", own, *options.split(), "--out", str(tmp_path / "o"))
    assert status == 0
    written = json.loads((tmp_path / "o" / "manifest.json").read_text())
    assert written["hyper_parameters"]["num_public"] == 4
    distill, local = written["hyper_parameters"]["distill"], written["hyper_parameters"]["local"]
    assert (distill["epochs"], distill["optimiser"]["lr"]) == (2, 0.3)
    assert (local["epochs"], local["batch_size"], local["decay"]) == (2, 7, 0.9)
    sgd = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.001}
    assert {name: local["optimiser"][name] for name in sgd} == sgd
    run = {
        "rounds": 3, "cohort_size": 2, "seed": 5, "engine": "stacked", "compilation": "trace", "chunk": 3, "threads": 2,
        "dtype": "float64", "eval_every": 2, "on_nonfinite": "refuse",
    }  # fmt: skip
    assert {name: written["run"][name] for name in run} == run
    assert set(written["models"]) == {"logistic", "mlp"}
    assert written["federation"]["clients"] == 4
    assert written["federation"]["partition"] == "dirichlet alpha=5"


@pytest.mark.slow
def test_the_seed_repeats_a_run(own: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        argv = ["run", "pfedsd", *QUICK, "--data", own, "--seed", seed, "--out", str(tmp_path / name)]
        assert call(capsys, *argv)[0] == 0
    a, b, c = ((tmp_path / n / "metrics.jsonl").read_bytes() for n in "abc")
    assert a == b != c


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("shape", "kind", "seen", "model"),
    [
        ((8, 8), "uint8", "1 x 8 x 8", "logistic"),
        ((16, 16), "uint8", "1 x 16 x 16", "lenet"),
        ((16, 16, 3), "uint8", "3 x 16 x 16", "lenet"),
        ((3, 8, 8), "float32", "3 x 8 x 8", "small_bn"),
        ((6,), "float32", "6 features", "mlp"),
        ((6,), "float64", "6 features", "logistic"),
    ],
)
def test_own_arrays(
    shape: tuple[int, ...], kind: str, seen: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "mine.npz", images(60, shape, kind), images(30, shape, kind))
    argv = ["run", "fedavg", *QUICK, "--data", path, "--partition", "iid", "--model", model]
    status, out, _ = call(capsys, *argv)
    assert status == 0
    assert f"data: mine, 48 training and 30 test examples of {seen}, 3 classes; clients hold out 12 more" in out
    assert f"model: {model} (" in out


def test_own_labels_may_be_of_any_integer_type_and_be_missing_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = images(60, (6,), "float32")
    path = save(tmp_path / "mine.npz", (x, y.astype(np.uint8)), (x, np.resize([3, 4], 60).astype(np.int16)))
    status, out, _ = call(capsys, "run", "fedavg", *QUICK, "--data", path, "--partition", "iid")
    assert status == 0
    assert "5 classes" in out


def test_a_degenerate_setting_is_warned_of(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "run", "fedntd", *QUICK, "--data", own, "--set", "beta=0")
    assert status == 0
    assert "warning: FedNTD with beta = 0 is FedAvg" in err
    assert "warning" not in out


def test_warnings_are_as_before_afterwards(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = warnings.showwarning, list(warnings.filters)
    call(capsys, "run", "fedntd", *QUICK, "--data", own, "--set", "beta=0")
    assert (warnings.showwarning, list(warnings.filters)) == before


def test_a_server_that_kept_its_state_is_named(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["run", "feddf", *QUICK, "--data", own, "--public", "12", "--set", "distill.lr=1e38", "--set", "steps=3"]
    status, out, _ = call(capsys, *argv, "--on-nonfinite", "refuse")
    assert status == 0
    assert "feddf: the server's new state was not finite and was refused in round 1, 2\n" in out
    assert "the server" in error(capsys, *argv)


def test_refused_clients_are_counted_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = images(60, (6,), "float32")
    x[0] = 3e38
    path = save(tmp_path / "mine.npz", (x, y), images(30, (6,), "float32"))
    argv = ["run", "fedavg", *QUICK, "--data", path, "--partition", "iid", "--cohort", "6", "--test-fraction", "0"]
    status, out, _ = call(capsys, *argv, "--on-nonfinite", "refuse", "--out", str(tmp_path / "o"))
    assert status == 0
    lines = (tmp_path / "o" / "metrics.jsonl").read_text().splitlines()
    lost = sum(len(json.loads(line).get("failed", {})) for line in lines)
    assert lost > 0
    table = out.splitlines()
    header = next(line for line in table if "lost" in line.split())
    start = header.index("lost")
    assert next(line[start : start + 4].strip() for line in table if line.startswith("fedavg ")) == str(lost)
    assert "client" in error(capsys, *argv)


@pytest.mark.slow
@pytest.mark.parametrize("diverges", [True, False])
def test_a_run_that_fails_costs_none_that_is_finished_and_one_that_diverges_no_other(
    diverges: bool, own: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, kind = Job.run, NonFiniteError if diverges else ClientError

    def failing(job: Job, *args: Any, **more: Any) -> History:
        if isinstance(job.algorithm, FedNTD):
            raise kind("the loss is nan", client=3, round=1, batch=2)
        return run(job, *args, **more)

    monkeypatch.setattr(Job, "run", failing)
    status, out, err = call(capsys, "compare", "fedavg", "fedntd", "fedprox", *QUICK, "--data", own)
    rows = [line.split()[0] for line in out.splitlines() if line.split()]
    assert rows.count("fedavg") == 2
    if diverges:
        assert (status, err) == (1, "")
        assert rows.count("fedprox") == 2
        said = "fedntd diverged and is in no table: client 3, round 1, batch 2: the loss is nan"
        assert out.splitlines()[-1] == said
    else:
        assert (status, err) == (2, "error: client 3, round 1, batch 2: the loss is nan\n")
        assert "fedprox" not in rows
    assert error(capsys, "run", "fedntd", *QUICK, "--data", own) == "client 3, round 1, batch 2: the loss is nan"


@pytest.mark.slow
def test_runs_that_are_resumed_go_on_without_one_that_diverges(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(capsys, "compare", "fedntd", "fedprox", *QUICK, "--data", own, "--no-local-only", "--out", str(tmp_path))
    run = Job.run

    def failing(job: Job, *args: Any, **more: Any) -> History:
        if isinstance(job.algorithm, FedNTD):
            raise NonFiniteError("the loss is nan", client=3, round=3, batch=2)
        return run(job, *args, **more)

    monkeypatch.setattr(Job, "run", failing)
    status, out, err = call(capsys, "resume", str(tmp_path), "--rounds", "3")
    assert (status, err) == (1, "")
    assert "fedntd diverged and is in no table: client 3, round 3, batch 2: the loss is nan" in out
    assert [History.read(tmp_path / name).metrics[-1]["round"] for name in ("fedntd", "fedprox")] == [2, 3]
    assert error(capsys, "resume", str(tmp_path / "fedntd"), "--rounds", "3").endswith("the loss is nan")


@pytest.mark.slow
def test_a_run_from_python_among_those_that_are_resumed_costs_no_other(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "compare", "fedavg", "fedprox", *QUICK, "--data", own, "--no-local-only", "--out", str(tmp_path))
    mine = tmp_path / "mine"
    fl.run(fl.FedAvg(), federation(), mlp, fl.RunSettings(rounds=1, cohort_size=2), directory=mine, progress=False)
    (tmp_path / "fedavg" / "settings.json").write_text("{}")
    status, out, err = call(capsys, "resume", str(tmp_path), "--rounds", "3")
    assert (status, err) == (1, "")
    assert f"not resumed: the run in {mine} was started from Python" in out
    assert f"not resumed: {tmp_path / 'fedavg' / 'settings.json'}" in out
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("fedavg", "fedprox", "mine")]
    assert [log.count("\n") for log in logs] == [3, 4, 2]
    assert "was started from Python" in error(capsys, "resume", str(mine))


@pytest.mark.slow
def test_a_comparison_keeps_its_order_and_its_names(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "methods_of_mine.py").write_text("import fedloom as fl\n\nclass Mine(fl.FedAvg):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / "out" / f"summary.{end}" for end in ("md", "csv", "tex")]
    argv = ["fedprox", "methods_of_mine:Mine", "fedavg", *QUICK, "--data", own, "--seed", "0,1", "--no-local-only"]
    assert call(capsys, "compare", *argv, "--out", "out")[0] == 0
    made = [path.read_bytes() for path in files]
    assert b"minus fedprox" in made[0]
    assert call(capsys, "resume", "out")[0] == 1  # code is somebody's words
    status, out, _ = call(capsys, "resume", "out", "--allow-code")
    assert (status, [path.read_bytes() for path in files]) == (0, made)
    assert out.index("fedprox/seed-0: ") < out.index("Mine/seed-0: ") < out.index("fedavg/seed-0: ")
    assert call(capsys, "summary", "out", "--out", "again")[0] == 0
    assert [(tmp_path / "again" / path.name).read_bytes() for path in files] == made
    named = ["--name", "fedavg=FedAvg", "--name", "Mine=Ours", "--columns", "last"]
    status, out, _ = call(capsys, "summary", "out", *named, "--out", "named")
    assert (status, "FedAvg" in out, "less" in out) == (0, True, False)
    assert b"| Ours | " in (tmp_path / "named/summary.md").read_bytes()
    for wrong, message in (
        (["--name", "fedavg"], "--name takes OLD=NEW, as in fedavg=FedAvg, got 'fedavg'"),
        (["--name", "a=b", "--name", "a=c"], "--name takes each OLD once, got a=b a=c: drop the repeats"),
        (
            ["--columns", "lost"],
            "columns are seeds, last, tail, validated, best, mean, differences, noted, "
            "rounds_to, bytes_to, bytes_down_to, bytes_up_to, seconds_to, got 'lost'",
        ),
    ):
        assert message in error(capsys, "summary", "out", *wrong)


def test_one_method_has_one_name_with_one_seed_and_with_several(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    for seeds in ("0", "0,1"):  # two tables each
        _, out, _ = call(capsys, "run", "fedavg", *QUICK, "--data", own, "--seed", seeds)
        first = [line.split()[0] for line in out.splitlines() if line.split()]
        assert (first.count("fedavg"), first.count("FedAvg")) == (2, 0)


NOT_KEPT = "interrupted; nothing is kept, since no folder was named (--out DIR)\n"


def test_an_interrupt_is_no_traceback(
    own: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "run", interrupted)
    assert call(capsys, "run", "fedavg", *QUICK, "--data", own) == (130, "\n".join(OPENING) + "\n", NOT_KEPT)


OPENING = (
    "data: own, 72 training and 30 test examples of 1 x 8 x 8, 3 classes; clients hold out 18 more",
    "clients: 6, shards s=2, 12 examples each to train on; 3 a round for 2 rounds",
    "model: logistic (195 parameters)",
)


# ---- what is refused


@pytest.mark.some(7)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "run fedavgg",
            "unknown algorithm 'fedavgg' (did you mean 'fedavg'?); there are fedavg, ",
        ),
        ("run fedntd --set btea=1", "fedntd has no setting 'btea' (did you mean 'beta'?); it has "),
        ("run fedntd --set Local.lr=1", "fedntd has no setting 'Local.lr' (did you mean 'local.lr'?); it has "),
        (
            "run fedntd --set fedntt.beta=1",
            "fedntd has no setting 'fedntt.beta' (did you mean 'fedntd.beta'?); it has ",
        ),
        ("run fedntd --set modell=mlp", "fedntd has no setting 'modell' (did you mean 'model'?); it has "),
        ("run fedntd --set beta=much", "fedntd.beta must be of type float, got 'much'"),
        ("run fedntd --set beta=nan", "fedntd.beta must be finite, got 'nan'"),
        ("run fedntd --set beta=-1", "beta must be >= 0, got -1.0"),
        ("run kt_pfl --set num_public=2.5", "kt_pfl.num_public must be of type int, got '2.5'"),
        (
            "run kt_pfl --set distill=3",
            "kt_pfl.distill has parts: set distill.epochs, distill.batch_size, distill.optimiser",
        ),
        (
            "run kt_pfl --set distill.rate=3",
            "kt_pfl.distill has no setting 'rate' with the optimiser sgd; it has epochs, ",
        ),
        (
            "run scaffold --set scaffold.local.optimiser=sgd",
            "scaffold has no setting 'local.optimiser': settings of local are common to all methods, "
            "--set local.optimiser=sgd",
        ),
        ("run fedavg --set local=3", "fedavg has no setting 'local'; it has aggregation, buffers, shared"),
        ("run fedavg --set shared.x=3", "fedavg.shared has no parts; give it as shared=VALUE"),
        ("run fedavg --set aggregation=median", "fedavg.aggregation must be one of samples, uniform, got 'median'"),
        ("run fedavg --set aggregation", "--set takes NAME=VALUE, got 'aggregation'"),
        (
            "compare fedavg fedntd --set beta=0.5",
            "--set in a comparison needs ALGORITHM.NAME=VALUE, with one of fedavg, fedntd, local_only, got 'beta=0.5'",
        ),
        (
            "compare fedavg fedntd fedavg",
            "each algorithm must be named once, since its name is that of its results, got fedavg and fedavg: drop",
        ),
        ("run kt_pfl", "kt_pfl needs public examples, got none: take some out with --public 500"),
        ("run fedavg --model lenett", "unknown model 'lenett' (did you mean 'lenet'?); there are logistic, svm, mlp"),
        ("run fedavg --model mlp,mlp", "each model is named once, got 'mlp,mlp'; clients get them in turn"),
        (
            "run fedavg --partition shard:2",
            "unknown partition 'shard:2' (did you mean 'shards'?); there are iid, shards:S, dirichlet:ALPHA",
        ),
        ("run fedavg --partition shards:x", "this partition is written shards:S, got 'shards:x': S is a"),
        ("run fedavg --partition iid:3", "this partition is written iid, got 'iid:3'"),
        (
            "run fedavg --partition shards:20",
            "every class needs an example for each of its 40 shards, got 30 of class 0: use fewer clients, fewer "
            "shards per client or more data",
        ),
        (
            "run fedavg --partition dirichlet:0",
            "partition dirichlet:ALPHA: ALPHA must be finite and greater than 0, got 0.0: ",
        ),
        (
            "run fedavg --partition dirichlet:-1",
            "partition dirichlet:ALPHA: ALPHA must be finite and greater than 0, got -1.0: ",
        ),
        ("run fedavg --clients 100", "--clients must be in 1..90, the number of examples, got 100: "),
        ("run fedavg --cohort 7", "--cohort 7 is larger than the federation of 6 clients; set --cohort <= 6"),
        ("run fedavg --rounds 0", "--rounds must be >= 1, got 0"),
        ("run fedavg --lr 0", "lr must be > 0, got 0.0"),
        ("run fedavg --public 90", "public takes between 1 and 89 of the training examples, got 90"),
        ("run fedavg --test-fraction 1", "--test-fraction must be >= 0 and < 1, got 1.0"),
        ("run fedavg --device tpu", "--device must be 'cpu', 'cuda' or 'cuda:0', ..., got 'tpu'"),
        (
            "run fedavg --device mps",
            "--device must be 'cpu', 'cuda' or 'cuda:0', ..., got 'mps', on which nothing is com",
        ),
        (
            "run fedavg --device meta",
            "--device must be 'cpu', 'cuda' or 'cuda:0', ..., got 'meta', on which nothing is c",
        ),
        ("run fedavg --seed 0-2", "--seed takes seeds with commas between them, got '0-2': write --seed 0,1,2"),
        ("run fedavg --seed 3-1", "--seed takes seeds with commas between them, got '3-1': write --seed 0,1,2"),
        ("run fedavg --seed 4,4", "each seed must be named once, got --seed 4,4"),
        (
            "run fedavg --lr 0.1,0.01",
            "--lr must be of type float, got '0.1,0.01': write one number, such as 0.1; several values are tried "
            "by a sweep, fedloom sweep --over local.lr=0.1,0.01",
        ),
        (
            "run fedprox --set mu=0.1,1",
            "fedprox.mu must be of type float, got '0.1,1': write one number, such as 0.1; several values are tried "
            "by a sweep, fedloom sweep --over fedprox.mu=0.1,1",
        ),
        (
            "run fedavg --partition shards:1,2",
            "this partition is written shards:S, got 'shards:1,2': S is a whole number",
        ),
        (
            "compare fedavg,fedntd",
            "an algorithm is one name, got 'fedavg,fedntd': put spaces between several, fedloom compare fedavg fedntd",
        ),
        ("run fedper --set personal_layers=fc", "'fc' matches no tensor of "),
        (
            "run fedavg --partition dirichlet:0.1 --clients 12",
            "min_size must be in 0..7, the mean size of 12 clients with 90 examples, got 10: take fewer clients, or "
            "use plain_dirichlet:0.1, which has no cap and asks for 2 examples a client",
        ),
        ("run fedavg --threads 1000000000", "--threads must be >= 1 and <= 4096, got 1000000000"),
        ("run fedavg --model lenet", "LeNet needs images of at least 16 pixels, got 8: enlarge them"),
        ("run fedavg --lr 1e38", "client "),
    ],
)
def test_mistakes_are_explained(argv: str, message: str, own: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = argv.split()
    names = list(takewhile(lambda word: not word.startswith("--"), rest))
    said = error(capsys, command, *names, *QUICK, "--data", own, *rest[len(names) :])  # the last of an option wins
    assert message in said
    assert said.startswith(message.split("(")[0])


def test_a_partition_refuses_in_words_of_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten classes, and two shards for each client where nothing else is said."""
    said = error(capsys, "run", "fedavg", "--clients", "8", "--data", "fashion_mnist_small", "--model", "logistic")
    assert said == (
        "partition shards:S: S * --clients must be a multiple of the number of classes, 10, got 2 * 8 = 16: use "
        "--clients 5 or 10 or shards:5 [FL-DATA-012]"
    )


def test_a_setting_of_other_methods_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    said = error(capsys, "run", "fedavg", "--set", "mu=0.1")
    assert said.startswith(
        "fedavg has no setting 'mu'; it has aggregation, buffers, shared; one of this name is in fedprox, "
    )
    said = error(capsys, "run", "fedavg", "--set", "nothing=0.1")
    assert said.endswith("it has aggregation, buffers, shared [FL-METHOD-005]")


@pytest.mark.slow
def test_a_branch_goes_on_with_what_is_set(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(tmp_path / "first"), tmp_path / "second"
    call(capsys, "run", "fedavg", *QUICK, "--data", own, "--rounds", "2", "--out", first)
    change = ("--set", "algorithm=fedprox", "--set", "mu=0.5", "--set", "local.lr=0.02")
    status, text, _ = call(capsys, "branch", first, "--at", "1", "--rounds", "3", *change, "--out", str(second))
    assert (status, "fedprox: " in text, "from round 1" in text) == (0, True, True)
    settings = Experiment.from_directory(second)
    assert (settings.algorithm, settings.settings["fedprox"]["mu"]) == ("fedprox", 0.5)
    assert (settings.local.optimiser.lr, settings.run.rounds) == (0.02, 3)
    assert [m["round"] for m in History.read(second).metrics] == [0, 1, 2, 3]
    assert call(capsys, "resume", str(second), "--rounds", "4")[0] == 0
    again = error(capsys, "branch", first, *change, "--out", str(second))
    assert again.startswith(f"{second} already holds a run")
    assert "holds no run" in error(capsys, "branch", str(tmp_path / "none"), "--out", str(tmp_path / "third"))
    assert "run.seed was 0 and is 1" in error(
        capsys, "branch", first, "--set", "run.seed=1", "--out", str(tmp_path / "third")
    )


def test_a_gpu_that_is_not_there(own: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = error(capsys, "run", "fedavg", *QUICK, "--data", own, "--device", "cuda")
    assert said == "device = 'cuda', but this machine has no CUDA GPU; use device = 'cpu'"


def test_a_directory_with_a_run_is_refused_before_any_work(
    own: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    assert call(capsys, "run", "fedntd", *QUICK, "--data", own, "--out", str(out / "fedntd"))[0] == 0
    said = error(capsys, "compare", "fedavg", "fedntd", *QUICK, "--data", own, "--out", str(out))
    assert said.startswith(f"{out / 'fedntd'} already holds a run; continue it (resume; a whole comparison: the same")
    assert not (out / "fedavg").exists()
    assert "is a file; name a directory" in error(capsys, "run", "fedavg", *QUICK, "--data", own, "--out", own)


def test_a_data_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "[/red]none.npz")  # nothing in a name is markup
    assert error(capsys, "run", "fedavg", "--data", path) == (
        f"there is no file {path!r}; give the path of a .npz file with x_train, y_train, x_test, y_test [FL-DATA-029]"
    )
    assert error(capsys, "run", "fedavg", "--data", "cifar10") == (
        "data 'cifar10' needs the folder with its files: cifar10:FOLDER [FL-DATA-022]"
    )
    assert "unknown data 'cifar' (did you mean 'cifar10'?)" in error(capsys, "run", "fedavg", "--data", "cifar")


def test_a_data_file_with_pickles_is_not_opened(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    trap = np.array([Trap()] * 30, dtype=object)
    path = save(tmp_path / "trap.npz", (trap, np.zeros(30, int)), images(30, (8, 8)))
    said = error(capsys, "run", "fedavg", "--data", path)
    assert said.startswith(f"{path} must hold plain arrays x_train, y_train, x_test, y_test, written by numpy.savez: ")
    assert "allow_pickle=False" in said
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 half a zip"])
def test_a_damaged_data_file(content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    said = error(capsys, "run", "fedavg", "--data", str(tmp_path / "bad.npz"))
    assert "must hold plain arrays x_train, y_train, x_test, y_test, written by numpy.savez" in said


@pytest.mark.some(7)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "must hold x_train, y_train, x_test, y_test; y_test is missing"),
        (
            {"y_train": np.linspace(0, 2, 30)},
            "y_train must hold class labels (N,), whole numbers from 0, got 0.0689655: number",
        ),
        ({"y_train": np.array(["a"] * 30)}, "whole numbers from 0, got text such as 'a': save numpy.unique(names"),
        ({"x_train": np.ones((30, 8, 8), int)}, "must hold numbers, uint8 or floating point, got int64 of shape"),
        ({"x_train": np.ones((0, 8, 8)), "y_train": np.ones(0, int)}, "floating point, got float64 of shape (0, 8, 8)"),
        (
            {"y_train": np.zeros(29, int)},
            "odd.npz: x_train and y_train must have the same number of rows, got 30 and 29",
        ),
        ({"y_train": np.eye(30, dtype=int)}, "got an array of shape (30, 30): save y_train.argmax(1) of one-hot rows"),
        (
            {"y_train": np.arange(30) - 1},
            "y_train must hold class labels (N,), whole numbers from 0, got -1: number the",
        ),
        (
            {"x_train": np.full((30, 8, 8), np.nan), "x_test": np.ones((30, 8, 8))},
            "x must be finite, got 30 examples with NaN or infinity",
        ),
        (
            {"x_test": np.ones((30, 9, 9), np.uint8)},
            "rows of x_train and x_test must have one shape, got (8, 8) and (9, 9)",
        ),
    ],
)
def test_arrays_that_are_no_examples(
    changes: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "odd.npz", images(30, (8, 8)), images(30, (8, 8)), **changes)
    assert message in error(capsys, "run", "fedavg", *QUICK, "--data", path, "--partition", "iid")


# ---- help


@pytest.mark.parametrize("argv", [["--help"], ["run", "--help"], ["compare", "--help"], ["demo", "--help"]])
def test_help_fits_and_says_defaults(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    out = capsys.readouterr().out
    assert end.value.code == 0
    lines = [line for line in out.splitlines() if "--engine {" not in line]  # which is one word
    assert max(map(len, lines)) <= 80
    if argv[0] in ("run", "compare"):
        flat = " ".join(out.split())
        for text in ("(default: 30)", "(default: fashion_mnist_small)", "lenet, fedntd_cnn", "each (default: 0)"):
            assert text in flat
        for group in ("data and clients:", "training:", "engine:", "results:"):
            assert group in out
        assert "None" not in out
        assert "False" not in out


def test_examples_in_the_help_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    lines = out.split("examples:\n")[1].splitlines()
    assert len(lines) >= 4
    for line in lines:
        words = line.split()
        assert words[0] == "fedloom"
        assert parser().parse_args(words[1:]).command == words[1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"fedloom {__version__}\n"


@pytest.mark.parametrize(
    "argv", [["train"], ["compare"], ["run", "fedavg", "--engine", "ray"], ["run", "fedavg", "--out", ""]]
)
def test_usage_errors_have_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert "usage: fedloom" in capsys.readouterr().err


def test_shapes_are_told_in_words() -> None:
    ids, y = np.ones((4, 7), np.int32), np.array([0, 1, 0, 1])
    several = {"tokens": ids, "length": np.array([7, 7, 7, 7])}
    given: list[Any] = [ids, ids.astype(np.float32), np.ones((4, 1, 8, 8), np.float32), several]
    shapes = [describe_shape(fl.from_arrays(x, y)) for x in given]
    assert shapes == ["7 tokens", "7 features", "1 x 8 x 8", "tokens 7, length 1"]
