"""Which rounds and which model analyses look at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysed import analyse, rows
from fedloom import History
from fedloom.analyses import landscape_hessian
from fedloom.analyses.analysed_run import AnalysedRun, NobodyTrainedError
from fedloom.core.errors import SettingError
from fedloom.evaluate import classify, forgetting


@pytest.fixture
def lossy(trained: Any) -> Path:
    """Five rounds; in the first and the last, both clients are lost."""
    folder: Path = trained("fedavg", "--model", "mlp", "--cohort", "2", "--rounds", "5", "--lost", "0.6", "--seed", "2")
    records = History.read(folder).metrics[1:]
    assert [m["round"] for m in records if len(m["failed"]) == len(m["clients"])] == [1, 5]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local-accuracy", "weight-divergence", "gradient-diversity"])
@pytest.mark.parametrize("asked", [None, []])
def test_curves_leave_out_rounds_in_which_nobody_trained(name: str, asked: Any, lossy: Path, tmp_path: Path) -> None:
    finding, _ = analyse(AnalysedRun.of(lossy, asked), name, tmp_path)
    assert sorted({r["round"] for r in rows(tmp_path / f"{name}.csv")}) == [2, 3, 4]
    assert finding.remarks[-1] == "Left out: no client with the model mlp trained in rounds 1, 5."
    whole, _ = analyse(AnalysedRun.of(lossy, [2, 3]), name, tmp_path)
    assert not any("Left out" in line for line in whole.remarks)
    with pytest.raises(NobodyTrainedError, match="trained in round 5; name another round"):
        analyse(AnalysedRun.of(lossy, [3, 5]), name, tmp_path)


@pytest.mark.slow
def test_analyses_of_one_round_take_the_last_in_which_somebody_trained(lossy: Path, tmp_path: Path) -> None:
    for name in ("personalised", "proposition-1"):
        finding, _ = analyse(AnalysedRun.of(lossy), name, tmp_path)
        assert "round 4" in finding.summary.name
        with pytest.raises(NobodyTrainedError, match="no client with the model mlp trained in round 5"):
            analyse(AnalysedRun.of(lossy, [5]), name, tmp_path)
    assert AnalysedRun.of(lossy, []).replayed().number == 4


@pytest.mark.slow
def test_landscapes_need_no_client(lossy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landscape_hessian, "_SIDE", 5)
    for name in ("landscape-noise", "landscape-hessian"):
        finding, _ = analyse(AnalysedRun.of(lossy), name, tmp_path)
        assert "after round 5" in finding.summary.name


def test_a_run_in_which_nobody_ever_trained(trained: Any) -> None:
    lost = trained("fedavg", "--model", "mlp", "--rounds", "2", "--lost", "0.999", "--seed", "1")
    assert all(len(m["failed"]) == 3 for m in History.read(lost).metrics[1:])
    with pytest.raises(NobodyTrainedError, match="no client with the model mlp trained in any round"):
        AnalysedRun.of(lost).replayed()
    with pytest.raises(NobodyTrainedError, match="trained in the rounds 1, 2; name others"):
        list(AnalysedRun.of(lost).replayed_rounds())


@pytest.fixture
def two_models(trained: Any) -> Path:
    """A cohort of one: clients with an mlp in the first two rounds, with a logistic one in the others."""
    return Path(trained("fedavg", "--model", "mlp,logistic", "--cohort", "1", "--rounds", "4", "--seed", "1"))


@pytest.mark.slow
def test_rounds_without_a_client_of_the_model(two_models: Path, tmp_path: Path) -> None:
    finding, _ = analyse(AnalysedRun.of(two_models, model="mlp"), "local-accuracy", tmp_path)
    assert [r["round"] for r in rows(tmp_path / "local-accuracy-rounds.csv")] == [1, 2]
    assert finding.remarks[-1] == "Left out: no client with the model mlp trained in rounds 3, 4."
    assert AnalysedRun.of(two_models, model="mlp").replayed().number == 2
    assert AnalysedRun.of(two_models, model="logistic").replayed().number == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["class-accuracy", "consistency", "forgetting"])
def test_logged_means_over_models_are_said_to_be(name: str, two_models: Path, tmp_path: Path) -> None:
    finding, _ = analyse(AnalysedRun.of(two_models), name, tmp_path)
    assert finding.remarks[-1] == "Mean over the models mlp, logistic, weighted by their clients."
    with pytest.raises(SettingError, match=r"mean over the models mlp, logistic, and not of mlp alone: leave --model"):
        analyse(AnalysedRun.of(two_models, model="mlp"), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["class-accuracy", "consistency", "forgetting"])
def test_one_model_may_be_named(name: str, trained: Any, tmp_path: Path) -> None:
    folder = trained("fedntd", "--model", "lenet")
    finding, _ = analyse(AnalysedRun.of(folder, model="lenet"), name, tmp_path)
    assert not any("Mean over" in line for line in finding.remarks)
    with pytest.raises(SettingError, match="no model 'mlp'; it has lenet"):
        analyse(AnalysedRun.of(folder, model="mlp"), name, tmp_path)


@pytest.mark.slow
def test_one_round_ends_what_was_logged(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedntd", "--model", "lenet")
    past = History.read(folder).per_class[:2]
    for name in ("class-accuracy", "consistency", "forgetting"):
        finding, _ = analyse(AnalysedRun.of(folder, [2]), name, tmp_path)
        assert rows(tmp_path / f"{name}.csv")[-1]["round"] == 2
    assert finding.summary.name == "Forgetting after round 2"
    assert finding.summary.rows[0][0] == pytest.approx(forgetting(past).mean())
    assert [r["forgetting_earlier"] for r in rows(tmp_path / "forgetting-by-class.csv")] == pytest.approx(
        forgetting(past).tolist()
    )
    with pytest.raises(SettingError, match="compares rounds with the one before: name one after 1"):
        analyse(AnalysedRun.of(folder, [1]), "consistency", tmp_path)


def test_a_run_of_one_round_has_no_consistency(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedavg", "--model", "mlp", "--rounds", "1")
    for asked in (None, [1]):
        with pytest.raises(SettingError, match="and this run has one round only"):
            analyse(AnalysedRun.of(folder, asked), "consistency", tmp_path)


@pytest.mark.slow
def test_several_rounds_are_picked_of_what_was_logged(trained: Any, tmp_path: Path) -> None:
    folder = trained("fedntd", "--model", "lenet")
    for name, expected in (("class-accuracy", [1, 3]), ("consistency", [3]), ("forgetting", [1, 3])):
        analyse(AnalysedRun.of(folder), name, tmp_path / "all")
        analyse(AnalysedRun.of(folder, [3, 1]), name, tmp_path)
        picked = [row for row in rows(tmp_path / "all" / f"{name}.csv") if row["round"] in expected]
        for row, of_all in zip(rows(tmp_path / f"{name}.csv"), picked, strict=True):
            assert row == pytest.approx(of_all, nan_ok=True)  # measured against all rounds before it


class Thin(AnalysedRun):
    """A run in whose last rounds nobody trained."""

    last_round, model_name = 3, "mlp"  # type: ignore[assignment]

    def _computed(self, number: int) -> Any:
        return SimpleNamespace(number=number, clients=[4] if number == 1 else [])


def test_the_first_round_is_looked_at_too() -> None:
    assert Thin(Path()).replayed().number == 1
    with pytest.raises(SettingError, match="no client with the model mlp trained in round 2; name another round"):
        Thin(Path(), [2]).replayed()


def test_the_aggregated_model_is_that_after_the_round(lossy: Path) -> None:
    analysed = AnalysedRun.of(lossy, [3])
    number, model = analysed.aggregated()
    assert number == 3
    logged = History.read(lossy).metrics[3]["class_accuracy"]
    np.testing.assert_allclose(classify(analysed.network, model, analysed.task, analysed.test).per_class, logged)
