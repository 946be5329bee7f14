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
        np.full(4, 8.0),
    )  # fmt: skip
    assert one.best == [1, 2]
    assert one.summary == ["upload", "fitted", 4, 1, 70.0, 15.0, 8.0, 0.75]


def test_the_row_of_one_step_comes_out_of_an_upload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, out = run_of(tmp_path), tmp_path / "out"
    one = AnalysedRun.of(made).history.metrics[2]["clients"][1]
    argv = ["gradient-inversion", "--client", str(one), "--steps", "5", "--out", str(out)]
    status, said, _ = call(capsys, "analyse", str(made), *argv)
    assert status == 0
    assert "The server sees the upload; privacy = 'none'." in " ".join(said.split())
    found = rows(out / f"gradient-inversion-client-{one}.csv")
    exact = {row["row"] for row in found if row["seen"] == "upload" and row["attack"] == "first layer"}
    assert exact == {float(seen_in(AnalysedRun.of(made).past, 2).uploads[one].rows[0])}
    short = {(row["seen"], row["attack"]): row for row in rows(out / f"gradient-inversion-summary-client-{one}.csv")}
    assert set(short) == {(seen, by) for seen in ("upload", "mean of 3") for by in ("first layer", "fitted")}
    assert short["upload", "first layer"]["exact"] == 1
    assert short["upload", "first layer"]["best"] > 90 > short["upload", "first layer"]["stranger"]
    assert short["mean of 3", "first layer"]["exact"] == 0
    assert (out / f"gradient-inversion-client-{one}.pdf").read_bytes().startswith(b"%PDF")


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
