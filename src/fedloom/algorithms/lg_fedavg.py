"""LG-FedAvg: representations that stay with each client, under a head that is shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. *Think Locally, Act Globally: Federated Learning with
Local and Global Representations.* 2020. https://arxiv.org/abs/2001.01523, Algorithm 1.

    client       (l_k, g_k): E epochs of SGD on F_k(l_k, g), both together, from the own layers and the head received
    server       g <- mean_k g_k                                                   over the clients that answered

First there may be `pretrain_rounds` of FedAvg, of the same `aggregation` and `buffers`, as in the authors' experiments:
after these every client starts from the lower layers of that model, BatchNorm statistics included, which are sent to it
once, when it is first asked again.

Down: the head; the whole model while pretraining, and once more to each client after it. Up: the head; the whole model
while pretraining. Kept by the client: its lower layers. `global_modules = "*"` is FedAvg with
`aggregation = "uniform"`. Differences from the paper: no adversarial term (its eq. 4). From the authors' code: clients
are judged by their newest model, not by the one that was best on their test examples; with their network for CIFAR-10
that code shares the convolutions and not the head, which is `global_modules = "conv*"` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.averaging import Averaging
from fedloom.core.choices import WholeNumber
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Maybe, Weighted, Weights


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Averaging[Maybe[Weights]]):
    """Share the layers near the output, and keep representations local."""

    aggregation: Aggregation = "uniform"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""
    global_modules: str = "last:2"
    """Tensors that are shared: glob patterns of their names, or `last:N` for the last N layers, separated by spaces."""
    pretrain_rounds: WholeNumber = 0
    """Rounds of FedAvg before."""
    shared: str = field(init=False, default="*")

    neutral: ClassVar[Mapping[str, Any]] = {"global_modules": "*", "pretrain_rounds": 0}

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", self.global_modules)
        super().__post_init__()
        if self.pretrain_rounds and self.buffers == "local":
            raise SettingError(
                f"LG-FedAvg's clients start from the pretrained model, and with buffers = 'local' it has no BatchNorm "
                f"statistics, got pretrain_rounds = {self.pretrain_rounds}: set buffers = 'average' or 'server', or "
                "pretrain_rounds = 0"
            )

    def init_client(self, initial: Weights, model: Model, key: int) -> Maybe[Weights]:
        own = self.own(initial)
        return Maybe.none(own) if self.pretrain_rounds else Maybe.some(own)

    def init_rows(self, initial: Weights, model: Model, *, num_clients: int) -> Mapping[str, Any]:
        return {"has_layers": torch.zeros((), dtype=torch.bool)} if self.pretrain_rounds else {}

    def received(self, client: Client[Maybe[Weights]], sent: Weights) -> Weights:
        own = client.state.otherwise(self.own(sent)) if self.pretrain_rounds else client.state.value
        return client.model.arrange(sent.merge(own))

    def answer(self, client: Client[Maybe[Weights]], w_k: Weights) -> tuple[Maybe[Weights], Weighted[Weights]]:
        _, upload = super().answer(client, w_k)
        return Maybe.where(client.round >= self.pretrain_rounds, self.own(w_k)), upload

    @on_client
    def pretrain(self, client: Client[Maybe[Weights]], w: Weights) -> tuple[Maybe[Weights], Weighted[Weights]]:
        w_k = self.train(client, w, loss=client.loss)
        kept, upload = self.answer(client, w_k)
        own = self.own(w_k)
        rest = Weights(params=own.params) if self.buffers == "server" else own  # as `up` has it of the shared part
        return kept, client.weigh(upload.value.merge(rest), self.aggregation)

    @on_client
    def local_update(
        self, client: Client[Maybe[Weights]], head: Weights, layers: Maybe[Weights] | None = None
    ) -> tuple[Maybe[Weights], Weighted[Weights]]:
        sent = head if layers is None else head.merge(layers.value)
        w_k = self.train(client, self.received(client, sent), loss=client.loss)
        return self.answer(client, w_k)

    def round(self, w: Weights, cohort: Cohort) -> Weights:
        if cohort.round < self.pretrain_rounds:
            return w.merge(cohort.reduce(self.pretrain, w).mean)
        if self.pretrain_rounds == 0:
            return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
        new = ~cohort.rows("has_layers")  # w keeps the lower layers with which pretraining ended
        layers = tree.map_tree(lambda t: t.expand(len(new), *t.shape), self.own(w))
        found = cohort.reduce(self.local_update, self.down(w), scatter=(Maybe.where(new, layers),))
        found.cohort.keep("has_layers", torch.ones_like(found.cohort.ids, dtype=torch.bool))
        return w.merge(found.mean)

    def judged_with(self, server: Weights, model: Model) -> Weights:
        return server if self.pretrain_rounds else self.down(server)

    def has_personal(self, state: Maybe[Weights]) -> Tensor:
        return state.present
