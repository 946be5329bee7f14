"""`fedloom reproduce` on a few made images, as a person uses it."""

from __future__ import annotations

import csv
import dataclasses
import json
import shlex
import shutil
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from commands import call, error, stop_after
from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator import Job, run_documents as reading
from fedloom.core.errors import SettingError
from fedloom.experiments.shown_runs import train
from fedloom_papers import find
from fedloom_papers.reproduction.results import read
from fedloom_papers.reproduction.running import Outcome, reproduce, with_changes
from published_runs import cell, made

FEDAVG = "fedntd-table1/mnist-s2/fedavg"
SMALL = ("--only", "mnist-s2", "--methods", "fedavg", "--rounds", "1", "--threads", "1")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """MNIST's files with 200 training images, two for each of 100 clients, and 20 test images."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for prefix, n in (("train", 200), ("t10k", 20)):
        y = (np.arange(n) % 10).astype(np.uint8)
        x = rng.integers(0, 60, (n, 28, 28)).astype(np.uint8)
        for i, c in enumerate(y):
            x[i, 2 * c : 2 * c + 3] += 150
        for name, array in ((f"{prefix}-images-idx3-ubyte", x), (f"{prefix}-labels-idx1-ubyte", y)):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / name).write_bytes(head + array.tobytes())
    return str(folder)


def verdicts(folder: Path, table: str = "fedntd-table1") -> dict[str, str]:
    with (folder / table / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seeds"] or row["failed_seeds"]]
    return {f"{row['column']}/{row['method']}": row["verdict"] for row in rows}


def logs(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("metrics.jsonl"))}


@pytest.mark.slow
def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "reproduce", "--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("fedntd-")][:2] == [
        "fedntd-table1", "fedntd-table7",
    ]  # fmt: skip
    status, out, _ = call(capsys, "reproduce", "fedntd-table14", "--list")
    assert status == 0
    assert "methods: fedavg, fedntd_mse-0.001, " in out
    assert "other readings: fedntd_mse-0.001-sum, " in out
    assert "fedntd_mse-0.3: the published run failed" in out


@pytest.mark.slow
def test_list_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(
        capsys, "reproduce", "fedntd-table1", "--list", "--only", "cifar10-s2", "--methods", "fedavg,fedprox"
    )
    assert status == 0
    assert out.splitlines()[:2] == ["columns: cifar10-s2", "methods: fedavg, fedprox"]
    assert "other readings" not in out
    status, out, _ = call(capsys, "reproduce", "fedntd-table1", "--list", "--only", "mnist")
    assert out.splitlines()[0] == "columns: mnist-s2, mnist-lda0.1"
    assert "other readings: fedprox-config, " in out
    status, out, _ = call(capsys, "reproduce", "fedntd-table1", "--list", "--methods", "fedprox-config")
    assert out.splitlines()[1] == "other readings: fedprox-config"


@pytest.mark.slow
def test_run_and_compare(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = (*SMALL, "--data", data, "--out", str(tmp_path))
    status, text, err = call(capsys, "reproduce", "fedntd-table1", *argv, "--methods", "fedavg,fedntd")
    assert (status, err) == (0, "")
    assert text.count("data: mnist, 200 training and 20 test examples of 1 x 28 x 28, 10 classes") == 1
    assert "clients: 100, shards s=2, 2 examples each to train on; 10 a round for 1 round" in text
    assert "fedntd_cnn (1,663,370 parameters)" in text
    assert verdicts(tmp_path) == {"mnist-s2/fedavg": "short run (1 of 200)", "mnist-s2/fedntd": "short run (1 of 200)"}
    assert "78.63 ± 0.42" in text
    assert "2 of 98 cells have runs, 2 short run." in " ".join(text.split())
    settings = json.loads((tmp_path / FEDAVG / "seed-0" / "settings.json").read_text())
    assert (settings["run"]["rounds"], settings["run"]["seed"], settings["run"]["threads"]) == (1, 0, 1)
    assert settings["data"]["source"] == f"mnist:{data}"

    status, text, _ = call(capsys, "reproduce", "fedntd-table7", *argv)  # the same cells
    assert (status, "1 of 1 runs existed already" in text) == (0, True)
    assert set(verdicts(tmp_path, "fedntd-table7")) == {"mnist-s2/fedavg", "mnist-s2/fedntd"}


@pytest.mark.slow
def test_skip_and_go_on(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, log = tmp_path / "out", f"{FEDAVG}/seed-0/metrics.jsonl"
    argv = ("fedntd-table1", *SMALL, "--set", "model=logistic", "--data", data, "--rounds", "3")
    assert call(capsys, "reproduce", *argv, "--out", str(out))[0] == 0
    before, stamp = logs(out), (out / log).stat().st_mtime_ns
    status, text, _ = call(capsys, "reproduce", *argv, "--out", str(out))
    assert (status, "1 of 1 runs existed already" in text) == (0, True)
    assert (out / log).stat().st_mtime_ns == stamp

    # A second seed and more rounds: what is there goes on, with the rates of the long schedule.
    argv = (*argv, "--rounds", "7", "--seeds", "2")
    assert call(capsys, "reproduce", *argv, "--out", str(out))[0] == 0
    assert sorted(logs(out)) == [f"{FEDAVG}/seed-{s}/metrics.jsonl" for s in (0, 1)]
    assert logs(out)[log].startswith(before[log])
    assert logs(out)[log].count(b"\n") == 8
    assert call(capsys, "reproduce", *argv, "--out", str(tmp_path / "once"))[0] == 0
    assert logs(tmp_path / "once") == logs(out)
    clients = [json.loads(lines.splitlines()[1])["clients"] for lines in logs(out).values()]
    assert clients[0] == clients[1] == np.random.RandomState(0).choice(100, 10, replace=False).tolist()
    assert verdicts(out) == {"mnist-s2/fedavg": "other settings: model"}


@pytest.mark.slow
def test_a_run_that_diverges_costs_no_other(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fedntd-table1", "--only", "mnist-s2", "--methods", "fedavg,fedprox", "--rounds", "2", "--threads", "1"]
    argv += ["--data", data, "--out", str(tmp_path), "--set", "fedprox.mu=1e30"]
    status, text, _ = call(capsys, "reproduce", *argv)
    assert status == 1  # one of two
    place = tmp_path / "fedntd-table1/mnist-s2/fedprox/seed-0"
    why = json.loads((place / "failed.json").read_text())["why"]
    assert f"mnist-s2/fedprox/seed-0 failed: {why}" in text
    assert verdicts(tmp_path) == {
        "mnist-s2/fedavg": "short run (2 of 200)",
        "mnist-s2/fedprox": "other settings: fedprox.mu",
    }
    assert f"mnist-s2 fedprox, seed 0: {why}" in (tmp_path / "fedntd-table1/results.md").read_text()
    status, text, _ = call(capsys, "reproduce", *argv)
    assert status == 1
    assert f"delete {place / 'failed.json'} to try again" in text
    status, text, _ = call(capsys, "reproduce", *argv, "--out", str(tmp_path / "new"), "--known", str(tmp_path))
    assert (status, f"(before, in {place})" in text) == (1, True)
    assert logs(tmp_path / "new") == {}
    # With settings that have not failed it is another run.
    assert call(capsys, "reproduce", *argv[:-2], "--out", str(tmp_path / "new"), "--known", str(tmp_path))[0] == 0
    assert verdicts(tmp_path / "new")["mnist-s2/fedprox"] == "short run (2 of 200)"


@pytest.mark.slow
def test_a_run_that_fails_as_the_published_one_did_is_as_asked(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [dataclasses.replace(r, failed=True) for r in find("fedntd-table1", ["mnist-s2"], ["fedprox"])]
    monkeypatch.setattr("fedloom_papers.commands.reproduce_table.find", lambda *_: failing)
    argv = ("fedntd-table1", *SMALL, "--data", data, "--out", str(tmp_path), "--set", "fedprox.mu=1e30")
    status, text, _ = call(capsys, "reproduce", *argv)
    assert (status, "mnist-s2/fedprox/seed-0 failed: " in text) == (0, True)


@pytest.mark.slow
def test_what_cannot_be_run_is_said_and_costs_no_other(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedloom_papers.reproduction.recipe.ALGORITHMS", {k: v for k, v in ALGORITHMS.items() if k != "fedprox"}
    )
    argv = ["fedntd-table1", "--only", "mnist-s2,cifar100-s10", "--methods", "fedprox,fedavg", "--rounds", "1"]
    status, text, _ = call(capsys, "reproduce", *argv, "--threads", "1", "--data", data, "--out", str(tmp_path))
    assert status == 1  # not all that was asked for
    assert "mnist-s2/fedprox/seed-0 skipped: there is no algorithm 'fedprox' in this version" in text
    assert "cifar100-s10 left out: data cannot be made: " in text
    assert verdicts(tmp_path) == {"mnist-s2/fedavg": "short run (1 of 200)"}
    status, text, _ = call(
        capsys, "reproduce", "fedntd-table1", "--only", "cifar10-s2", "--data", data, "--out", str(tmp_path / "none")
    )
    assert status == 2  # nothing could be run
    assert verdicts(tmp_path / "none") == {}


@pytest.mark.slow
def test_missing_data_are_said_once(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["fedntd-table1", *SMALL, "--data", data, "--out", str(tmp_path), "--seeds", "2"]
    assert call(capsys, "reproduce", *argv)[0] == 0
    status, text, _ = call(
        capsys, "reproduce", *argv, "--methods", "fedavg,fedprox", "--only", "cifar10-s2,cifar10-s3,cifar100-s10"
    )
    assert status == 2
    said = [line.partition(": ")[0] for line in text.splitlines() if "left out" in line]
    assert said == ["cifar10-s2 left out", "cifar10-s3 left out, as cifar10-s2 is", "cifar100-s10 left out"]
    assert "skipped" not in text
    status, text, _ = call(capsys, "reproduce", *argv, "--only", "mnist-s2,cifar10-s2,cifar10-s3")
    assert (status, text.count("left out"), "2 of 6 runs existed already" in text) == (1, 2, True)


def test_a_method_whose_public_data_are_missing_costs_no_other(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedDF alone distils on other data; it comes before the others in its column, and names itself."""
    shutil.copytree(data, tmp_path / "images/MNIST/raw")
    trained: list[str] = []
    monkeypatch.setattr("fedloom_papers.commands.reproduce_table.train", lambda name, *_, **__: trained.append(name))
    argv = ["dense-table1", "--only", "mnist-a0.1-m5-cnn", "--data", str(tmp_path / "images"), "--out", str(tmp_path)]
    argv += ["--set", "model=logistic", "--methods", "fedavg,feddf,fed_dafl"]
    _, text, _ = call(capsys, "reproduce", *argv)
    column = "mnist-a0.1-m5-cnn"
    assert {name.split("/")[1] for name in trained} >= {"fedavg", "fed_dafl"}
    assert f"{column}/feddf left out: data cannot be made: " in text
    assert f"{column} left out" not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")
def test_an_upload_that_diverges_fails_every_row_that_begins_with_it(data: str, tmp_path: Path) -> None:
    chosen = find("dense-table1", ["mnist-a0.1-m5-cnn"], ["ensemble", "dense"])
    changes = {"model": "logistic", "run.threads": "1", "local.epochs": "3", "dense.lambda1": "0", "local.lr": "1e38"}
    trained = list[str]()

    def train(name: str, job: Job, directory: Path) -> None:
        trained.append(name)
        job.run(directory, resume=True)

    first = reproduce(chosen, data, tmp_path, rounds=3, changes=changes, train=train)
    assert len(trained) == 1
    assert all(o.status.startswith("failed: ") for o in first)
    again = reproduce(chosen, data, tmp_path, rounds=3, changes=changes, train=train)
    failed = tmp_path / "dense-table1/mnist-a0.1-m5-cnn/uploads/seed-0/failed.json"
    assert all(o.status.endswith(f"(before; delete {failed} to try again)") for o in again)
    assert len(trained) == 1
    found = read(with_changes(chosen, changes), [tmp_path])
    assert [(list(r.failures), r.accuracy) for r in found] == [([0], None)] * 2
    failed.unlink()
    reproduce(chosen, data, tmp_path, rounds=3, changes=changes, train=train)
    assert len(trained) == 2


def test_an_export_is_of_what_was_chosen(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for row, rounds in (("fedavg", 4), ("fedntd", 2)):
        made(tmp_path / "out", cell("fedntd-table1", "mnist-s2", row), 0, 40.0, rounds=rounds)
    argv = ["fedntd-table1", "--only", "mnist-s2", "--report-only", "--rounds", "2", "--out", str(tmp_path / "out")]
    call(capsys, "reproduce", *argv, "--methods", "fedavg", "--export", str(tmp_path / "to"))
    assert verdicts(tmp_path / "to") == {"mnist-s2/fedavg": "short run (4 of 200)"}  # all that was copied
    made(tmp_path / "out", cell("fedntd-table1", "mnist-s2", "fedprox-config"), 0, 40.0, rounds=2)
    argv = ["fedntd-table1", "--report-only", "--rounds", "2", "--out", str(tmp_path / "out")]
    call(capsys, "reproduce", *argv, "--export", str(tmp_path / "all"))
    assert set(verdicts(tmp_path / "all")) == {f"mnist-s2/{row}" for row in ("fedavg", "fedntd", "fedprox-config")}


def test_an_export_renews_the_pages_of_tables_that_share_its_runs(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    for seed, page in ((0, "fedntd-table7"), (1, "fedntd-table1")):
        made(tmp_path / "out", cell("fedntd-table1", "mnist-s2", "fedavg"), seed, 40.0)
        call(capsys, "reproduce", page, "--report-only", "--out", str(tmp_path / "out"), "--export", str(kept))
    for page in ("fedntd-table1", "fedntd-table7"):
        assert "| 40.00 ± 0.00 |" in (kept / page / "results.md").read_text()
    assert not (kept / "fedntd-table8").exists()


@pytest.mark.slow
def test_exported_runs_count_as_done_and_do_not_go_on(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "out", tmp_path / "kept"
    argv = ("fedntd-table1", *SMALL, "--data", data)
    status, text, _ = call(capsys, "reproduce", *argv, "--out", str(out), "--export", str(kept))
    assert (status, f"\n1 run copied to {kept}\n" in text) == (0, True)
    unfinished = ("reproduce", argv[0], *SMALL, "--rounds", "2", "--report-only", "--out", str(out))
    status, text, _ = call(capsys, *unfinished, "--export", str(tmp_path / "on"))
    assert (status, f"0 runs copied to {tmp_path / 'on'}, and 1 unfinished, to go on with --known" in text) == (1, True)
    before = (kept / "fedntd-table1/runs.jsonl.gz").read_bytes()
    assert verdicts(kept) == {"mnist-s2/fedavg": "short run (1 of 200)"}
    assert {p.name for p in kept.rglob("*") if p.is_file()} == {"runs.jsonl.gz", "results.md", "results.csv"}

    status, text, _ = call(capsys, "reproduce", *argv, "--out", str(out), "--seeds", "2", "--export", str(kept))
    assert (status, f"\n1 run copied to {kept}\n" in text) == (0, True)
    assert (kept / "fedntd-table1/runs.jsonl.gz").read_bytes() != before
    before = (kept / "fedntd-table1/runs.jsonl.gz").read_bytes()
    status, text, _ = call(capsys, "reproduce", *argv, "--out", str(out), "--seeds", "2", "--export", str(kept))
    assert (status, f"\n0 runs copied to {kept}\n" in text) == (0, True)
    status, text, _ = call(
        capsys, "reproduce", *argv, "--out", str(out), "--seeds", "2", "--export", str(tmp_path / "other")
    )
    assert (status, f"\n2 runs copied to {tmp_path / 'other'}\n" in text) == (0, True)

    # Without data too: nothing must be run.
    status, text, _ = call(capsys, "reproduce", *argv[:-2], "--out", str(tmp_path / "new"), "--known", str(kept))
    assert (status, "1 of 1 runs existed already" in text) == (0, True)
    assert verdicts(tmp_path / "new") == verdicts(out)
    assert logs(tmp_path / "new") == {}

    status, text, _ = call(capsys, "reproduce", *argv, "--rounds", "2", "--out", str(kept))
    assert status == 2
    assert "holds 1 rounds without checkpoints, which cannot go on (exported, or they were deleted); run it in" in text
    assert (kept / "fedntd-table1/runs.jsonl.gz").read_bytes() == before
    assert logs(kept) == {}

    assert (
        call(capsys, "reproduce", *argv, "--rounds", "2", "--out", str(tmp_path / "new"), "--known", str(kept))[0] == 0
    )
    assert logs(tmp_path / "new")[f"{FEDAVG}/seed-0/metrics.jsonl"].count(b"\n") == 3


@pytest.mark.slow
def test_report_only_runs_nothing(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call(capsys, "reproduce", "fedntd-table1", *SMALL, "--rounds", "2", "--data", data, "--out", str(tmp_path))[0]
        == 0
    )
    before = logs(tmp_path)
    (tmp_path / "fedntd-table1/results.csv").unlink()
    argv = ("fedntd-table1", "--report-only", "--out", str(tmp_path))
    status, text, _ = call(capsys, "reproduce", *argv, "--rounds", "1")
    assert (status, "\n1 of 98 requested runs exist\n" in text) == (1, True)
    assert "seed-0" not in text
    assert verdicts(tmp_path) == {"mnist-s2/fedavg": "short run (1 of 200)"}
    argv = (*argv, *SMALL)
    for more, expected, words in (
        ((), 0, "1 of 1 requested runs"),
        (("--rounds", "2"), 0, "1 of 1 requested runs"),
        (("--rounds", "3"), 1, "0 of 1 requested runs"),
        (("--seeds", "5"), 1, "1 of 5 requested runs"),
        (("--seed", "1"), 1, "0 of 1 requested runs"),
        (("--set", "local.lr=0.5"), 1, "0 of 1 requested runs"),
    ):
        status, text, _ = call(capsys, "reproduce", *argv, *more)
        assert (status, f"\n{words} exist\n" in text) == (expected, True), more
    assert logs(tmp_path) == before
    (tmp_path / FEDAVG / "seed-0" / "failed.json").write_bytes(reading.sealed({"why": "the loss is NaN"}))
    status, text, _ = call(capsys, "reproduce", *argv, "--seeds", "2", "--rounds", "3")
    assert (status, "\n0 of 2 requested runs exist, 1 failed\n" in text) == (1, True)
    status, text, _ = call(capsys, "reproduce", *argv, "--seeds", "2")  # whose round it did not fail in
    assert (status, "\n1 of 2 requested runs exist\n" in text) == (1, True)


def test_data_are_loaded_once_and_a_seed_of_every_cell_comes_first(data: str, tmp_path: Path) -> None:
    order: list[str] = []
    federations: set[int] = set()

    def train(name: str, job: Job, directory: Path) -> None:
        order.append(name)
        federations.add(id(job.federation))

    told: list[Outcome] = []
    chosen = find("fedntd-table1", ["mnist-s2"], ["fedavg", "fedntd"])
    outcomes = reproduce(chosen, data, tmp_path, seeds=(3, 1), train=train, tell=told.append)
    assert [o.status for o in outcomes] == ["done"] * 4
    assert outcomes == told
    assert order == [f"mnist-s2/{row}/seed-{seed}" for seed in (3, 1) for row in ("fedavg", "fedntd")]
    assert len(federations) == 1


def test_a_library_call_trains_without_a_terminal(data: str, tmp_path: Path) -> None:
    chosen = find("fedntd-table1", ["mnist-s2"], ["fedavg"])
    (outcome,) = reproduce(chosen, data, tmp_path, rounds=1, changes={"model": "logistic", "run.threads": "1"})
    assert (outcome.status, outcome.good) == ("done", True)
    (outcome,) = reproduce(chosen, data, tmp_path, rounds=1, changes={"model": "logistic"})  # threads are free
    assert (outcome.status, outcome.good) == ("there", True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")  # of the upload: no BatchNorm
def test_rows_that_begin_alike_train_their_clients_once(data: str, tmp_path: Path) -> None:
    names, beginnings = list[str](), list[int]()

    def train(name: str, job: Job, directory: Path) -> None:
        names.append(name)
        done = list[int]()
        job.run(directory, resume=True, on_round=stop_after(2) if len(names) == 2 else lambda _: done.append(1))
        if name.endswith("its beginning"):
            beginnings.append(len(done))

    chosen = find("dense-table1", ["mnist-a0.1-m5-cnn"], ["dense", "fed_adi"])
    changes = {"model": "logistic", "run.threads": "1", "local.epochs": "1", "dense.lambda1": "0", "dense.T_G": "1"}
    changes |= {"dense.nz": "4", "dense.ngf": "4", "dense.synthesis.batch_size": "8"}
    changes |= {"fed_adi.steps": "1", "fed_adi.alpha_f": "0", "fed_adi.synthesis.batch_size": "8"}
    with pytest.raises(KeyboardInterrupt):
        reproduce(chosen, data, tmp_path / "shared", rounds=3, changes=changes, train=train)
    reproduce(chosen, data, tmp_path / "shared", rounds=3, changes=changes, train=train)
    first = "mnist-a0.1-m5-cnn/fed_adi/seed-0"
    other = "mnist-a0.1-m5-cnn/dense/seed-0"
    assert names == [f"{first}, its beginning", first, first, f"{other}, its beginning", other]
    assert beginnings == [1, 0]  # rounds that were computed: the second time it is there
    alone = [dataclasses.replace(r, begins=None) for r in chosen]
    reproduce(alone, data, tmp_path / "alone", rounds=3, changes=changes)
    for r in chosen:
        place = f"{r.place}/seed-0/metrics.jsonl"
        assert (tmp_path / "shared" / place).read_bytes() == (tmp_path / "alone" / place).read_bytes()
    uploads = tmp_path / "shared/dense-table1/mnist-a0.1-m5-cnn/uploads/seed-0"
    assert (uploads / "metrics.jsonl").read_bytes().count(b"\n") == 2
    others, other_place = (
        {"model": "logistic", "local.epochs": "2"},
        [dataclasses.replace(chosen[1], place="dense-table1/other")],
    )
    with pytest.raises(SettingError, match="uploads/seed-0 holds a run with other settings"):
        reproduce(other_place, data, tmp_path / "shared", rounds=3, changes=others)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")
def test_a_server_that_keeps_another_state_trains_its_own_clients(data: str, tmp_path: Path) -> None:
    """A state of another shape cannot go on from the shared upload: it would be refused once that is trained."""
    chosen = find("dense-table1", ["mnist-a0.1-m5-cnn"], ["dense"])
    small = {"model": "logistic", "run.threads": "1", "local.epochs": "1", "dense.lambda1": "0", "dense.T_G": "1"}
    small |= {"dense.nz": "4", "dense.ngf": "4", "dense.synthesis.batch_size": "8"}
    for i, other in enumerate(("schedule=paper", "distill.optimiser=adam", "distill.momentum=0", "student=logistic")):
        key, _, value = other.partition("=")
        out = tmp_path / str(i)
        (outcome,) = reproduce(chosen, data, out, rounds=2, changes={**small, f"dense.{key}": value})
        assert outcome.status == "done"
        assert not (out / "dense-table1/mnist-a0.1-m5-cnn/uploads").exists()


@pytest.mark.slow
def test_an_interrupted_call_goes_on_where_it_stood(data: str, tmp_path: Path) -> None:
    def second_interrupted(name: str, job: Job, directory: Path) -> None:
        stop = stop_after(7) if name.startswith("mnist-s2/fedntd") else None
        job.run(directory, resume=True, on_round=stop)

    chosen = find("fedntd-table1", ["mnist-s2"], ["fedavg", "fedntd"])
    changes = {"model": "logistic", "run.threads": "1"}
    told: list[Outcome] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce(chosen, data, tmp_path / "a", rounds=8, changes=changes, train=second_interrupted, tell=told.append)
    assert [o.status for o in told] == ["done"]
    assert logs(tmp_path / "a")["fedntd-table1/mnist-s2/fedntd/seed-0/metrics.jsonl"].count(b"\n") == 8
    outcomes = reproduce(chosen, data, tmp_path / "a", rounds=8, changes=changes)
    assert [o.status for o in outcomes] == ["there", "done"]
    reproduce(chosen, data, tmp_path / "b", rounds=8, changes=changes)
    assert logs(tmp_path / "a") == logs(tmp_path / "b")


@pytest.mark.slow
def test_the_same_command_goes_on_after_ctrl_c(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("fedntd-table1", *SMALL, "--rounds", "8", "--set", "model=logistic", "--data", data, "--out", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("fedloom_papers.commands.reproduce_table.train", partial(train, on_round=stop_after(7)))
        assert call(capsys, "reproduce", *argv)[::2] == (130, "interrupted; the same command continues\n")
    status, text, _ = call(capsys, "reproduce", *argv)
    assert (status, ", from round 5\n" in text) == (0, True)  # the last checkpoint
    assert logs(tmp_path)[f"{FEDAVG}/seed-0/metrics.jsonl"].count(b"\n") == 9


@pytest.mark.some(12)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "name a table; fedloom reproduce --list shows all"),
        (("fedntd-table3",), "unknown table 'fedntd-table3'"),
        (("fedntd-table1", "--only", "svhn"), "fedntd-table1 has no column 'svhn'"),
        (("fedntd-table1",), "results need a directory; name it with --out DIR"),
        (("fedntd-table1", "--out", "OUT"), "name the folder of the original files with --data FOLDER"),
        (("fedntd-table1", "--out", "OUT", "--known", "nowhere"), "--known nowhere is no folder"),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--known", "."),
            ". holds no results of fedntd-table1; name the folder that holds fedntd-table1/",
        ),
        (("fedntd-table1", "--out", "OUT", "--report-only"), "is no folder; with --report-only name one with results"),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--methods", ","),
            "--methods takes at least one name, got ','; leave it out for all",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--methods", ""),
            "--methods takes at least one name, got ''",
        ),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--only", ","), "--only takes at least one name, got ','"),
        (("fedntd-table1", "--list", "--only", ""), "--only takes at least one name, got ''"),
        (("--list", "--only", "cifar10"), "--only and --methods choose from a table: name it"),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--seeds", ""), "--seeds must be of type int, got ''"),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "run.bf16"), "--set takes NAME=VALUE"),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "run.seed=1"),
            "run.seed is not changed by --set but",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "run.mirror=file:///m"),
            "run.mirror is not changed by --set but by --mirror",
        ),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "run.sead=1"), "run has no setting 'sead'"),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "fedntd.beat=1"),
            "FedNTD|fedntd has no setting 'beat'",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "pfedsd.lam=1"),
            "no recipe that is run has a setting",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "local.lr=1", "--set", "local.lr=2"),
            "--set gives local.lr twice, '1' and '2': leave one out",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "run.threads=1", "--threads", "2"),
            "--set gives run.threads twice, '1' and '2': leave one out",
        ),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--set", "local.optimiser=adam"),  # FedAvg is not the last
            "steps of Adam amount to no number of plain SGD steps",
        ),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--seed", "1,1"), "each seed must be named once"),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--seeds", "0"), "--seeds must be >= 1, got 0"),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--rounds", "x"), "--rounds must be of type int, got 'x'"),
        (
            ("fedntd-table1", "--out", "OUT", "--data", "D", "--rounds", "0"),
            "published number, got 0: ask for at least",
        ),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--rounds", "202"), "published number, got 202: ask for no"),
        (("fedntd-table1", "--out", "OUT", "--report-only", "--rounds", "202"), "the published number, got 202"),
        (("fedntd-table1", "--out", "OUT", "--data", "D", "--seed", "0,-3"), "seed must be in 0..4294967295, got -3"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    argv: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status, _, err = call(capsys, "reproduce", *(str(out) if a == "OUT" else a for a in argv))
    assert status == 2
    assert any(part in " ".join(err.split()) for part in message.split("|"))
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--out", "--known", "--export", "--data"])
def test_empty_folders_are_refused(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As of a variable of the shell that is not set."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stopped:
        call(capsys, "reproduce", "fedntd-table1", *SMALL, "--data", "D", "--out", str(out), flag, "")
    assert stopped.value.code == 2
    assert f"argument {flag}: is empty; name a directory" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_other_settings_than_the_runs_that_are_there(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "smoke"
    argv = ("fedntd-table1", *SMALL, "--data", data)
    changes = ("--set", "model=logistic", "--set", "local.lr=0.5")
    assert call(capsys, "reproduce", *argv, *changes, "--out", str(out))[0] == 0
    before = logs(out)
    for rounds in ("1", "2"):  # as many as there are, and more
        status, text, err = call(capsys, "reproduce", *argv, "--rounds", rounds, "--out", str(out))
        assert (status, "were there already" in text) == (2, False)
        told = 'holds a run with other settings: model was "logistic" and is "fedntd_cnn"; local.lr was 0.5 and is 0.01'
        assert told in err
        assert "Ask for what it was made with (--set), or name another directory" in err
        status, _, err = call(
            capsys, "reproduce", *argv, *changes[:2], "--set", "local.lr=0.1", "--rounds", rounds, "--out", str(out)
        )
        assert (status, "other settings: local.lr was 0.5 and is 0.1." in err) == (2, True)
    assert logs(out) == before

    # Elsewhere it neither counts nor stands in the way, except where the same is asked for.
    real = ("--out", str(tmp_path / "real"), "--known", str(out))
    assert call(capsys, "reproduce", *argv, *real)[0] == 0
    assert verdicts(tmp_path / "real") == {"mnist-s2/fedavg": "short run (1 of 200)"}
    status, text, _ = call(capsys, "reproduce", *argv, *changes, "--out", str(tmp_path / "same"), "--known", str(out))
    assert (status, "1 of 1 runs existed already" in text) == (0, True)
    assert verdicts(tmp_path / "same") == {"mnist-s2/fedavg": "other settings: model, local.lr"}


def test_a_run_whose_checkpoints_were_deleted_stays_in_the_table_and_cannot_go_on(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("fedntd-table1", *SMALL, "--set", "model=logistic", "--data", data, "--out", str(tmp_path))
    assert call(capsys, "reproduce", *argv)[0] == 0
    shutil.rmtree(tmp_path / FEDAVG / "seed-0" / "checkpoints")
    assert call(capsys, "reproduce", *argv)[0] == 0
    status, text, _ = call(capsys, "reproduce", *argv, "--rounds", "2")
    assert (status, "without checkpoints, which cannot go on (exported, or they were deleted)" in text) == (2, True)


def _lines(script: str) -> list[list[str]]:
    """The words of each cell of a script, behind those of Python."""
    lines = [line for line in script.splitlines() if ") run " in line]
    return [shlex.split(line.partition(") run ")[2].removesuffix(" ;;")) for line in lines]


def test_cells_are_printed_as_a_script(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "o's")
    made(tmp_path / "o's", cell("fedntd-table1", "mnist-s2", "fedavg"), 0, 40.0, rounds=3)
    argv = ["fedntd-table1", "--only", "mnist-s2", "--methods", "fedavg,fedntd", "--rounds", "3", "--seeds", "2"]
    more = ["--data", data, "--out", out, "--set", "run.device=cpu", "--mirror", "file:///m"]
    status, script, _ = call(capsys, "reproduce", *argv, *more, "--script", "slurm:cpus=2")
    assert status == 0
    common = [
        "--runs-only",
        "--data",
        data,
        "--out",
        out,
        "--rounds",
        "3",
        "--mirror",
        "file:///m",
        "--set",
        "run.device=cpu",
    ]
    first = ["reproduce", "fedntd-table1", "--only", "mnist-s2", "--methods"]
    assert _lines(script) == [  # but not what is there
        ["fedntd-table1/mnist-s2/fedntd/seed-0", *first, "fedntd", "--seed", "0", *common],
        ["fedntd-table1/mnist-s2/fedavg/seed-1", *first, "fedavg", "--seed", "1", *common],
        ["fedntd-table1/mnist-s2/fedntd/seed-1", *first, "fedntd", "--seed", "1", *common],
    ]
    assert "without --script, reports on all" in script
    said = error(capsys, "reproduce", *argv, *more, "--set", "model=logistic", "--script", "slurm")
    assert "holds a run with other settings: model was" in said
    said = error(capsys, "reproduce", *argv, *more, "--runs-only", "--report-only")
    assert "--runs-only compares nothing and copies nothing" in said


@pytest.mark.slow
def test_cells_that_share_a_run_are_one_job(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--data", data, "--out", str(tmp_path), "--script", "slurm"]
    _, script, _ = call(
        capsys,
        "reproduce",
        "dense-table1",
        "--only",
        "mnist-a0.1-m5-cnn",
        "--methods",
        "fed_adi,dense,ensemble,feddf",
        *more,
    )
    assert [words[6] for words in _lines(script)] == ["feddf", "fed_adi,dense"]
    _, script, _ = call(capsys, "reproduce", "apfl-epochs", "--methods", "fedmeta", "--only", "mnist", *more)
    assert [words[4] for words in _lines(script)] == ["mnist-e1"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.SettingWarning")  # of the upload: no BatchNorm
def test_runs_that_begin_alike_go_on_from_their_mirrors(data: str, tmp_path: Path) -> None:
    chosen = find("dense-table1", ["mnist-a0.1-m5-cnn"], ["dense", "fed_adi"])
    changes = {"model": "logistic", "run.threads": "1", "local.epochs": "1", "dense.lambda1": "0", "dense.T_G": "1"}
    changes |= {"dense.nz": "4", "dense.ngf": "4", "dense.synthesis.batch_size": "8"}
    changes |= {"fed_adi.steps": "1", "fed_adi.alpha_f": "0", "fed_adi.synthesis.batch_size": "8"}
    mirror = f"file://{tmp_path}/mirror"
    once = reproduce(chosen, data, tmp_path / "once", rounds=2, changes=changes)
    assert [o.status for o in once] == ["done"] * 2

    def only_the_uploads(name: str, job: Job, directory: Path) -> None:
        if "its beginning" not in name:
            raise KeyboardInterrupt
        job.run(directory, resume=True)

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        reproduce(chosen, data, out, rounds=2, changes=changes, mirror=mirror, train=only_the_uploads)
    shutil.rmtree(out)  # the machine is lost
    trained = list[str]()

    def train(name: str, job: Job, directory: Path) -> None:
        trained.append(name)
        job.run(directory, resume=True)

    reproduce(chosen, data, out, rounds=2, changes=changes, mirror=mirror, train=train)
    assert logs(out) == logs(tmp_path / "once")
    shutil.rmtree(out)
    again = reproduce(chosen, data, out, rounds=2, changes=changes, mirror=mirror)
    assert [o.status for o in again] == ["done"] * 2
    assert logs(out) == {name: log for name, log in logs(tmp_path / "once").items() if "uploads" not in name}
    assert sorted(p.name for p in (tmp_path / "mirror/dense-table1/mnist-a0.1-m5-cnn").iterdir()) == [
        "dense", "fed_adi", "uploads",
    ]  # fmt: skip
