"""A file of an algorithm that is copied out of the package is an algorithm of one's own, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.algorithms import moon
from fedloom.experiments.experiment import Experiment


@pytest.mark.slow
def test_a_copy_computes_what_the_original_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(moon.__file__).read_text(encoding="utf-8")
    (tmp_path / "own_moon.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = {"model": "mlp", "data.partition": "iid", "data.clients": 3, "run.rounds": 2, "run.cohort_size": 2}
    found = [Experiment(algorithm=name).with_all(words).job().run().metrics for name in ("moon", "own_moon:MOON")]
    assert found[0] == found[1]
