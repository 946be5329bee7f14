"""`fedloom export`, as a person uses it."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from commands import call, error
from fedloom.cli import main as cli
from fedloom.coordinator import History


@pytest.mark.slow
def test_a_file_that_is_there_is_replaced_where_the_message_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(tmp_path / "run"), tmp_path / "model.pt"
    argv = ["run", "fedavg", "--model", "logistic", "--rounds", "1", "--cohort", "2", "--epochs", "1", "--out", run]
    assert cli.main([*argv, "--threads", "1"]) == 0
    file.write_bytes(b"something else")
    assert cli.main(["export", run, str(file)]) == 2
    assert "model.pt exists; choose another name, or replace a file with overwrite=True (--overwrite)" in (
        capsys.readouterr().err
    )
    assert file.read_bytes() == b"something else"
    assert cli.main(["export", run, str(file), "--overwrite"]) == 0
    assert file.read_bytes() != b"something else"


BEST = [
    *("fedavg", "--model", "logistic", "--clients", "10", "--cohort", "2", "--epochs", "1", "--lr", "0.3"),
    *("--partition", "shards:1", "--rounds", "7", "--checkpoint-every", "7", "--threads", "1"),
]


@pytest.mark.slow
@pytest.mark.usefixtures("_eighty_columns")
def test_the_best_round_is_exported_replayed_and_shown_beside_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    keep = ["--val-fraction", "0.2", "--keep-best"]
    status, out, _ = call(capsys, "run", *BEST, *keep, "--out", str(run))
    assert status == 0
    history = History.read(run)
    best = history.validated_round
    assert best is not None
    assert 0 < best < 7, "choose other settings: the best must not be the last"
    record = history.metrics[best]
    assert (
        f"fedavg: best on validation data after round {best} of 7: validation accuracy {record['val_accuracy']:.4f}; "
        f"on test data global {record['global_accuracy']:.4f}, personal {record['personal_accuracy']:.4f}\n"
    ) in out
    rows = [line.split() for line in out.splitlines()]  # of one table, or of two where there is no room
    assert any((f"{best}", f"{record['val_accuracy']:.4f}") in itertools.pairwise(row) for row in rows)

    _, out, _ = call(capsys, "export", str(run), str(tmp_path / "best.pt"), "--at", "best")
    assert out.startswith(f"global model (logistic) after round {best}, the best on validation data: ")
    call(capsys, "export", str(run), str(tmp_path / "last.pt"))
    call(capsys, "run", *BEST, "--rounds", str(best), "--val-fraction", "0.2", "--out", str(tmp_path / "short"))
    call(capsys, "export", str(tmp_path / "short"), str(tmp_path / "then.pt"))
    weights = {name: torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("best", "last", "then")}
    assert all(torch.equal(weights["best"][name], of) for name, of in weights["then"].items())
    assert not all(torch.equal(weights["best"][name], of) for name, of in weights["last"].items())

    _, out, _ = call(capsys, "replay", str(run), "best")
    assert f"Local models of round {best}\n" in out
    assert out.endswith(f"and the same bits as the checkpoint of round {best}\n")
    assert call(capsys, "report", str(run))[0] == 0
    assert "The round with the best validation accuracy, and that" in (run / "report/report.html").read_text()
    with (run / "report/tables/readings.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["validated_round"]) == best
    assert float(row["global_accuracy_validated"]) == record["global_accuracy"]
    assert float(row["global_accuracy_last"]) == history.metrics[-1]["global_accuracy"]

    path = run / f"checkpoints/{best:08d}-server.safetensors"
    shutil.copy(run / "checkpoints/00000007-server.safetensors", path)
    status, out, _ = call(capsys, "verify", str(run))
    assert status == 1
    assert str(path) in out
    assert f"{path} " in error(capsys, "export", str(run), str(tmp_path / "no.pt"), "--at", "best")


@pytest.mark.slow
def test_a_best_round_that_is_not_there_is_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(tmp_path / "run"), str(tmp_path / "model.pt")
    said = error(capsys, "run", *BEST, "--out", run, "--keep-best")
    assert said.startswith(
        "--keep-best chooses a round by val_accuracy, on validation examples, which this federation "
    )
    said = error(capsys, "run", *BEST, "--val-fraction", "0.2", "--keep-best")
    assert said.startswith("--keep-best keeps a checkpoint, and a run without a directory has none: give directory")
    call(capsys, "run", *BEST, "--rounds", "2", "--out", run)
    for command in (["export", run, file, "--at", "best"], ["replay", run, "best"]):
        said = error(capsys, *command)
        assert said.startswith(f"the best round is that with the highest val_accuracy, which no round of {run} has, ")
    with pytest.raises(SystemExit):
        cli.main(["export", run, file, "--at", "bset"])
    assert "argument --at: is the number of a round, or best, got 'bset'" in capsys.readouterr().err
    call(capsys, "run", *BEST, "--val-fraction", "0.2", "--out", run + "2")
    best = History.read(run + "2").validated_round
    said = error(capsys, "export", run + "2", file, "--at", "best")
    assert said == (
        f"round {best} is the best of {run}2 on validation data, and has no checkpoint: start runs with --keep-best; "
        f"fedloom replay {run}2 best computes what its clients trained again"
    )
    assert json.loads((tmp_path / "run2/settings.json").read_text())["run"]["keep_best"] is False
