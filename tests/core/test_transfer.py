"""What methods share whose clients teach each other: cosines of predictions, and which public examples are drawn."""

from __future__ import annotations

import numpy as np
import torch

from fedloom.algorithms import FedMDKT
from fedloom.core.transfer import cosines, drawn
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
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
