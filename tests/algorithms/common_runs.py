"""Whole runs of golden/common: its networks, orders and conventions, engines beside its numbers, and the same in plain
PyTorch, for values of its keys that no stored file has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core import tree
from fedloom.core.batches import Batches
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.types import Weights, replace
from fedloom.data import Federation, Partition, from_arrays
from fedloom.engines.engine import Engine
from fedloom.engines.message import EVALUATING, Call, Request
from small import InOrder

PEOPLE = range(4)
Golden = dict[str, Any]


class Net(nn.Module):
    """golden/common/README.md, conventions: the network of all but FedBN."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        self.body.fc1, self.body.fc2 = nn.Linear(6, 7), nn.Linear(7, 5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body.fc2(torch.tanh(self.body.fc1(x)))))


class FedBNNet(nn.Module):
    """The same of FedBN a."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.fc2 = nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.bn1(self.fc1(x))))


class FedBNConv(nn.Module):
    """The same of FedBN b."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.fc1 = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(F.avg_pool2d(F.relu(self.bn1(self.conv1(x))), 2).flatten(1))


@dataclass(frozen=True, eq=False)
class StoredOrders(InOrder):
    """Clients that visit their examples in the orders of a file: one after the other those that `orders` names."""

    g: Any = None
    orders: tuple[str, ...] = ("order",)

    def train_batches(self, request: Request, local: Local) -> Batches:
        batches = super().train_batches(request, local)
        evaluated = request.call.exchange == EVALUATING
        round, names = ("F", ("order",)) if evaluated else (request.call.round, self.orders)
        order = batches.order.clone()
        for i, k in enumerate(request.clients):
            rows = [self.g[f"r{round}_k{k}_{name}"].ravel() for name in names]
            order[i][batches.mask[i]] = torch.from_numpy(np.concatenate(rows))
        return replace(batches, order=order)


def optimiser(g: Golden) -> SGD:
    return SGD(lr=float(g["lr"]), momentum=float(g["momentum"]), weight_decay=float(g["weight_decay"]))


def local(g: Golden, epochs: str = "local_epochs") -> Local:
    return Local(epochs=int(g[epochs]), batch_size=int(g["batch_size"]), optimiser=optimiser(g))


def unflatten(g: Golden, vector: Any) -> dict[str, Tensor]:
    """A vector of the whole model as tensors by name."""
    shapes = [tuple(int(n) for n in str(shape).split("x")) for shape in g["layout_shapes"]]
    parts = np.split(vector, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    named = zip(g["layout_names"], parts, shapes, strict=True)
    return {str(name): torch.from_numpy(part.copy()).reshape(shape) for name, part, shape in named}


def flatten(tensors: Mapping[str, Tensor]) -> Any:
    return torch.cat([t.detach().flatten() for t in tensors.values()]).numpy()


def of_head(weights: Weights) -> dict[str, Tensor]:
    """The tensors of the last layer of `Net`."""
    return {n: t for n, t in weights.params.items() if n.startswith("head.")}


@dataclass
class Followed:
    """An engine with a file's clients, initial model and initial states, and what its clients have last sent."""

    g: Golden
    run: Engine
    model: Model
    server: dict[str, Any]
    sent: dict[int, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, g: Golden, engine: Any, algorithm: Any, build: Callable[[], nn.Module], orders: Sequence[str] = ("order",)
    ) -> Followed:
        x, y = (np.concatenate([g[f"data_{n}{k}"] for k in PEOPLE]) for n in "xy")
        ends = np.cumsum([0, *g["sizes"]])
        federation = Federation(
            train=from_arrays(x, y, num_classes=4), partition=Partition(indptr=ends, indices=np.arange(ends[-1]))
        )
        model = Model(build, name="net")
        people = StoredOrders(federation, {"net": model}, dtype=torch.float64, g=g, orders=tuple(orders))
        run = engine(people, algorithm)
        like, start = run.init()["net"], unflatten(g, g["init"])
        begun = Weights(
            params={n: start[n] for n in like.params}, buffers={n: start.get(n, t) for n, t in like.buffers.items()}
        )
        for k in PEOPLE:
            run.states[k] = run.algorithm.init_client(begun, model, 0)
        made = cls(g, run, model, {"net": begun})
        run.watch = lambda exchange: made.sent.update({exchange.client: exchange})
        return made

    def round(self, r: int, losses: Sequence[Sequence[str]] = (("losses",),)) -> None:
        """Compute a round; uploads, shared part and losses of each training are those of the file.

        `losses`: of each training of a client, in the order of computing, the keys whose sum its losses are.
        """
        g = self.g
        sampled = [int(k) for k in g[f"r{r}_sampled"]]
        self.server = self.run.round(self.server, sampled, r)
        for k in sampled:
            upload = self.sent[k].upload.value
            close(flatten(upload.params), g[f"r{r}_k{k}_upload"])
            assert not upload.buffers
            for found, names in zip(self.sent[k].losses, losses, strict=True):
                close(found, sum(g[f"r{r}_k{k}_{name}"] for name in names))
            assert abs(self.run.traffic.losses[k] - float(self.sent[k].losses[-1].mean())) <= 1e-12
        shared = {n: self.server["net"].params[n] for n in self.sent[sampled[0]].upload.value.params}
        close(flatten(shared), g[f"r{r}_global"])

    def evaluated(self, r: int, weights: Mapping[int, Weights]) -> None:
        """Losses and accuracies of these models on all of their clients' examples are those of the file."""
        for k in PEOPLE:
            y = torch.from_numpy(self.g[f"data_y{k}"])
            logits = self.model(weights[k], torch.from_numpy(self.g[f"data_x{k}"]))
            close(F.cross_entropy(logits, y), self.g[f"r{r}_eval_loss"][k])
            close((logits.argmax(1) == y).double().mean(), self.g[f"r{r}_eval_acc"][k])

    def fine_tuned(self, r: int) -> tuple[dict[int, Weights], dict[int, Tensor]]:
        """The models by which clients are evaluated after a round, and the losses of the training that makes each."""
        algorithm, models, losses = self.run.algorithm, dict[int, Weights](), dict[int, Tensor]()
        sent = algorithm.evaluation_payload(self.server["net"], self.model)
        call = Call("personal", (sent,), r, EVALUATING, algorithm.local.rate(r))
        for request, _, answer in self.run.answers(call, [*PEOPLE], lambda clients: ()):
            for i, k in enumerate(request.clients):
                models[k], losses[k] = tree.take(answer.upload, i), answer.losses[0][i, : answer.steps[0][i]]
        return models, losses


def close(found: Any, stored: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), stored, rtol=0, atol=1e-10)
