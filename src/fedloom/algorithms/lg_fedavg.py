"""LG-FedAvg: representations that stay with each client, under a head that is shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. *Think Locally, Act Globally: Federated Learning with
Local and Global Representations.* 2020. https://arxiv.org/abs/2001.01523, Algorithm 1.

    client       (l_k, g_k): E epochs of SGD on F_k(l_k, g), both together, from the own layers and the head received
    server       g <- mean_k g_k                                                   over the clients that answered

Down: the head; the whole model while pretraining, and once more to each client after it. Up: the head; the whole model
while pretraining. Kept by the client: its lower layers. `global_modules = "*"` is FedAvg with `aggregation =
"uniform"`.

Differences from the paper: no adversarial term (its eq. 4).

Differences from the authors' code: clients are evaluated by their newest model, not by the one that was best on their
test examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(fl.Averaging[fl.Maybe[fl.Weights]]):
    """Share the layers near the output, and keep representations local."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: its number of `samples`, or `uniform`, as in the authors' code."""
    global_modules: str = "last:2"
    """Tensors that are shared: glob patterns of their names, or `last:N` for the last N layers, separated by spaces.
    The authors' script for CIFAR-10 shares the convolutions and not the head, `conv*`. `manifest.json` lists the
    tensors under `shared`."""
    pretrain_rounds: fl.WholeNumber = 0
    """Rounds of FedAvg before, with the same `aggregation` and `buffers`; the authors have 400 on MNIST and 1,200 on
    CIFAR-10. The bits are those of FedAvg, BatchNorm statistics included. After them, every client starts from the
    lower layers of that model, which are sent to it once, when it is first selected again; until then it is evaluated
    by them under the newest head. `buffers = "local"` is refused there: the model to start from would have no
    statistics."""
    shared: str = field(init=False, default="*")

    neutral: ClassVar[Mapping[str, Any]] = {"global_modules": "*", "pretrain_rounds": 0}

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", self.global_modules)
        super().__post_init__()
        if self.pretrain_rounds and self.buffers == "local":
            raise fl.SettingError(
                f"LG-FedAvg's clients start from the pretrained model, and with buffers = 'local' it has no BatchNorm "
                f"statistics, got pretrain_rounds = {self.pretrain_rounds}: set buffers = 'average' or 'server', or "
                "pretrain_rounds = 0"
            )

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Maybe[fl.Weights]:
        own = self.own(initial)
        return fl.Maybe.none(own) if self.pretrain_rounds else fl.Maybe.some(own)

    def init_rows(self, initial: fl.Weights, model: fl.Model, *, num_clients: int) -> Mapping[str, Any]:
        return {"has_layers": torch.zeros((), dtype=torch.bool)} if self.pretrain_rounds else {}

    def received(self, client: fl.Client[fl.Maybe[fl.Weights]], sent: fl.Weights) -> fl.Weights:
        own = client.state.otherwise(self.own(sent)) if self.pretrain_rounds else client.state.value
        return client.model.arrange(sent.merge(own))

    def answer(
        self, client: fl.Client[fl.Maybe[fl.Weights]], w_k: fl.Weights
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        _, upload = super().answer(client, w_k)
        return fl.Maybe.where(client.round >= self.pretrain_rounds, self.own(w_k)), upload

    @fl.on_client
    def pretrain(
        self, client: fl.Client[fl.Maybe[fl.Weights]], w: fl.Weights
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        w_k = self.train(client, w, loss=client.loss)
        kept, upload = self.answer(client, w_k)
        own = self.own(w_k)
        rest = fl.Weights(params=own.params) if self.buffers == "server" else own  # as `up` has it of the shared part
        return kept, client.weigh(upload.value.merge(rest), self.aggregation)

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Maybe[fl.Weights]], head: fl.Weights, layers: fl.Maybe[fl.Weights] | None = None
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        sent = head if layers is None else head.merge(layers.value)
        w_k = self.train(client, self.received(client, sent), loss=client.loss)
        return self.answer(client, w_k)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        if cohort.round < self.pretrain_rounds:
            return w.merge(cohort.reduce(self.pretrain, w).mean)
        if self.pretrain_rounds == 0:
            return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
        new = ~cohort.rows("has_layers")  # w keeps the lower layers with which pretraining ended
        layers = fl.tree.map_tree(lambda t: t.expand(len(new), *t.shape), self.own(w))
        found = cohort.reduce(self.local_update, self.down(w), scatter=(fl.Maybe.where(new, layers),))
        found.cohort.keep("has_layers", torch.ones_like(found.cohort.ids, dtype=torch.bool))
        return w.merge(found.mean)

    def evaluation_payload(self, server: fl.Weights, model: fl.Model) -> fl.Weights:
        w = self.model_of(server)
        return w if self.pretrain_rounds else self.down(w)

    def has_personal(self, state: fl.Maybe[fl.Weights]) -> Tensor:
        return state.present
