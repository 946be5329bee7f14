"""What methods share whose clients teach each other: cosines of predictions, and which public examples are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedloom.algorithms import FedMDKT
from fedloom.core.optimiser import SGD, Digest
from fedloom.core.transfer import cosines, drawn
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.subject import Subject


def test_cosines_are_over_all_numbers_of_two_clients() -> None:
    soft = np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 5))
    a = cosines(torch.from_numpy(soft))
    flat = soft.reshape(4, 15)
    for n in range(4):
        for m in range(4):
            want = flat[n] @ flat[m] / np.linalg.norm(flat[n]) / np.linalg.norm(flat[m])
            np.testing.assert_allclose(a[n, m], want, rtol=1e-12)
    assert torch.equal(a.diagonal(), torch.ones(4, dtype=torch.float64))


def test_public_examples_are_drawn_anew_each_round_without_replacement() -> None:
    subject = Subject.of(FedMDKT(num_public=7))
    run = Loop(subject.population(), subject.algorithm)
    seen = []
    for t in range(3):
        cohort = AskedCohort(run, (0, 1), t)
        seen.append(drawn(cohort, 7).tolist())
        assert len(set(seen[-1])) == 7
        assert drawn(cohort, 50).sort().values.tolist() == list(range(20))
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_statistics_stay_those_of_the_clients_own_examples(engine: Any) -> None:
    """However much public examples teach, running statistics are as if they had taught nothing."""
    found = []
    for rate in (1e-30, 0.1):
        taught = Digest(epochs=2, batch_size=8, optimiser=SGD(lr=rate))
        subject = Subject.of(FedMDKT(num_public=20, distill=taught)).normalised
        run = engine(subject.population(), subject.algorithm)
        run.round(run.init(), (0, 1), 0)
        found.append(run.states[0])
    little, much = found
    statistics = [name for name in much.buffers if "running" in name]
    assert statistics
    assert all(torch.equal(little.buffers[name], much.buffers[name]) for name in statistics)
    assert any(not torch.equal(t, much.params[name]) for name, t in little.params.items())
