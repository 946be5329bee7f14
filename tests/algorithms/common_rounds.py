"""The network, data and orders of batches of golden/common, and rounds whose clients are watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common_runs import PEOPLE, Net, optimiser, unflatten
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.types import Weights, replace
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.message import Request
from fedloom.engines.round_traffic import Exchange
from small import InOrder

EXACT = {"rtol": 0, "atol": 1e-10}
MODEL = Model(Net, name="net")


@dataclass(frozen=True, eq=False)
class Ordered(InOrder):
    """Clients that visit their examples in the orders of a file; those who take more steps begin again."""

    g: Any = None

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches, round = super().train_batches(request, local), request.call.round
        order = batches.order.clone()
        for i, k in enumerate(request.clients):
            if f"r{round}_k{k}_order" in self.g:  # else it is only evaluated
                real = batches.mask[i]
                order[i][real] = torch.from_numpy(np.resize(self.g[f"r{round}_k{k}_order"], int(real.sum())))
        return replace(batches, order=order)


def examples(g: Mapping[str, Any], k: int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(g[f"data_x{k}"]), torch.from_numpy(g[f"data_y{k}"])


def step_of(g: Mapping[str, Any], r: int, k: int, s: int) -> tuple[Tensor, Tensor]:
    """The examples of step s of a client in a round."""
    size, order = int(g["batch_size"]), g[f"r{r}_k{k}_order"]
    epoch, at = divmod(s, -(-order.shape[1] // size))
    rows = torch.from_numpy(order[epoch, at * size : (at + 1) * size])
    x, y = examples(g, k)
    return x[rows], y[rows]


def population_of(g: Mapping[str, Any]) -> Ordered:
    x, y = (torch.cat(parts).numpy() for parts in zip(*(examples(g, k) for k in PEOPLE), strict=True))
    ends = np.cumsum([0, *g["sizes"]])
    partition = Partition(indptr=ends, indices=np.arange(ends[-1]))
    return Ordered(Federation(from_arrays(x, y, num_classes=4), partition), {"net": MODEL}, dtype=torch.float64, g=g)


def local_of(g: Mapping[str, Any], steps: int | None = None) -> Local:
    epochs, size = int(g["local_epochs"]), int(g["batch_size"])
    return Local(epochs=epochs, steps=steps, batch_size=size, optimiser=optimiser(g))


def weights_of(g: Mapping[str, Any], vector: Any) -> Weights:
    """A whole model from a vector in the file's layout."""
    found = unflatten(g, vector)
    return Weights(params={n: found[n] for n in MODEL.params})


def sampled(g: Mapping[str, Any], r: int) -> list[int]:
    return [int(k) for k in g[f"r{r}_sampled"]]


def rounds(g: Mapping[str, Any]) -> range:
    return range(int(g["n_rounds"]))


def watched(run: Any) -> dict[int, Exchange]:
    """Of each client its newest exchange, from now on."""
    seen: dict[int, Exchange] = {}
    run.watch = lambda exchange: seen.update({exchange.client: exchange})
    return seen


def evaluated(g: Mapping[str, Any], k: int, weights: Weights) -> tuple[float, float]:
    """Loss and accuracy of a model on a client's data."""
    x, y = examples(g, k)
    logits = MODEL(weights, x)
    return float(F.cross_entropy(logits, y)), float((logits.argmax(1) == y).double().mean())


def assert_evaluated(g: Mapping[str, Any], run: Any, server: Any, r: int) -> None:
    """Loss and accuracy of the models by which all clients are evaluated after a round."""
    for k, weights in run.personal(server, PEOPLE, r).items():
        want = g[f"r{r}_eval_loss"][k], g[f"r{r}_eval_acc"][k]
        np.testing.assert_allclose(evaluated(g, k, weights), want, **EXACT)


def begun(engine: Any, algorithm: Algorithm[Any, Any], g: Mapping[str, Any]) -> Any:
    """An engine with the population of a file."""
    return engine(population_of(g), algorithm)
