"""pFedDF: FedDF's server, and clients evaluated by what they trained last."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom.algorithms import FedDF, PFedDF
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Distill, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.compare import same
from fedloom.testing.small_networks import MLP, Convolutional
from fedloom.testing.subject import federation

THREE = {n: Model(m, name=n) for n, m in {"narrow": MLP, "wide": lambda: MLP(16), "conv": Convolutional}.items()}
SETTINGS: dict[str, Any] = {
    "steps": 5,
    "local": Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.05)),
    "distill": Distill(batch_size=8, optimiser=Adam(lr=1e-2)),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_the_server_is_feddfs_and_clients_keep_what_they_uploaded(engine: Any) -> None:
    population = Population(federation(), THREE, dtype=torch.float64)
    plain, own = engine(population, FedDF(**SETTINGS)), engine(population, PFedDF(**SETTINGS))
    uploads: dict[int, Weights] = {}
    own.watch = lambda e: uploads.__setitem__(e.client, e.upload.value)
    a, b = plain.init(), own.init()
    for t, cohort in enumerate([(0, 1, 3), (1, 3)]):
        a, b = plain.round(a, cohort, t), own.round(b, cohort, t)
        same(a, b, "the server")
    evaluated = own.personal(b, range(6), 1)
    for k in (0, 1, 3):  # client 0 by its copy of the first round
        same(uploads[k], evaluated[k], f"client {k}")
    fused = plain.personal(a, range(6), 1)
    same(fused[2], evaluated[2], "who never took part is evaluated by the newest fused model")
    assert not torch.equal(fused[1].params["head.weight"], evaluated[1].params["head.weight"])
    has = [k for k in range(6) if own.algorithm.has_personal(tree.take(own.stack([k]), 0))]
    assert has == [0, 1, 3]


def test_a_student_that_clients_are_not_sent_is_refused() -> None:
    rule = r"with student = 'narrow' none is fused .*: set student = None, or run FedDF"
    with pytest.raises(SettingError, match=rule):
        Loop(Population(federation(), THREE), PFedDF(student="narrow", **SETTINGS)).init()
