"""APFL (Deng): each client mixes a model of its own with the global one, by a share that it may learn.

Deng, Kamani, Mahdavi. *Adaptive Personalized Federated Learning.* 2020. https://arxiv.org/abs/2003.13461, Algorithm 1.
It is not the APFL of Ni, Shen and Zhang (`apfl_ni`): the name `apfl` alone is refused with the question which is meant.

    mixture      v' = alpha_k v_k + (1 - alpha_k) w_k                  of parameters, not of outputs
    local step   w_k <- w_k - lr grad F_k(w_k)
                 v_k <- v_k - lr alpha_k grad F_k(v')                  alpha_k by the chain rule
                 alpha_k <- alpha_k - lr_alpha <v_k - w_k, grad F_k(v')>, kept within [0, 1]
    server       w <- mean_k w_k                                       over the clients that answered

A step takes all three at the old w_k, v_k and alpha_k, on one batch. w_k begins at w in every round, v_k goes on from
the client's last round, at first from the common initial model. The run's optimiser moves w_k and v_k (`clip` counts
both as one); alpha_k has neither momentum nor weight decay. `train_loss` is that of w_k. A client is evaluated by
alpha_k v_k + (1 - alpha_k) w with the newest w, and the BatchNorm statistics of its own mixtures.

Down: w. Up: w_k. Kept by the client: v_k and alpha_k. alpha_init = 0 with `alpha_update = "never"` and `aggregation =
"samples"` is FedAvg.

Differences from the paper: momentum and weight decay are allowed locally.

Differences from the authors' code (FedTorch): it mixes outputs, adds 0.02 alpha_k to the gradient of alpha_k, and takes
that after the steps of w_k and v_k.

Differences from public code (docs/public-defects.md): FL-bench mixes outputs, too; PFLlib trains v_k on its own loss,
and moves alpha_k as FedTorch does; FedJAX leaves alpha_k out of the step of v_k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

import fedloom as fl


@fl.state
class Own:
    v: fl.Weights
    alpha: Tensor  # []


@dataclass(frozen=True, kw_only=True)
class APFLDeng(fl.Algorithm[fl.Weights, Own]):
    """Mix a personal model with the global one."""

    alpha_init: Annotated[float, fl.Ge(0), fl.Le(1), fl.Grid(0.25, 0.5, 0.75)] = 0.5
    """Share of v_k in the mixture at first; 0.5 is the default of the authors' code, the grid ours."""
    alpha_update: Literal["never", "every_step", "first_step_of_round"] = "never"
    """Steps that move alpha_k. `never`: it stays at `alpha_init`, as in Algorithm 1, and by default in the authors'
    code. `first_step_of_round`: one in each round, as in that code where alpha is adaptive; or `every_step`."""
    lr_alpha: fl.NonNegative | None = None
    """Learning rate of alpha_k. None: that of the round, as in the authors' code."""
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, the paper's, or its number of `samples`."""

    neutral = {"alpha_init": 0, "alpha_update": "never"}

    requires = fl.Requires(optimisers=2)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> Own:
        like = next(iter(initial.params.values()))
        return Own(v=initial, alpha=like.new_tensor(self.alpha_init))

    @fl.on_client
    def local_update(self, client: fl.Client[Own], w: fl.Weights) -> tuple[Own, fl.Weighted[fl.Weights]]:
        task_loss, first_alone = client.loss, self.alpha_update == "first_step_of_round"

        def loss(w: fl.Weights, batch: fl.Batch, own: tuple[fl.Weights, fl.Weights], lr_alpha: Tensor) -> fl.BatchLoss:
            v, alpha = own[0], own[1].buffers["alpha"]
            mixture = fl.Weights(mixed(v.params, w.params, alpha), v.buffers)
            g, _, moved = fl.batch_gradient(task_loss, mixture, batch)  # grad F_k(v')
            pull, found = alpha * g.dot(v.params), task_loss(w, batch)  # the gradient of pull at v_k is alpha g
            if self.alpha_update != "never":
                new = (alpha - lr_alpha.type_as(alpha) * (v.params - w.params).dot(g)).clamp(0, 1)
                alpha = torch.where(batch.progress == 0, new, alpha) if first_alone else new
            own = fl.Weights(v.params, moved), fl.Weights({}, {"alpha": alpha})
            return fl.replace(found + (pull - pull.detach()), beside=own)

        own = client.state.v, fl.Weights({}, {"alpha": client.state.alpha})  # a buffer: no optimiser moves it
        lr_alpha = client.lr if self.lr_alpha is None else torch.full_like(client.lr, self.lr_alpha)
        w_k, (v, rest) = self.train_beside(client, w, own, lr_alpha, loss=loss)
        return Own(v=v, alpha=rest.buffers["alpha"]), client.weigh(w_k, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def personal(self, client: fl.Client[Own], sent: fl.Weights) -> fl.Weights:
        v, alpha = client.state.v, client.state.alpha
        return fl.Weights(mixed(v.params, sent.params, alpha), v.buffers)

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


def mixed(v: fl.Params, w: fl.Params, alpha: Tensor) -> fl.Params:
    """Return alpha v + (1 - alpha) w."""
    return alpha * v + (1 - alpha) * w
