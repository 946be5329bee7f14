"""Ditto: FedAvg, and beside it a personal model of each client that a proximal term holds near the global one.

Li, Hu, Beirami, Smith. *Ditto: Fair and Robust Federated Learning Through Personalization.* ICML 2021.
https://arxiv.org/abs/2012.04221, Algorithm 1.

    client       v_k: `personal_epochs` of SGD on F_k(v) + lam / 2 ||v - w||^2 from v_k, w as received     (2)
                 w_k: E epochs of SGD on F_k from w
    server       w <- sum_k (n_k / n) w_k                                          over the clients that answered

The two trainings have momentum, BatchNorm statistics and batches of their own, of which a round plans those of w_k
first; the term enters the gradient before momentum. Where `local.steps` is given, v_k takes the share of steps that its
epochs are of `local.epochs`. A client is evaluated by v_k. A round computes about as much as two of FedAvg.

Down: w. Up: w_k. Kept by the client: v_k, at first the common initial model. The server's model is that of FedAvg, bit
for bit, whatever `lam`; with lam = 0 v_k is that of local training.

Differences from the paper: v_k has passes (the paper: s steps); the mean is weighted by samples.

Differences from the authors' code: theirs takes the plain mean, of clients that are drawn by size (`aggregation =
"uniform"` with `sampler = "by_size"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Ditto(fl.Algorithm[fl.Weights, fl.Weights]):
    """Hold a personal model of each client near FedAvg's."""

    lam: Annotated[fl.NonNegative, fl.Grid(0.01, 0.1, 1.0, 10.0)] = 0.1
    """Pull of v_k to w; 0: none. The paper chooses it by data set; default and grid are ours."""
    personal_epochs: fl.Count | None = None
    """Passes over the client's examples that train v_k; none: as many as `local.epochs`."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    requires = fl.Requires(optimisers=2)

    @property
    def training(self) -> fl.Local:
        return self.local.longer(self.personal_epochs or self.local.epochs)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], w: fl.Weights) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        task_loss, batches = client.loss, client.train
        steps = batches.num_steps * self.local.epochs // self.training.epochs  # of w_k; those of v_k follow

        def held(v: fl.Weights, batch: fl.Batch, w: fl.Weights) -> fl.BatchLoss:
            return task_loss(v, batch) + self.lam / 2 * (v.params - w.params).sq_norm()  # (2)

        v_k = self.train(client, client.state, w, loss=held, batches=batches.after(steps), optimiser=1)
        w_k = self.train(client, w, batches=batches.first(steps))  # the last one: its losses are the round's
        return v_k, client.weigh(w_k, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        mean: fl.Weights = cohort.reduce(self.local_update, w).mean
        return mean

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        return client.state

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
