"""Code that a run's folder names is told before it is imported, and imported where that is allowed."""

from __future__ import annotations

import argparse

import pytest

from fedloom.display.terminal import Terminal
from fedloom.experiments import stored_experiments
from fedloom.experiments.experiment import Experiment


@pytest.mark.parametrize("allowed", [True, False])
def test_code_is_told_where_it_may_be_imported(
    allowed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(Experiment, "code_of", lambda directory: ["mine", "yours"])
    monkeypatch.setattr(Experiment, "from_directory", lambda directory, *, allow_code: seen.append(allow_code))
    stored_experiments.open_experiment("runs/a", argparse.Namespace(allow_code=allowed), Terminal())
    assert seen == [allowed]
    assert capsys.readouterr().out == ("runs/a imports mine, yours\n" if allowed else "")
