"""FML: whole rounds in plain PyTorch, each model a constant in the other's loss, and shares of 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain_training import DATA, LOCAL, SIZES, Tensors, assert_rounds, examples, mean, network

from fedloom.algorithms import FML, FedAvg, LocalOnly
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages
from small import assert_params, clients_of

ENGINES = [Loop, Stacked, Messages]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("alpha", "beta", "aggregation"), [(0.3, 0.8, "uniform"), (0.9, 0.1, "samples")])
def test_rounds(alpha: float, beta: float, aggregation: Any, engine: Any) -> None:
    own: dict[int, Tensors] = {}

    def client(w: Tensors, k: int) -> Tensors:
        meme, local, (x, y) = network(w), network(own.get(k, own[-1])), examples(k)
        optimisers = [torch.optim.SGD(n.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01) for n in (meme, local)]
        for rows in [*torch.arange(len(y)).split(4)] * 2:
            z, u = meme(x[rows]), local(x[rows])
            p, q = z.softmax(1).detach(), u.softmax(1).detach()
            of_local = (
                alpha * F.cross_entropy(u, y[rows]) + (1 - alpha) * (p * (p.log() - u.log_softmax(1))).sum(1).mean()
            )
            of_meme = beta * F.cross_entropy(z, y[rows]) + (1 - beta) * (q * (q.log() - z.log_softmax(1))).sum(1).mean()
            for optimiser, loss in zip(optimisers, (of_meme, of_local), strict=True):
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        own[k] = {n: p.detach() for n, p in local.named_parameters()}
        return {n: p.detach() for n, p in meme.named_parameters()}

    def round(w: Tensors, cohort: Any) -> Tensors:
        own.setdefault(-1, w)  # the common initial model
        counts = [SIZES[k] if aggregation == "samples" else 1 for k in cohort]
        return mean([client(w, k) for k in cohort], counts)

    assert_rounds(engine, FML(alpha=alpha, beta=beta, aggregation=aggregation, local=LOCAL), round)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_shares_of_1_are_fedavg_and_local_training(engine: Any) -> None:
    """A model that does not listen learns as if it were alone, and clients are evaluated by their own."""
    alone = FML(alpha=1.0, beta=1.0, aggregation="samples", local=LOCAL)
    runs = [engine(clients_of(DATA), a) for a in (alone, FedAvg(local=LOCAL), LocalOnly(local=LOCAL))]
    servers = [run.init() for run in runs]
    for t, cohort in enumerate([(0, 1), (1, 2)]):
        servers = [run.round(server, cohort, t) for run, server in zip(runs, servers, strict=True)]
    assert_params(servers[0]["tiny"], servers[1]["tiny"])
    evaluated, local = (runs[i].personal(servers[i], (0, 1, 2), 2) for i in (0, 2))
    for k in (0, 1, 2):
        assert_params(evaluated[k], local[k])


def test_a_share_is_at_most_1() -> None:
    with pytest.raises(SettingError, match=r"beta must be >= 0 and <= 1, got 1\.5"):
        FML(beta=1.5)
