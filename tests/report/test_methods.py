"""Runs become methods: who belongs together, what a method is called, and what its numbers are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made import made_run, methods

from fedloom import History
from fedloom.report.grouping import read_methods
from fedloom.report.methods import Spread, evaluation_seconds, training_seconds


def test_unfinished_runs_are_told_and_left_out_of_means(tmp_path: Path) -> None:
    made_run(tmp_path / "seed-0", seed=0, rounds=4, planned_rounds=8)
    made_run(tmp_path / "seed-1", seed=1, rounds=8)
    (method,), remarks = read_methods([tmp_path])
    assert remarks == ["seed-0 is unfinished: 4 of 8 rounds; means leave it out."]
    assert [run.seed for run in method.counted_runs] == [1]


def test_a_run_over_devices_has_no_settings_of_simulations(tmp_path: Path) -> None:
    """Its settings.json has the defaults of all; what its report shows are those that were followed."""
    data = {"source": "devices:a", "partition": "shards:2", "clients": 100, "examples": 0, "normalise": "places"}
    clients = {"attack": "none", "attackers": None, "sampler": "uniform"}
    for engine in ("devices", "loop"):
        run = {"rounds": 4, "cohort_size": 2, "seed": 0, "engine": engine, "workers": 2, "deadline": 3.0}
        made_run(tmp_path / engine, settings={"data": data, "clients": clients, "run": run})
    (devices, simulated) = (methods(tmp_path / engine)[0].first for engine in ("devices", "loop"))
    for facts, others in ((devices.facts, simulated.facts), (devices.problem, simulated.problem)):
        assert facts.items() <= (others | {"run.engine": "devices"}).items()
        left_out = others.keys() - facts.keys()
        assert {"data.partition", "data.clients", "data.examples", "clients.attack", "clients.attackers"} <= left_out
        assert not {"data.source", "data.normalise", "clients.sampler", "run.cohort_size"} & left_out
    assert "run.workers" in simulated.facts.keys() - devices.facts.keys()
    assert "run.deadline" in devices.facts


def test_a_run_that_a_rule_has_ended_is_finished(tmp_path: Path) -> None:
    run = {"rounds": 50, "seed": 0, "monitor": "global_accuracy", "target": 0.05}
    made_run(tmp_path / "a", rounds=4, settings={"run": run})
    (method,), remarks = read_methods([tmp_path])
    assert method.first.finished
    assert len(remarks) == 1
    assert remarks[0].startswith("a ended after 4 of 50 rounds: global accuracy reached")


def test_what_was_measured_before_training_ends_no_run(tmp_path: Path) -> None:
    """By its rule of patience the run would be finished if its best value were that of round 0."""
    run = {"rounds": 50, "seed": 0, "monitor": "global_accuracy", "patience": 3}
    folder = made_run(tmp_path / "a", rounds=3, settings={"run": run})
    lines = [{"round": t, "global_accuracy": a} for t, a in enumerate((0.9, 0.1, 0.2, 0.3))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (method,), _ = read_methods([tmp_path])
    assert not method.first.finished


def test_costs_of_a_curve_are_means_over_seeds(tmp_path: Path) -> None:
    for seed, moved in enumerate((10, 30)):
        folder = made_run(tmp_path / str(seed), seed=seed, rounds=1)
        line = {"round": 1, "global_accuracy": 0.5, "bytes_up": moved}
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (method,) = methods(tmp_path)
    curve = method.curve("global_accuracy", "bytes")
    assert curve is not None
    assert curve.x.tolist() == [20]


def test_curves_and_spreads_by_hand(tmp_path: Path) -> None:
    values = {0: [0.1, 0.2, 0.6], 1: [0.3, 0.4, 0.8]}
    for seed, accuracies in values.items():
        folder = made_run(tmp_path / str(seed), seed=seed, rounds=2)
        lines = [{"round": t, "global_accuracy": a, "bytes_up": 10 * t if t else 0} for t, a in enumerate(accuracies)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (method,) = methods(tmp_path)
    curve = method.curve("global_accuracy", "bytes")
    assert curve is not None
    assert curve.x.tolist() == [0, 10, 30]
    np.testing.assert_allclose([curve.mean, curve.low, curve.high], [[0.2, 0.3, 0.7], *values.values()])
    last = method.last("global_accuracy")
    assert last is not None
    assert (last.mean, last.std, last.count) == (pytest.approx(0.7), pytest.approx(0.2**0.5 / 10**0.5), 2)
    assert method.last("personal_accuracy") is None
    assert method.curve("personal_accuracy") is None


def test_equal_numbers_have_no_spread(tmp_path: Path) -> None:
    for seed in range(3):
        folder = made_run(tmp_path / str(seed), seed=seed, rounds=1)
        lines = [{"round": t, "global_accuracy": 0.1, "bytes_up": 10} for t in range(2)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert np.std([0.1] * 3, ddof=1) > 0
    assert methods(tmp_path)[0].last("global_accuracy") == Spread(0.1, 0.0, 3)


def test_a_curve_ends_where_the_shortest_run_ends(tmp_path: Path) -> None:
    for seed, rounds in enumerate((3, 5)):
        made_run(tmp_path / str(seed), seed=seed, rounds=rounds, planned_rounds=9)
    (method,) = methods(tmp_path)
    curve = method.curve("train_loss")
    assert curve is not None
    assert curve.x.tolist() == [1, 2, 3]


def test_seconds_of_a_round_are_means_over_rounds_and_parted_by_what_they_measure() -> None:
    timing = [{"round": t, "seconds": {"train": 3.0 * (t > 0), "evaluate": float(t)}} for t in range(3)]
    metrics = [{"round": t, "bytes_down": 0, "bytes_up": 0} for t in range(3)]
    run = History(algorithm="X", metrics=metrics, timing=timing)
    assert (training_seconds(run), evaluation_seconds(run)) == (3.0, 1.5)
    for begun in (
        History(algorithm="X", metrics=metrics[:1], timing=timing[:1]),
        History(algorithm="X", metrics=metrics),
    ):
        assert np.isnan([training_seconds(begun), evaluation_seconds(begun)]).all()
