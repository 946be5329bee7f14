"""The demonstration: its verdict decides its exit status."""

from __future__ import annotations

import dataclasses

import pytest

from fedloom import SGD, Local, RunSettings
from fedloom.cli.main import main
from fedloom.recipes import demo
from fedloom.recipes.demo import Expected


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same demonstration in about a second."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(demo, "CLIENTS", 100)
    monkeypatch.setattr(demo, "MODEL", "logistic")
    monkeypatch.setattr(demo, "ALGORITHMS", ("fedavg", "pfedsd"))
    monkeypatch.setattr(demo, "LOCAL", Local(epochs=1, batch_size=20, optimiser=SGD(lr=0.03)))
    monkeypatch.setattr(demo, "settings", lambda seed: RunSettings(rounds=3, cohort_size=5, seed=seed, eval_every=3))


def verdicts(out: str) -> list[str]:
    return [line.split()[-1] for line in out.split("Expected and got")[1].splitlines()[3:]]


@pytest.mark.usefixtures("_small")
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
    monkeypatch.setattr(demo, "EXPECTED", (fine, Expected("fedavg", "global_accuracy", low, high)))
    assert main(["demo"]) == status
    out, err = capsys.readouterr()
    assert verdicts(out) == words
    assert f"{low:.2f} to {high:.2f}" in out
    assert err == ("1 of 2 numbers are out of their range\n" if status else "")
    assert "…" not in out


@pytest.mark.usefixtures("_small")
def test_a_number_that_was_not_measured_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "EXPECTED", (Expected("fedavg", "no_such_metric", -1e9, 1e9),))
    assert main(["demo", "--seed", "3"]) == 1
    assert verdicts(capsys.readouterr().out) == ["NO"]


def test_the_demonstration_is_that_of_the_readme() -> None:
    assert (demo.CLIENTS, demo.PARTITION) == (100, "shards:2")
    assert demo.ALGORITHMS == ("fedavg", "scaffold", "fedntd", "pfedsd")
    assert demo.settings(3).seed == 3
    assert dataclasses.replace(demo.settings(3), seed=0) == demo.settings(0)
