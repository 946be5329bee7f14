"""FML: each client's own model and a copy of the global one learn from each other; the copies are averaged.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu. *Federated Mutual Learning.* 2020.
https://arxiv.org/abs/2006.16765

    local   theta_k minimises  alpha L_k(theta) + (1 - alpha) KL( p(w) || p(theta) )
    meme    w_k     minimises  beta  L_k(w)     + (1 - beta)  KL( p(theta) || p(w) )
    server  w <- mean_k w_k                                                        over the clients that answered

p are softmax predictions of the batch at hand, each model's in training mode. A step takes both models at their old
values, and each model's prediction is a constant in the other's loss, as in deep mutual learning. w_k begins at w in
every round, and theta_k goes on from the client's last round, at first from the common initial model. The run's
optimiser moves both (`clip` counts them as one); `train_loss` is the sum of both losses. A client is evaluated by
theta_k.

Down: w. Up: w_k. Kept by the client: theta_k. beta = 1 with `aggregation = "samples"` gives the server's model of
FedAvg, beside which theta_k learns.

Differences from the paper: theta_k has the architecture of w; the form of the losses is that of public code, and not
the paper's text.

Differences from the authors' code (ZJU-DAI/Federated-Mutual-Learning, `Trainer.py`), whose losses are these: there each
client's own model begins with weights of its own, and its optimiser keeps its momentum over rounds.

Differences from other public code (docs/public-defects.md): PFLlib's divergence is divided by the number of classes,
and each loss moves both models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FML(fl.Algorithm[fl.Weights, fl.Weights]):
    """Let a personal model and the client's copy of the global one teach each other."""

    alpha: Annotated[float, fl.Ge(0), fl.Le(1), fl.Grid(0.1, 0.5, 0.9)] = 0.5
    """Share of the task's loss in that of the personal model. Default and grid are ours."""
    beta: Annotated[float, fl.Ge(0), fl.Le(1), fl.Grid(0.1, 0.5, 0.9)] = 0.5
    """Share of the task's loss in that of the copy. Default and grid are ours."""
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, or its number of `samples`."""

    requires = fl.Requires(targets=("classes",), logits=2, optimisers=2)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], w: fl.Weights) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def loss(w: fl.Weights, batch: fl.Batch, theta: fl.Weights) -> fl.BatchLoss:
            meme, own = task_loss(w, batch), task_loss(theta, batch)
            to_meme = batch.mean(fl.distillation(own.logits, meme.logits.detach(), 1))
            to_own = batch.mean(fl.distillation(meme.logits, own.logits.detach(), 1))
            local = self.alpha * own + (1 - self.alpha) * to_meme
            return fl.replace(self.beta * meme + (1 - self.beta) * to_own + local.value, beside=own.weights)

        w_k, theta = self.train_beside(client, w, client.state, loss=loss)
        return theta, client.weigh(w_k, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        return client.state

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
