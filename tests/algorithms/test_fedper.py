"""FedPer: whole runs."""

from __future__ import annotations

from typing import Any

import pytest
from common_runs import PEOPLE, Followed, Net, close, flatten, local, of_head
from conftest import golden
from plain_runs import other

from fedloom.algorithms import FedPer
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]
CASES = {"stored": lambda: golden("common/fedper_a"), "other": lambda: other("fedper", Net, weighting="uniform")}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_rounds(case: str, engine: Any) -> None:
    g = CASES[case]()
    algorithm = FedPer(personal_layers="head.*", aggregation=str(g["weighting"]), local=local(g))
    there = Followed.of(g, engine, algorithm, Net)
    for r in range(int(g["n_rounds"])):
        there.round(r)
        evaluated = there.run.personal(there.server, PEOPLE, r)
        there.evaluated(r, evaluated)
        for k in PEOPLE:
            close(flatten(of_head(evaluated[k])), g[f"r{r}_personal"][k])
    there.run.close()
