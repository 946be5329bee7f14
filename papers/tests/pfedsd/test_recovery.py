"""What the global model forgets of a client, and how fast local training brings it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysed import analyse, rows
from fedloom.analyses import AnalysedRun
from fedloom.core.errors import SettingError
from fedloom_papers.pfedsd import recovery

RUN = ("pfedsd", "--model", "lenet", "--cohort", "6", "--partition-seed", "7")


def test_steps_double_until_the_last() -> None:
    assert recovery.doubling(1) == [1]
    assert recovery.doubling(2) == [1, 2]
    assert recovery.doubling(8) == [1, 2, 4, 8]
    assert recovery.doubling(11) == [1, 2, 4, 8, 11]


def test_a_client_has_recovered_within_a_point_of_its_former_model() -> None:
    v = np.array([0.9, 0.9, 0.5, 0.9])
    curve = np.array([[0.2, 0.2, 0.6, 0.2], [0.89, 0.5, 0.1, 0.88], [0.1, 0.95, 0.5, 0.88]])
    assert recovery.recovered([0, 1, 4], v, curve).tolist() == pytest.approx([1, 4, 0, np.nan], nan_ok=True)


def test_claims_are_said_with_their_numbers() -> None:
    v, start = np.array([0.9, 0.8, 0.7]), np.array([0.5, 0.9, 0.4])
    nan = np.nan
    told = recovery.sentences(v, start, {"as in the run": np.array([1, 2, nan]), "without": np.array([4, nan, nan])})
    assert told == [
        "2 of 3 clients are worse with the global model than with their former one; the mean drop is 20.0 points.",
        "As in the run: 2 of 3 come back within a point of their former model, the median client after 2 steps.",
        "Without: 1 of 3 come back within a point of their former model.",
        "With the term the median client takes fewer steps.",
    ]
    one = np.array([1.0, nan, nan])
    assert recovery.sentences(v, start, {"a": one, "b": one})[-1].endswith("takes as many steps.")


@pytest.mark.slow
def test_recovery_of_a_run(trained: Callable[..., Path], tmp_path: Path) -> None:
    run = AnalysedRun.of(trained(*RUN))
    finding, _ = analyse(run, "recovery", tmp_path)
    found, m = rows(tmp_path / "recovery.csv"), run.replayed()
    wrote = run.history.metrics[m.number - 1]["personal_by_client"]
    last = run.history.metrics[m.number]["personal_by_client"]
    steps = max(row["step"] for row in found)
    assert {row["client"] for row in found} == set(m.clients)
    assert {row["variant"] for row in found} == {"as in the run", "without the term"}
    for row in found:
        assert row["former"] == pytest.approx(wrote[str(int(row["client"]))])
        if (row["step"], row["variant"]) == (steps, "as in the run"):  # the run's own training
            assert row["accuracy"] == pytest.approx(last[str(int(row["client"]))])
    starts = {(row["client"], row["accuracy"]) for row in found if row["step"] == 0}
    assert len(starts) == len(m.clients)  # the same in both variants
    assert len(rows(tmp_path / "recovery-steps.csv")) == len(m.clients)
    assert "former one; the mean drop is" in finding.remarks[0]


@pytest.mark.slow
def test_what_has_no_former_models_is_refused(trained: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="FedAvg evaluates clients by the global model"):
        analyse(AnalysedRun.of(trained("fedavg", "--model", "lenet")), "recovery", tmp_path)
    with pytest.raises(SettingError, match="no client that trained in round 1 has a personal model of an earlier"):
        analyse(AnalysedRun.of(trained(*RUN), rounds=[1]), "recovery", tmp_path)
