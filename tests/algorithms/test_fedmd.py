"""FedMD: the authors' consensus and digest on every engine, and rounds by independent arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import golden
from spoken import LOCAL, after_a_round, whole
from torch import nn

from fedloom.algorithms import FedMD
from fedloom.algorithms.fedmd import FedMDClient, absolute_error_loss
from fedloom.core.batch import Batch
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.passes import TrainingCall
from fedloom.core.types import Weights
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from fedloom.testing.subject import Subject
from small import InOrder

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_consensus_is_the_mean_of_logits_and_is_fitted_by_absolute_errors(engine: Any) -> None:
    g = golden("ktpfl_dense/fedmd")
    logits = g["party_logits"]
    fedmd = FedMD(local=LOCAL, distill=whole(6), num_public=6, public_epochs=0, private_passes=0)
    after, _ = after_a_round(fedmd, logits, engine)
    want = logits - np.sign(logits - g["consensus"]) / (6 * 4)  # a step of rate 1 on the mean of 6 x 4 errors
    np.testing.assert_allclose(after, want, rtol=1e-9, atol=1e-12)


def test_the_digest_loss_is_the_authors() -> None:
    g = golden("ktpfl_dense/fedmd")
    model = Model(lambda: nn.Linear(6, 4, bias=False))
    said = Weights(params={"weight": torch.from_numpy(g["student_logits"]).T})
    zero, real = torch.zeros((), dtype=torch.int64), torch.ones(6, dtype=torch.bool)
    target = {"target": torch.from_numpy(g["consensus"])}
    batch = Batch(x=torch.eye(6, dtype=torch.float64), y=real.long(), mask=real, key=zero, notes=target)
    assert float(absolute_error_loss(model)(said, batch).value) == pytest.approx(float(g["mae"]), rel=1e-9)


def test_the_authors_digest_before_they_revisit() -> None:
    """Their loop calls each party twice; the first call is the digest, of other batches and epochs than the second."""
    g = golden("ktpfl_dense/fedmd")
    assert g["call_order"].tolist() == [0, 0, 1, 1, 2, 2]
    assert len({tuple(call) for call in g["call_batch_epochs"][::2].tolist()}) == 1
    assert g["call_batch_epochs"][0].tolist() != g["call_batch_epochs"][1].tolist()


# ---- rounds by hand

SIZES, PUBLIC = (5, 9, 7, 6), 8
COHORTS = ((0, 1, 3), (1, 2, 3))  # client 2 goes through phase 0 in the second round
ETA, RATE, EPOCHS, BATCH, PASSES = 0.1, 0.3, 2, 4, 2
TRAINING = Local(epochs=EPOCHS, batch_size=BATCH, optimiser=SGD(lr=ETA))
DISTILL = Digest(epochs=2, batch_size=PUBLIC, optimiser=SGD(lr=RATE))  # in one batch: their order does not matter
NARROW = ("narrow", "wide", "wide", "narrow")
MADE = {
    "narrow": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)),
    "wide": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)),
}


def descend(module: nn.Module, rate: float, batches: Any, loss: Any) -> None:
    optimiser = torch.optim.SGD(module.parameters(), lr=rate)
    for x, y in batches:
        optimiser.zero_grad()
        loss(module(x), y).backward()
        optimiser.step()


def local(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    passes = [(x[rows], y[rows]) for _ in range(EPOCHS) for rows in torch.arange(len(y)).split(BATCH)]
    descend(module, ETA, passes, F.cross_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_rounds_by_hand(engine: Any) -> None:
    rng = np.random.default_rng(3)
    data = [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (*SIZES, PUBLIC)]
    ends = np.cumsum([0, *SIZES])
    federation = Federation(
        train=from_arrays(*(np.concatenate([d[i] for d in data[:-1]]) for i in (0, 1)), num_classes=4),
        partition=Partition.from_lists([np.arange(a, b) for a, b in itertools.pairwise(ends)]),
        public=from_arrays(*data[-1], num_classes=4),
        public_labels=True,
    )
    models = {name: Model(build, name=name) for name, build in MADE.items()}
    population = InOrder(federation, models, assignment=NARROW, dtype=torch.float64)
    settings: dict[str, Any] = {"distill": DISTILL, "num_public": PUBLIC, "public_epochs": 3}
    run = engine(population, FedMD(local=TRAINING, private_passes=PASSES, **settings))
    torch.manual_seed(7)
    modules = [MADE[name]().double() for name in NARROW]
    for k, module in enumerate(modules):
        mine = Weights(params={n: p.detach().clone() for n, p in module.named_parameters()})
        run.states[k] = FedMDClient(weights=mine, begun=torch.tensor(False))
    x, y = (torch.from_numpy(a) for a in data[-1])
    own = [tuple(torch.from_numpy(a) for a in d) for d in data[:-1]]
    server, begun = run.init(), set[int]()
    for t, cohort in enumerate(COHORTS):
        server = run.round(server, cohort, t)
        for k in set(cohort) - begun:
            descend(modules[k], RATE, [(x, y)] * 3, F.cross_entropy)
            for _ in range(PASSES):
                local(modules[k], *own[k])
        begun |= set(cohort)
        consensus = torch.stack([modules[k](x).detach() for k in cohort]).mean(0)
        for k in cohort:
            descend(modules[k], RATE, [(x, consensus)] * DISTILL.epochs, F.l1_loss)
            local(modules[k], *own[k])
        for k, module in enumerate(modules):
            assert bool(run.states[k].begun) == (k in begun)
            for name, p in module.named_parameters():
                np.testing.assert_allclose(run.states[k].weights.params[name], p.detach(), rtol=1e-8, atol=1e-10)
    run.close()


def test_a_client_that_is_lost_in_phase_0_goes_through_it_later() -> None:
    subject = Subject.of(FedMD(distill=DISTILL, num_public=5, public_epochs=1, private_passes=1))
    run = Loop(
        subject.population(),
        subject.algorithm,
        Options(faults=lambda r, e, k: "gone" if (r, e, k) == (0, 0, 2) else None),
    )
    server = run.round(run.init(), (0, 2, 3), 0)
    assert [k for k in (0, 2, 3) if k in run.states and run.states[k].begun] == [0, 3]
    run.round(server, (2, 3), 1)
    assert run.states[2].begun


def test_labels_are_missing() -> None:
    people = Federation(
        train=from_arrays(np.zeros((4, 6)), np.arange(4), num_classes=4),
        partition=Partition.from_lists([range(4)]),
        public=from_arrays(np.zeros((4, 6)), np.arange(4), num_classes=4),
    )
    population = Population(people, {"narrow": Model(MADE["narrow"], name="narrow")})
    message = (
        "phase 0 of FedMD trains on public examples with their labels, for 20 epochs, and those of this federation"
    )
    with pytest.raises(SettingError, match=message + ".* have none: set data.public_labels .* or public_epochs = 0"):
        Loop(population, FedMD())
    Loop(population, FedMD(public_epochs=0))


def test_dropout_of_phase_0_is_not_that_of_the_clients_own_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a round draws its own: two public epochs, a private pass, the digest and the revisit."""
    keys, dropout = list[int](), TrainingCall._dropout

    def noting(self: Any, *args: Any, **more: Any) -> torch.Tensor:
        keys.append(int(self.batch.key))
        return dropout(self, *args, **more)

    monkeypatch.setattr(TrainingCall, "_dropout", noting)
    subject = Subject.of(FedMD(distill=DISTILL, num_public=20, public_epochs=2, private_passes=1)).normalised
    run = Loop(subject.population(), subject.algorithm)
    run.round(run.init(), (0, 1), 0)
    assert len(keys) > 2 * 2 * 3  # clients, public epochs and batches of these; and the rest of the round
    assert len(set(keys)) == len(keys)
