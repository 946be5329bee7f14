"""Clients that say given logits of public examples, and what a round makes of them: golden numbers on every engine."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from conftest import golden
from torch import nn

from fedloom.core.algorithm import Algorithm
from fedloom.core.local_training import Digest, Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights, replace
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.testing.messages import Messages

ENGINES = [Loop, Stacked, Messages]
LOCAL = Local(epochs=1, batch_size=64, optimiser=SGD(lr=0.1))


def whole(count: int) -> Digest:
    """One step of rate 1 on all public examples."""
    return Digest(epochs=1, batch_size=count, optimiser=SGD(lr=1.0))


def after_a_round(
    algorithm: Algorithm[Any, Any], logits: Any, engine: Any, server: Any = None, sizes: Any = None, asked: Any = None
) -> tuple[Any, Any]:
    """What clients say after a round that begins with `logits` [N, P, C] of P public examples, and the server state.

    A network is a table: a row of C logits for each public example, which is a unit vector, and one for the examples
    that clients train on. So local training does not move what is said of public ones. `sizes`: of clients, one each.
    `asked`: who of them is, everybody.
    """
    n, p, c = logits.shape
    sizes = np.ones(n, np.int64) if sizes is None else np.asarray(sizes, np.int64)
    ends = np.cumsum([0, *sizes])
    own = np.tile(np.eye(p + 1)[p], (int(ends[-1]), 1))
    federation = Federation(
        train=from_arrays(own, np.zeros(len(own), np.int64), num_classes=c),
        partition=Partition.from_lists([np.arange(a, b) for a, b in itertools.pairwise(ends)]),
        public=from_arrays(np.eye(p + 1)[:p], np.zeros(p, np.int64), num_classes=c),
    )
    model = Model(lambda: nn.Linear(p + 1, c, bias=False), name="table")
    population = Population(federation, {"table": model}, dtype=torch.float64)
    run = engine(population, algorithm)
    for k in range(n):
        table = F.pad(torch.as_tensor(logits[k], dtype=torch.float64), (0, 0, 0, 1))
        begun = Weights(params={"weight": table.T.contiguous()})
        fresh = run.fresh(k)  # a state that is weights, or has weights
        run.states[k] = begun if isinstance(fresh, Weights) else replace(fresh, weights=begun)
    end = run.round(run.init() if server is None else {"": server}, asked or range(n), 0)[""]
    models = run.personal({"": end}, range(n), 0)
    said = np.stack([models[k].params["weight"].T[:p].numpy() for k in range(n)])
    run.close()
    return said, end


def taught(before: Any, after: Any, tau: float = 1.0) -> Any:
    """The probabilities p_n from which a step of rate 1 on KL(p_n || softmax(z / tau)) led to `after`, [N, P, C].

    Its gradient at z is (softmax(z / tau) - p_n) / (tau P).
    """
    soft = F.softmax(torch.as_tensor(before, dtype=torch.float64) / tau, -1).numpy()
    return soft + tau * before.shape[1] * (after - before)


def mixed(algorithm: Any, case: str, engine: Any) -> tuple[Any, Any]:
    """What clients learn in a round of a method of KT-pFL's released code, and the golden numbers of that case."""
    g = golden("ktpfl_dense/ktpfl_official_topk_sim")
    logits = np.log(g[f"{case}/soft"].astype(np.float64))
    count = logits.shape[1]
    after, _ = after_a_round(algorithm(local=LOCAL, distill=whole(count), num_public=count), logits, engine)
    return taught(logits, after), g
