"""What methods share whose clients teach each other: cosines of predictions, and which public examples are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedloom.algorithms import FedMDKT
from fedloom.algorithms.shared.transfer import cosines, drawn, learnt
from fedloom.core.local_training import Digest
from fedloom.core.losses import soft_target_loss
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.passes import TrainingCall
from fedloom.core.tree import cast
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.loop import Loop
from fedloom.testing.small_networks import MLP
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


@pytest.mark.parametrize("optimiser", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)])
def test_epochs_on_public_examples_are_one_run_of_the_optimiser(optimiser: Any) -> None:
    """Its momentum and moments are at rest before the first alone: as with one of PyTorch's, by hand."""
    population = Subject.of(FedMDKT()).population()
    model, order = population.models["mlp"], torch.randperm(20, generator=torch.Generator().manual_seed(1))
    target = torch.rand(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).softmax(-1)
    start = cast(model.init(0), dtype=torch.float64)
    client: Any = SimpleNamespace(public=population.public, lr=torch.ones((), dtype=torch.float64), key=torch.tensor(7))
    how = Digest(epochs=3, batch_size=8, optimiser=optimiser)
    end = learnt(client, start, soft_target_loss(model, 1.0), order, target, how)
    network = MLP().double()
    network.load_state_dict(dict(start.params))
    kind = {SGD: torch.optim.SGD, Adam: torch.optim.Adam}[type(optimiser)]
    settings = {"momentum": 0.9} if isinstance(optimiser, SGD) else {}
    steps = kind(network.parameters(), lr=optimiser.lr, **settings)
    for _ in range(3):
        for part in torch.arange(20).split(8):
            x = population.federation.public.x[order[part]]
            loss = F.kl_div(network(x).log_softmax(-1), target[part], reduction="batchmean")
            steps.zero_grad()
            loss.backward()
            steps.step()
    for name, p in network.named_parameters():
        torch.testing.assert_close(end.params[name], p.detach(), rtol=1e-6, atol=1e-8)


def test_dropout_on_public_examples_is_another_in_each_step_of_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not that of the client's own examples."""
    keys: list[int] = []
    dropout = TrainingCall._dropout

    def noting(self: Any, *args: Any, **more: Any) -> torch.Tensor:
        keys.append(int(self.batch.key))
        return dropout(self, *args, **more)

    monkeypatch.setattr(TrainingCall, "_dropout", noting)
    how = Digest(epochs=2, batch_size=8, optimiser=SGD(lr=0.1))
    subject = Subject.of(FedMDKT(num_public=20, distill=how)).normalised
    run = Loop(subject.population(), subject.algorithm)
    server = run.init()
    for t in range(2):
        server = run.round(server, (0, 1), t)
    assert len(keys) > 2 * 2 * 2 * 3  # rounds, clients, epochs and batches of public examples; and those of their own
    assert len(set(keys)) == len(keys)
