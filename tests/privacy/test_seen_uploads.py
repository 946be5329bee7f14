"""What is seen of a round: uploads and means, beside the models before and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.analyses import AnalysedRun
from fedloom.core.errors import SettingError
from fedloom.privacy.inversion import Movement
from fedloom.privacy.seen_uploads import seen_in
from runs_of_tables import LABEL, tables, trained


def run_of(folder: Path, algorithm: str = "fedavg", cohort: int = 3, **settings: Any) -> AnalysedRun:
    local = {"epochs": 2, "batch_size": 16, "optimiser": {"lr": 0.1}}
    source = f"{tables(folder)[0]}?{LABEL}"
    made = trained(folder, source, algorithm=algorithm, local=local, run={"cohort_size": cohort, **settings})
    return AnalysedRun.of(made)


def flat(movement: Movement) -> np.ndarray:
    return np.concatenate([t.double().numpy().ravel() for t in movement.moved.values()])


def moved(before: Any, after: Any) -> np.ndarray:
    return np.concatenate([(before.params[n] - t).double().numpy().ravel() for n, t in after.params.items()])


@pytest.mark.parametrize("way", ["plain", "central", "masked"])
def test_uploads_and_their_mean_are_those_of_the_round(way: str, tmp_path: Path) -> None:
    """Whatever happens to the mean, FedAvg's global model moves by it."""
    words = {
        "central": {"privacy": "central:noise=1,delta=1e-2,clip=0.05"},
        "masked": {"secure_aggregation": "range=8"},
    }
    if way == "central":
        pytest.importorskip("dp_accounting")
    run = run_of(tmp_path, **words.get(way, {}))
    seen, replay = seen_in(run.past, 2), run.past.replay(2)
    (name,) = replay.before
    for k, weights in replay.trained().items():
        sight = seen.uploads[k]
        assert flat(sight.movement) == pytest.approx(moved(replay.before[name], weights), abs=1e-7)
        assert sorted(sight.rows) == sorted(run.job.federation.partition.rows(k))
        assert sight.movement.steps == 2 * -(-len(sight.rows) // 16)
    assert seen.mean is not None
    assert flat(seen.mean.movement) == pytest.approx(moved(replay.before[name], replay.after[name]), abs=1e-6)
    assert seen.mean.clients == tuple(sorted(seen.uploads))
    assert sorted(seen.mean.rows) == sorted(row for one in seen.uploads.values() for row in one.rows)
    first = [one.rows[0] for _, one in sorted(seen.uploads.items())]
    assert seen.mean.rows[: len(first)].tolist() == first


@pytest.mark.slow
def test_private_examples_are_seen_as_they_leave_and_as_they_would_be(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    (tmp_path / "bare").mkdir()
    bare = seen_in(run_of(tmp_path / "bare").past, 1)
    run = run_of(tmp_path, privacy="examples:noise=1,delta=1e-4,clip=1")
    without, private = seen_in(run.past, 1, bare=True), seen_in(run.past, 1)
    for k, sight in bare.uploads.items():
        assert flat(without.uploads[k].movement) == pytest.approx(flat(sight.movement), abs=1e-7)
        assert np.abs(flat(private.uploads[k].movement) - flat(sight.movement)).max() > 1e-2
    assert run.past.replay(2).round == 2  # as the run had it


def test_rounds_without_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="round 2 of LocalOnly has none: name another round, or analyse another"):
        seen_in(run_of(tmp_path, "local_only").past, 2)
