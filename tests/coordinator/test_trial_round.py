"""Every method of a comparison is tried on one batch before the first run begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from commands import call
from fedloom.cli import train
from fedloom.coordinator import Job
from fedloom.coordinator.trial_round import try_round
from fedloom.core.errors import ClientError, NonFiniteError, SettingError
from tiny import federation, linear

FILE = """
from dataclasses import dataclass
import fedloom as fl

@dataclass(frozen=True)
class Broken(fl.FedAvg):
    def init_client(self, initial, model, key):
        return initial.no_such_name
"""


def job(algorithm: Any, **more: Any) -> Job:
    return Job(
        algorithm=algorithm, federation=federation(), model=linear(), settings=fl.RunSettings(cohort_size=2), **more
    )


@pytest.mark.slow
def test_a_method_that_fails_is_named_with_its_line_before_any_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_of_trial.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(train, "train", None)  # no run begins
    argv = ["--clients", "10", "--cohort", "2", "--rounds", "1", "--model", "logistic", "--out", "runs"]
    status, _, err = call(capsys, "compare", "fedavg", "broken_of_trial:Broken", *argv)
    assert (status, (tmp_path / "runs").exists()) == (2, False)
    assert "tried on one batch before the first run begins, and Broken fails: AttributeError: " in err
    assert "no_such_name'; mend it, or leave it out (" in err
    assert err.strip().endswith("broken_of_trial.py, line 8, in init_client)")


def test_a_trial_is_one_step_and_changes_no_run() -> None:
    """Whatever the engine, and though clients would be lost, or lie."""
    seen: list[Any] = []

    @dataclass(frozen=True)
    class Watched(fl.FedAvg):
        def init_client(self, *given: Any) -> Any:
            seen.append(self.local.steps)
            return super().init_client(*given)

    plan = job(Watched(local=fl.Local(epochs=7)), faults=fl.Unreliable(lost=0.9), attack=fl.Scale(-1, share=0.5))
    plan = replace(plan, settings=replace(plan.settings, engine="stacked", target=0.9))
    try_round(plan)
    assert 1 in seen
    assert None not in seen


def test_what_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that trains has no small round; a loss that is not finite is for its run to tell."""

    def fails(*given: Any, **more: Any) -> Any:
        raise ClientError("no", client=0, round=1)

    monkeypatch.setattr(fl.FedAvg, "init", fails)
    with pytest.raises(SettingError, match=r"and FedAvg fails: client 0, round 1: no; mend it"):
        try_round(job(fl.FedAvg()))

    @dataclass(frozen=True)
    class OnServer(fl.FedAvg):
        requires = fl.Requires(server_training=True)

    try_round(job(OnServer()))

    def diverges(*given: Any, **more: Any) -> Any:
        raise NonFiniteError("infinite", client=0, round=1)

    monkeypatch.setattr(fl.FedAvg, "init", diverges)
    try_round(job(fl.FedAvg()))


@pytest.mark.slow
def test_an_error_in_the_middle_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, count = train.train, iter(range(9))

    def second_fails(*given: Any, **more: Any) -> Any:
        if next(count) % 3 == 1:
            raise SettingError("the second run fails")
        return plain(*given, **more)

    monkeypatch.setattr(train, "train", second_fails)
    argv = ["compare", "fedavg", "fedprox", "--clients", "10", "--cohort", "2", "--rounds", "1", "--model", "logistic"]
    status, out, err = call(capsys, *argv, "--out", str(tmp_path / "runs"))
    assert (status, "the second run fails" in err) == (2, True)
    said = f"1 of 3 runs are kept in {tmp_path / 'runs'}; the same command with --resume goes on with the others"
    assert out.splitlines()[-1] == said
    next(count)
    status, out, _ = call(capsys, *argv)
    assert "1 of 3 runs were finished, and none is kept: name a folder (--out DIR)" in " ".join(out.split())
