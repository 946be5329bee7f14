"""What a round costs, as multiples of FedAvg's, is what `fedloom algorithms` and the docs say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from fedloom.algorithms import ALGORITHMS

SCRIPT = Path(__file__).parents[2] / "scripts/measure_costs.py"
KEPT = json.loads(SCRIPT.with_name("costs.json").read_text())


def test_every_algorithm_has_its_cost() -> None:
    assert set(ALGORITHMS) - set(KEPT) == {"fedalign"}  # which LeNet does not suit
    assert list(KEPT) == [name for name in ALGORITHMS if name in KEPT]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedper", "pfedsd"])
def test_costs_are_measured(name: str) -> None:
    measured = runpy.run_path(str(SCRIPT))["measured"]
    ratios = [round(mine / its, 2) for mine, its in zip(measured(name), measured("fedavg"), strict=True)]
    assert ratios == [KEPT[name][part] for part in ("down", "up", "work")]
    if name == "scaffold":
        assert ratios == [2.0, 2.0, 1.0]  # by hand: a control variate beside each model
