"""The networks in PyTorch, and careful local training of one client, for all programs that let their user write it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from peer_work import Case, Work, layers
from torch import Tensor, nn


def network(case: Case) -> nn.Sequential:
    """Return LeNet, PFLlib's CNN or logistic regression; pooling before ReLU gives the same values for less."""
    shapes = layers(case.network, case.shape)[::2]
    out: list[nn.Module] = []
    for shape in (s for s in shapes if len(s) == 4):
        out += [nn.Conv2d(shape[1], shape[0], 5), nn.MaxPool2d(2), nn.ReLU()]
    out.append(nn.Flatten())
    dense = [s for s in shapes if len(s) == 2]
    for shape, _ in pairwise(dense):
        out += [nn.Linear(shape[1], shape[0]), nn.ReLU()]
    return nn.Sequential(*out, nn.Linear(dense[-1][1], dense[-1][0]))


@torch.no_grad()
def load(module: nn.Module, parameters: Iterable[np.ndarray | Tensor]) -> None:
    for mine, given in zip(module.parameters(), parameters, strict=True):
        mine.copy_(torch.as_tensor(given))


def parameters_of(module: nn.Module) -> list[np.ndarray]:
    return [p.detach().contiguous().numpy() for p in module.parameters()]


def resident(work: Work) -> tuple[Tensor, Tensor]:
    """Return all examples as floats, images channels_last, and labels."""
    x, y = torch.from_numpy(work.x), torch.from_numpy(work.y)
    return (x.flatten(1) if work.case.network == "logistic" else x.contiguous(memory_format=torch.channels_last)), y


def warm_up() -> None:
    """Have PyTorch import what an optimiser's first step imports (seconds), before processes begin and clocks run."""
    module = nn.Linear(1, 1)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(1, 1)).sum().backward()
    optimiser.step()


@functools.cache
def held(folder: str) -> tuple[Work, nn.Sequential, Tensor, Tensor]:
    """Return what a process keeps between its clients: the work, a network, `resident` examples."""
    work = Work(folder)
    warm_up()
    module = network(work.case)
    if work.case.network != "logistic":
        module = module.to(memory_format=torch.channels_last)
    return work, module, *resident(work)


def train(module: nn.Module, x: Tensor, y: Tensor, case: Case) -> None:
    """Train on one client's examples: resident tensors, fused SGD, every epoch in a new order."""
    optimiser = torch.optim.SGD(module.parameters(), lr=case.lr, fused=True)
    for _ in range(case.epochs):
        for batch in torch.randperm(len(x)).split(case.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()


@torch.no_grad()
def train_stack(w: Tensor, b: Tensor, x: Tensor, y: Tensor, case: Case) -> None:
    """Train K logistic regressions at once by the formula of their gradient.

    w: (K, 10, I), b: (K, 10), x: (K, N, I), y: (K, N); w and b are changed.
    """
    clients, size, features = x.shape
    flat, labels, offsets = (
        x.reshape(-1, features),
        F.one_hot(y, 10).float().reshape(-1, 10),
        size * torch.arange(clients),
    )
    for _ in range(case.epochs):
        order = torch.rand(clients, size).argsort(1) + offsets[:, None]
        for batch in order.split(case.batch_size, 1):
            width = batch.shape[1]
            rows = batch.reshape(-1)
            a = flat.index_select(0, rows).view(clients, width, features)
            error = torch.softmax(torch.baddbmm(b[:, None], a, w.mT), 2).sub_(
                labels.index_select(0, rows).view(clients, width, 10)
            )
            w.baddbmm_(error.mT, a, alpha=-case.lr / width)
            b.sub_(error.sum(1), alpha=case.lr / width)


def loss_of(case: Case, parameters: Sequence[np.ndarray], x: Tensor, y: Tensor) -> float:
    """Return the mean loss over these examples."""
    module = network(case)
    load(module, parameters)
    with torch.no_grad():
        return float(F.cross_entropy(module(x), y))
