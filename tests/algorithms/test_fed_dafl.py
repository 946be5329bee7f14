"""Fed-DAFL: its losses and two optimisers against plain PyTorch, and what an epoch does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from colours import LOCAL, federation, one_shot, rounds
from fedloom.algorithms.fed_dafl import Both, FedDAFL, generator_losses
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Distill
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam
from fedloom.core.random import derive, fold_in, normal
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.models import DenseGenerator
from small import DenseTiny


class Featured(DenseTiny):
    """The tiny network, which says what its last layer sees."""

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


TINY = Model(Featured, name="tiny")
SMALL: dict[str, Any] = {
    "steps": 3,
    "nz": 6,
    "ngf": 4,
    "synthesis": Distill(batch_size=8, optimiser=Adam(lr=0.01)),
    "distill": Distill(batch_size=8, optimiser=SGD(lr=0.05, momentum=0.9)),
    "local": LOCAL,
}


def test_the_losses_are_those_of_the_paper() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    one_hot, entropy, activation = generator_losses(logits, torch.tensor([0.5, 1.5]))
    p = [math.exp(2) / (math.exp(2) + 2), math.exp(1) / (math.exp(1) + 2)]
    assert float(one_hot) == pytest.approx(-(math.log(p[0]) + math.log(p[1])) / 2, rel=1e-6)
    mean = np.array([[p[0], (1 - p[0]) / 2, (1 - p[0]) / 2], [(1 - p[1]) / 2, p[1], (1 - p[1]) / 2]]).mean(0)
    assert float(entropy) == pytest.approx(float((mean * np.log10(mean)).sum()), rel=1e-6)
    assert float(activation) == -1.0
    even, odd = generator_losses(torch.eye(3) * 9, torch.ones(1))[1], entropy
    assert float(even) == pytest.approx(-math.log10(3), rel=1e-6)
    assert float(even) < float(odd)  # least where the classes are balanced
    sure = torch.tensor([[500.0, 0.0]], requires_grad=True)  # a class of probability 0
    (slope,) = torch.autograd.grad(generator_losses(sure, torch.ones(1))[1], sure)
    assert bool(slope.isfinite().all())


def test_an_epoch_is_plain_pytorch() -> None:
    """Generator by Adam on (oh, ie, a), student by SGD on what the ensemble says of the same images, side by side."""
    engine = Loop(Population(federation(), {"tiny": TINY}), FedDAFL(**SMALL, oh=0.5, ie=2.0, a=0.3))
    server = engine.round(engine.init(), range(3), 0)[""]
    key = derive(engine.population.seed, "server", 1, "noise")
    after = engine.round({"": server}, range(3), 1)[""]
    models = engine.rows("model", [0, 1, 2])

    def module(network: nn.Module, weights: Any, training: bool) -> Any:
        network.load_state_dict({**weights.params, **weights.buffers})
        return network.train(training)

    clients = [module(Featured(), tree.take(models, k), False) for k in range(3)]
    painter = module(DenseGenerator(6, 4, 3, 8), server.own[0], True)
    student = module(Featured(), server.student, True)
    optimisers = [
        torch.optim.Adam(painter.parameters(), lr=0.01),
        torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9),
    ]
    for step in range(3):
        z = normal(fold_in(torch.tensor(key), torch.tensor(step)), 0, torch.Size((8, 6)))
        x = painter(z)
        logits = torch.stack([client(x) for client in clients]).mean(0)
        p = F.softmax(logits, 1).mean(0)
        activity = torch.stack([client.features(x).abs().mean() for client in clients]).mean()
        made = 0.5 * F.cross_entropy(logits, logits.argmax(1)) + 2.0 * (p * p.log10()).sum() - 0.3 * activity
        target = F.softmax(logits.detach(), 1)
        taught = F.kl_div(F.log_softmax(student(x.detach()), 1), target, reduction="batchmean")
        for optimiser, value in zip(optimisers, (made, taught), strict=True):
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
    for network, weights in ((painter, after.own[0]), (student, after.student)):
        for name, q in network.named_parameters():
            np.testing.assert_allclose(weights.params[name], q.detach(), rtol=1e-4, atol=1e-5, err_msg=name)
        for name, b in network.named_buffers():
            np.testing.assert_allclose(weights.buffers[name], b, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_both_go_on_from_epoch_to_epoch() -> None:
    engine = Loop(Population(federation(), {"tiny": TINY}), FedDAFL(**SMALL))
    after = rounds(engine, 3)
    assert [set(s[""].own[1][0].tolist()) for s in after] == [{0}, {3}, {6}]  # steps of Adam, of each tensor
    assert [int(s[""].student.buffers["bn1.num_batches_tracked"]) for s in after] == [0, 3, 6]
    pool = engine.pool("images")
    assert [made.x.shape for made in pool] == [(8, 3, 8, 8)] * 2
    assert all(torch.equal(made.y, made.said) or (made.y != made.said).sum() <= 1 for made in pool)
    history = one_shot(FedDAFL(**SMALL), TINY, rounds=2)
    assert {"server_loss", "server_oh", "server_ie", "server_a", "server_teachers"} <= set(history.metrics[2])


def test_two_optimisers_at_once_are_each_what_it_is_alone() -> None:
    a, b = [torch.ones(3), torch.full((2,), 2.0)], [torch.full((4,), 3.0)]
    for second in (SGD(lr=0.5), SGD(lr=0.5, momentum=0.9), Adam(lr=0.2)):
        first = Adam(lr=0.1, clip=0.5)
        both = Both(first=first, second=second, count=2)
        mine = [t.clone() for t in (*a, *b)]
        state, alone = both.init(mine), [t.clone() for t in (*a, *b)]
        states = first.init(alone[:2]), second.init(alone[2:])
        for step in range(3):
            grads = [torch.full_like(t, step + 1.0) for t in alone]
            both.step_(mine, grads, state, torch.ones((), dtype=torch.float64))
            for one, part, moments in ((first, slice(0, 2), states[0]), (second, slice(2, 3), states[1])):
                one.step_(alone[part], grads[part], moments, torch.tensor(one.lr, dtype=torch.float64))
        for got, want in zip(mine, alone, strict=True):
            torch.testing.assert_close(got, want)


def test_a_network_without_features_is_refused() -> None:
    bare = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), name="bare")
    with pytest.raises(SettingError, match=r"looks at the features of a network, and bare has no method features\(x\)"):
        one_shot(FedDAFL(**SMALL), bare, rounds=1)
