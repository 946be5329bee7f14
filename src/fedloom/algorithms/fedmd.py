"""FedMD: clients of any architecture that fit the mean of all logits on public examples.

Li, Wang. *FedMD: Heterogenous Federated Learning via Model Distillation.* NeurIPS 2019 workshop.
https://arxiv.org/abs/1910.03581, Algorithm 1.

    phase 0      w_n: trained on the public examples with their labels, then on the client's own
    communicate  z_n: logits of P public examples, drawn anew in each round
    server       z = (1/N) sum_n z_n
    digest       w_n <- minimise mean |z_w - z| on these examples
    revisit      w_n <- E epochs on the client's own examples

Phase 0 takes place in the first round in which a client is selected. With `public_epochs = 0` and `private_passes = 0`
there is none, and public examples need no labels.

Down: the public examples' indices [P], with each exchange, and z [P, C]. Up: z_n [P, C]. Kept by the client: its model,
and whether it has been through phase 0. There is no value that gives FedAvg (nothing is averaged).

Differences from the paper: the consensus is uniform, as in the authors' code (the paper allows weights).

Differences from the authors' code: phase 0 has fixed lengths (theirs stops early, after at most 20 and 25 epochs);
Adam's moments are new in each round (theirs last from round to round); public subsets are drawn at random and not by
class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self

import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.transfer import PUBLIC, drawn, learnt
from fedloom.core.losses import Loss
from fedloom.core.random import fold_in, uniform


@fl.state
class FedMDClient:
    weights: fl.Weights
    begun: Tensor  # [] bool: whether it has been through phase 0


@dataclass(frozen=True, kw_only=True)
class FedMD(fl.Algorithm[tuple[()], FedMDClient]):
    """Let clients learn the mean of their predictions on public examples."""

    distill: fl.Digest = field(default_factory=lambda: fl.Digest(epochs=1, batch_size=128, optimiser=fl.Adam(lr=1e-3)))
    """Passes, batch size and optimiser on public examples, by default those of the authors' code for CIFAR; of phase 0
    all but the passes."""
    num_public: fl.Count = 5000
    """Public examples of a round, P; all where there are fewer. 5,000 is in the authors' code for CIFAR."""
    public_epochs: fl.WholeNumber = 20
    """Passes over all public examples with labels (`data.public_labels`) in phase 0; 0: none."""
    private_passes: fl.WholeNumber = 2
    """Local trainings (each of E epochs) that follow in phase 0."""

    requires = fl.Requires(mixed=True, public=True)

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        if self.public_epochs and not federation.public_labels:
            raise fl.SettingError(
                f"phase 0 of FedMD trains on public examples with their labels, for {self.public_epochs} epochs, and "
                "those of this federation have none: set data.public_labels (Federation(public_labels=True)) where the "
                "public examples are of the clients' classes, or public_epochs = 0"
            )
        if not federation.train.y.is_floating_point() and federation.train.y.ndim > 1:
            raise fl.SettingError(
                f"FedMD compares one answer to each public example, got one for each of {federation.train.y.shape[1]} "
                "places of a sequence: take an algorithm that needs only a loss, such as FedAvg"
            )
        return super().bind(federation, models)

    def init(self, model: Mapping[str, fl.Model], key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> FedMDClient:
        return FedMDClient(weights=model.init(key), begun=torch.zeros((), dtype=torch.bool))

    @fl.on_client
    def communicate(
        self, client: fl.Client[FedMDClient], public: Annotated[Tensor, "control"]
    ) -> tuple[FedMDClient, Annotated[Tensor, "predictions"]]:
        weights = self.phase_0(client)
        batches = client.public.rows(public, self.distill.batch_size)
        done = FedMDClient(weights=weights, begun=torch.ones_like(client.state.begun))
        return done, batches.predict(client.model, weights)

    def phase_0(self, client: fl.Client[FedMDClient]) -> fl.Weights:
        """Return the model after phase 0, which has no steps for a client that has been through it."""
        weights, rate = client.state.weights, torch.full_like(client.lr, self.distill.optimiser.lr)

        def once(batches: fl.Batches) -> fl.Batches:
            return batches.first(torch.where(client.state.begun, 0, batches.num_steps))

        count, n = client.public.batches.x.shape[:1], self.public_epochs
        if n:  # one run of the optimiser, over orders of the client's own
            orders = [uniform(client.key, epoch, count).argsort(stable=True) for epoch in range(n)]
            stored = client.public.rows(torch.arange(count[0], device=orders[0].device), self.distill.batch_size)
            batches = once(stored.passes(torch.stack(orders), fold_in(client.key, PUBLIC)))
            weights = fl.minimise(client.loss, weights, batches, self.distill.optimiser, lr=rate)
        for _ in range(self.private_passes):
            weights = self.train(client, weights, batches=once(client.train))
        return weights

    @fl.on_client
    def local_update(
        self,
        client: fl.Client[FedMDClient],
        public: Annotated[Tensor, "control"],
        consensus: Annotated[Tensor, "predictions"],
    ) -> tuple[FedMDClient, tuple[()]]:
        """Digest, then revisit."""
        loss = absolute_error_loss(client.model)
        weights = learnt(client, client.state.weights, loss, public, consensus, self.distill)
        return fl.replace(client.state, weights=self.train(client, weights)), ()

    def round(self, server: tuple[()], cohort: fl.Cohort) -> tuple[()]:
        public = drawn(cohort, self.num_public)
        replies = cohort.gather(self.communicate, public)
        replies.cohort.gather(self.local_update, public, replies.value.mean(0), at_least=0)
        return server

    def personal(self, client: fl.Client[FedMDClient], sent: tuple[()]) -> fl.Weights:
        return client.state.weights


def absolute_error_loss(model: fl.Model) -> Loss:
    """mean_c |logits - batch.target|, mean over the batch; `batch.target`: [B, C] logits."""

    def loss(weights: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
        logits, buffers = model.train(weights, batch)
        value = batch.mean((logits - batch.target).abs().mean(-1))
        return fl.BatchLoss(value=value, logits=logits, weights=fl.replace(weights, buffers=buffers))

    return loss
