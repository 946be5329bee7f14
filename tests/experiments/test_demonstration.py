"""The demonstration: its verdict decides its exit status."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from fedloom.cli import demo
from fedloom.cli.main import main
from fedloom.experiments import demonstration
from fedloom.experiments.demonstration import Expected
from fedloom.experiments.experiment import Experiment


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same demonstration in about a second."""
    monkeypatch.setattr(demonstration, "ALGORITHMS", ("fedavg", "pfedsd"))
    made = demonstration.experiments

    def small(seed: int) -> dict[str, Experiment]:
        changes = {"model": "logistic", "local.epochs": 1, "run.rounds": 3, "run.cohort_size": 5, "run.eval_every": 3}
        out = made(seed)
        for key, value in changes.items():
            out = {name: experiment.changed(key, value) for name, experiment in out.items()}
        return out

    monkeypatch.setattr(demonstration, "experiments", small)


def verdicts(out: str) -> list[str]:
    return [line.split()[-1] for line in out.split("Expected over seeds and got")[1].splitlines()[3:]]


@pytest.mark.slow
@pytest.mark.usefixtures("_small", "_eighty_columns")
@pytest.mark.parametrize(
    ("low", "high", "status", "words"),
    [(0.1, 1.0, 0, ["yes", "yes"]), (1.01, 1.02, 1, ["yes", "NO"]), (0.0, 0.05, 1, ["yes", "NO"])],
)
def test_the_status_follows_the_ranges(
    low: float,
    high: float,
    status: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fine = Expected("pfedsd", "personal_accuracy", 0.0, 1.0)
    monkeypatch.setattr(demonstration, "EXPECTED", (fine, Expected("fedavg", "global_accuracy", low, high)))
    assert main(["demo"]) == status
    out, err = capsys.readouterr()
    assert verdicts(out) == words
    assert f"{low:.2f} to {high:.2f}" in out
    assert err == ("1 of 2 numbers are out of their range\n" if status else "")
    assert "…" not in out


@pytest.mark.parametrize(("gain", "status"), [(0.24, 1), (0.25, 0), (0.5, 0), (0.51, 1)])
def test_both_ends_are_within_a_range_also_of_a_difference(
    gain: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SimpleNamespace(federation=lambda: None, job=lambda f: SimpleNamespace(settings=None, population=population))
    population = SimpleNamespace(models={})
    monkeypatch.setattr(demonstration, "experiments", lambda seed: {"fedavg": made, "pfedsd": made})
    accuracies = {"fedavg": 0.25, "pfedsd": 0.25 + gain}
    trained = {name: SimpleNamespace(last=lambda metric, n, a=a: a) for name, a in accuracies.items()}
    monkeypatch.setattr(demo, "train", lambda name, *args: trained[name])
    for shown in ("print_setup", "comparison_table"):
        monkeypatch.setattr(demo, shown, lambda *args: "")
    expected = Expected("pfedsd", "personal_accuracy", 0.25, 0.5, minus="fedavg")
    monkeypatch.setattr(demonstration, "EXPECTED", (Expected("fedavg", "personal_accuracy", 0.25, 0.25), expected))
    assert main(["demo"]) == status
    capsys.readouterr()


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_a_number_that_was_not_measured_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demonstration, "EXPECTED", (Expected("fedavg", "val_accuracy", -1e9, 1e9),))
    assert main(["demo", "--seed", "3"]) == 1
    assert verdicts(capsys.readouterr().out) == ["NO"]


def test_the_demonstration_is_that_of_the_readme() -> None:
    assert tuple(demonstration.experiments(3)) == ("fedavg", "scaffold", "fedntd", "pfedsd")
    for name, experiment in demonstration.experiments(3).items():
        assert (experiment.data.clients, experiment.data.partition) == (100, "shards:2")
        assert experiment.run.seed == 3
        assert (
            dataclasses.replace(experiment, run=demonstration.experiments(0)[name].run)
            == demonstration.experiments(0)[name]
        )
