"""Rows that come out of a run's uploads, and those that its privacy keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysed import rows
from commands import call, error
from fedloom.analyses import AnalysedRun, gradient_inversion
from fedloom.core.errors import SettingError
from fedloom.privacy.seen_uploads import seen_in
from runs_of_tables import LABEL, tables, trained

ONE = {"steps": 1, "batch_size": 1, "optimiser": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}}


def run_of(folder: Path, **settings: Any) -> Path:
    """Three clients that take one step on one row each."""
    source = f"{tables(folder)[0]}?{LABEL}"
    return trained(folder, source, local=ONE, run={"cohort_size": 3, **settings})


def test_rows_and_decibels_by_hand() -> None:
    known = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    places, mse = gradient_inversion.nearest(torch.tensor([[0.9, 1.0], [0.0, 0.2]]), known)
    assert places.tolist() == [1, 0]
    assert mse == pytest.approx([0.005, 0.02])
    assert gradient_inversion.decibels(np.array([0.04, 0.0]), 2.0) == pytest.approx([20.0, 120.0])


def test_of_several_that_are_nearest_to_a_row_the_best_stands() -> None:
    one = gradient_inversion.Attempt(
        "upload", "fitted", torch.zeros(4, 1), np.array([7, 7, 3, 3]), np.array([10.0, 70.0, 20.0, 5.0]),
        np.array([8.0, 8.0, 8.0, 9.0]),
    )  # fmt: skip
    assert one.best == [1, 2]
    assert one.summary == ["upload", "fitted", 4, 1, 70.0, 9.0, 15.0, 8.0]


def test_the_row_of_one_step_comes_out_of_an_upload(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    one = AnalysedRun.of(made).history.metrics[2]["clients"][1]
    run = AnalysedRun.of(made, client=one, steps=2)
    result = gradient_inversion.measure(run)
    assert "The server sees the upload; privacy = 'none'." in result.remarks[1]
    by = {(row[0], row[1]): row[2:] for row in result.summary.rows}
    assert list(by) == [(seen, how) for seen in ("upload", "mean of 3") for how in ("first layer", "fitted")]
    found, exact, best, strangers, *_ = by["upload", "first layer"]
    assert (found, exact) == (2, 1)  # by each of two classes
    assert best > 90 > strangers
    assert by["mean of 3", "first layer"][1] == 0
    exact_rows = {row[3] for row in result.tables[0].rows if row[:2] == ["upload", "first layer"]}
    assert exact_rows == {seen_in(run.past, 2).uploads[one].rows[0]}


@pytest.mark.slow
def test_files_have_the_number_of_the_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run_of(tmp_path)
    one = AnalysedRun.of(made).history.metrics[2]["clients"][1]
    argv = ["gradient-inversion", "--client", str(one), "--steps", "5", "--out", str(tmp_path)]
    assert call(capsys, "analyse", str(made), *argv)[0] == 0
    assert {row["seen"] for row in rows(tmp_path / f"gradient-inversion-client-{one}.csv")} == {"upload", "mean of 3"}
    assert (tmp_path / f"gradient-inversion-client-{one}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["central", "examples"])
def test_privacy_keeps_rows(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    made = run_of(tmp_path, privacy=f"{kind}:noise=1,delta=1e-4,clip=0.1")
    result = gradient_inversion.measure(AnalysedRun.of(made, steps=5))
    best = {row[0]: (row[3], row[4]) for row in result.summary.rows if row[1] == "first layer"}
    seen, kept = {"central": ("upload", "private mean"), "examples": ("bare upload", "private upload")}[kind]
    assert best[seen] == (1, pytest.approx(110, abs=20))
    found = [value for name, value in best.items() if name.startswith(kept)]
    assert len(found) == 1
    assert found[0][0] == 0
    assert found[0][1] < 60
    assert f"privacy = '{kind}:noise=1,delta=1e-4,clip=0.1'" in result.remarks[1]


def test_noise_of_clients_is_in_what_the_server_sees(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    made = run_of(tmp_path, privacy="local:noise=1,delta=1e-4,clip=0.1")
    result = gradient_inversion.measure(AnalysedRun.of(made, steps=2))
    assert [row[0] for row in result.summary.rows] == ["private upload"] * 2 + ["private mean"] * 2
    assert not any(row[3] for row in result.summary.rows)
    assert "The server sees the private upload, with privacy = 'local:noise=1" in result.remarks[1]


def test_under_masks_the_mean_is_left(tmp_path: Path) -> None:
    result = gradient_inversion.measure(AnalysedRun.of(run_of(tmp_path, secure_aggregation="range=8"), steps=5))
    assert [row[0] for row in result.summary.rows] == ["hidden upload"] * 2 + ["mean of 3"] * 2
    assert "The server sees the mean; the upload stands here to show what masks hide" in result.remarks[1]


def test_what_cannot_be_sought_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(run_of(tmp_path, cohort_size=2))
    there = {*AnalysedRun.of(made).history.metrics[2]["clients"]}
    absent = min(set(range(5)) - there)
    assert error(capsys, "analyse", made, "gradient-inversion", "--client", str(absent)).startswith(
        f"client '{absent}' has uploaded nothing in round 2, got uploads of "
    )
    for argv, said in (
        (["gradient-inversion", "--steps", "0"], "steps are 1 or more, of gradient-inversion, got 0 of gradient-inver"),
        (
            ["confusion", "--steps", "9"],
            "steps are 1 or more, of gradient-inversion, got 9 of confusion: leave --steps",
        ),
    ):
        assert error(capsys, "analyse", made, *argv).startswith(said)


def test_a_part_of_a_model_is_not_enough(tmp_path: Path) -> None:
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", algorithm="fedper", model="mlp", local=ONE)
    with pytest.raises(SettingError, match="and FedPer sends a part without one: analyse a method that sends all"):
        gradient_inversion.measure(AnalysedRun.of(made, steps=5))


def test_tokens_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = AnalysedRun.of(run_of(tmp_path))
    monkeypatch.setattr(type(run.job.federation.train), "has_tokens", property(lambda _: True))
    with pytest.raises(SettingError, match="the rows of this run are token ids: analyse a run on images or tables"):
        gradient_inversion.measure(run)
