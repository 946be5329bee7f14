"""Guessing by the loss who was trained on: curves by hand, and models that have learnt their examples by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import roc_auc_score

from analysed import rows
from commands import call, error
from fedloom import Examples, Experiment
from fedloom.analyses import AnalysedRun, analyse, membership_inference
from fedloom.core.errors import SettingError
from runs_of_tables import LABEL, TARGET, linear, tables, trained


@pytest.mark.parametrize(
    ("members", "strangers", "expected"),
    [
        ([0.1, 0.2], [0.3, 0.4], (1.0, 1.0, 1.0, 1.0, 1.0)),
        ([0.3, 0.4], [0.1, 0.2], (0.0, 0.0, 0.5, 0.0, 0.0)),
        ([0.1, 0.3], [0.2, 0.4], (0.75, 0.5, 0.75, 0.5, 0.5)),  # of four pairs three are in order
        ([0.5, 0.5], [0.5, 0.5], (0.5, 0.0, 0.5, 0.0, 0.0)),
    ],
)
def test_curves_by_hand(members: list[float], strangers: list[float], expected: tuple[float, ...]) -> None:
    curve = membership_inference.roc(np.array(members), np.array(strangers))
    assert membership_inference.strength(*curve) == pytest.approx(expected)


def test_few_false_alarms_are_one_in_a_hundred() -> None:
    strangers = np.linspace(1, 2, 1000)
    members = np.concatenate([np.zeros(20), strangers[:80] - 1e-9])  # a fifth stands out
    few, fewest = membership_inference.strength(*membership_inference.roc(members, strangers))[3:]
    assert few == pytest.approx(0.31)  # 20, and 11 before the eleventh stranger
    assert fewest == pytest.approx(0.22)  # 20, and 2 before the second


def test_losses_of_few_values_are_cut_between_them() -> None:
    """Ten members and five of 1,000 strangers at each of ten values: two values are one stranger in a hundred."""
    members, strangers = (
        np.repeat(np.arange(10.0), 10),
        np.concatenate([np.repeat(np.arange(10.0), 5), np.full(950, 99)]),
    )
    assert membership_inference.strength(*membership_inference.roc(members, strangers))[3] == pytest.approx(0.2)


def test_a_thinned_curve_has_both_ends() -> None:
    thin = membership_inference.thinned(np.linspace(0, 1, 9999))
    assert (thin[0], thin[-1]) == (0.0, 1.0)
    assert len(thin) <= 200
    assert membership_inference.thinned(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


def learnt_by_heart(folder: Path, **more: Any) -> Path:
    """Two clients of few rows whose labels mean nothing: whoever predicts them has learnt them by heart."""
    draw = np.random.default_rng(0)
    lines = ["client,readmitted," + ",".join(f"x{i}" for i in range(150))]
    for k in range(400):
        values = ",".join(f"{v:.3f}" for v in draw.normal(size=150))
        lines.append(f"{'ab'[k % 2]},{('no', 'yes')[int(draw.integers(2))]},{values}")
    (folder / "all.csv").write_text("\n".join(lines))
    return trained(
        folder, f"{folder}/all.csv?label=readmitted&client=client", algorithm="ditto",
        data={"test_fraction": 0.5}, local={"epochs": 60, "optimiser": {"lr": 0.3}}, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnt_by_heart(tmp_path_factory.mktemp("members"))


@pytest.mark.some(1)
@pytest.mark.parametrize("client", [None, "b"])
def test_what_was_learnt_by_heart_is_found(
    run: Path, client: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--client", client] if client else []
    status, out, _ = call(capsys, "analyse", str(run), "membership-inference", *words, "--out", str(tmp_path))
    assert status == 0
    call(capsys, "export", str(run), f"{tmp_path}/w.pt", *words)
    federation = Experiment.from_directory(run).federation()
    assert federation.local_test is not None
    assert federation.test is not None
    clients = [1] if client else [0, 1]
    members = federation.train.select(np.concatenate([federation.partition.rows(k) for k in clients]))
    strangers = federation.train.select(federation.local_test.rows(1)) if client else federation.test

    def right(examples: Examples) -> npt.NDArray[np.float64]:
        logits = torch.from_numpy(linear(tmp_path / "w.pt", examples.x.numpy()))
        return np.asarray(logits.softmax(1).numpy()[np.arange(len(logits)), examples.y.numpy()])

    scores = np.concatenate([right(members), right(strangers)])
    area = roc_auc_score(np.repeat([1, 0], [len(members), len(strangers)]), scores)
    assert area > 0.6
    assert f"0.5 is chance, {area:.3f} what this attack reaches" in " ".join(out.split())
    assert f"{len(members)} members and {len(strangers)} strangers" in out
    found = rows(tmp_path / f"membership-inference{'-client-1' if client else ''}.csv")
    assert {row["round"] for row in found if row["model"] == "before training"} == {0}
    before = [(r["false_alarms"], r["members_found"]) for r in found if r["model"] == "before training"]
    assert np.trapezoid([h for _, h in before], [f for f, _ in before]) == pytest.approx(0.5, abs=0.15)


@pytest.mark.slow
def test_noise_of_private_clients_hides_it(run: Path, tmp_path: Path) -> None:
    """Of the global model; clients' own models are private to nobody."""
    pytest.importorskip("dp_accounting")
    hidden = learnt_by_heart(tmp_path, run={"privacy": "central:noise=10,delta=1e-2,clip=0.1"})
    tables = [analyse(AnalysedRun.of(each), "membership-inference", tmp_path)[0].summary for each in (run, hidden)]
    gains = [after[1] - before[1] for after, before, *_ in (table.rows for table in tables)]
    assert gains[0] > 0.15
    assert abs(gains[1]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("client", [None, "b"])
def test_shadows_find_more_of_what_was_learnt_by_heart(run: Path, client: str | None, tmp_path: Path) -> None:
    """And nothing in a model that was not trained on it."""
    result, _ = analyse(AnalysedRun.of(run, client=client, shadows=8), "membership-inference", tmp_path)
    found = {row[0]: row[1:] for row in result.summary.rows}
    assert list(found) == ["8 shadows", "after training", "before training"]
    assert found["8 shadows"][0] > found["after training"][0] + 0.02
    assert found["8 shadows"][3] > found["after training"][3]
    result, _ = analyse(AnalysedRun.of(run, rounds=[2], client=client, shadows=8), "membership-inference", tmp_path)
    assert {row[0]: row[1:] for row in result.summary.rows} == found  # the same shadows, which are not trained again


@pytest.mark.slow
def test_epsilon_stands_beside_what_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    words = {"privacy": "examples:noise=1,delta=1e-3,clip=1"}
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", data={"test_fraction": 0.4}, run=words)
    argv = ["membership-inference", "--shadows", "2", "--out", str(tmp_path)]
    status, out, _ = call(capsys, "analyse", str(made), *argv)
    assert status == 0
    epsilon = AnalysedRun.of(made).history.metrics[2]["epsilon"]
    assert f"Epsilon is {epsilon:.3g} at delta = 0.001: of one example" in " ".join(out.split())
    found = [row for row in rows(tmp_path / "membership-inference.csv") if row["model"] == "most, by epsilon"]
    for row in found:
        far = float(row["false_alarms"])
        assert row["members_found"] == pytest.approx(
            min(np.exp(epsilon) * far + 1e-3, 1 - (1 - far - 1e-3) * np.exp(-epsilon)), abs=1e-9
        )
    assert {row["round"] for row in rows(tmp_path / "membership-inference.csv") if row["model"] == "2 shadows"} == {2}


def test_shadows_are_of_this_analysis(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "analyse", str(run), "confusion", "--shadows", "2") == (
        "shadows are of membership-inference, got 2 of confusion: leave --shadows out"
    )


def test_privacy_of_clients_is_that_of_their_examples_in_the_global_model(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    words = {"privacy": "central:noise=1,delta=1e-2,clip=0.5"}
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", run=words)
    run = AnalysedRun.of(made)
    assert membership_inference.promised(run, 1) == (run.history.metrics[1]["epsilon"], 1e-2)
    assert membership_inference.promised(AnalysedRun.of(made, client=0), 1) is None


def test_what_has_no_loss_of_classes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{TARGET}", task="regression")
    assert "looks at classes" in error(capsys, "analyse", str(made), "membership-inference")


def test_a_task_without_a_loss_of_single_examples_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trained(tmp_path, f"{tables(tmp_path)[0]}?{LABEL}", data={"test_fraction": 0.4})
    monkeypatch.setattr(membership_inference, "_SCORE", "surprise")
    with pytest.raises(SettingError, match="guessed from the surprise of single examples, which Classification has"):
        analyse(AnalysedRun.of(made), "membership-inference", tmp_path)
