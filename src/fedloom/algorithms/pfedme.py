"""pFedMe: personalised federated learning with Moreau envelopes; each client's model stays near the global one.

Dinh, Tran, Nguyen. *Personalized Federated Learning with Moreau Envelopes.* NeurIPS 2020.
https://arxiv.org/abs/2006.08848, Algorithm 1.

    min_w  mean_k min_theta F_k(theta) + lam / 2 * ||theta - w||^2
    client  R times, on one batch each:
              K times  theta <- theta - alpha_p (g(theta) + lam (theta - w_k) + mu2 theta)
              then     w_k <- w_k - eta lam (w_k - theta)
    server  w <- (1 - beta) w + beta * mean_k w_k

Both begin at w; theta goes on from batch to batch. R is the number of local batches: `local.steps`, or what
`local.epochs` amounts to (the authors: 20 steps, batches of 20). Of `local`, the batches alone are used: steps are
plain SGD with the learning rates `alpha_p` and `eta`, constant over rounds. `train_loss` is not recorded: theta and w_k
are no descent of one loss.

It is stable only with eta lam < 1 and alpha_p (L + lam + mu2) < 2 for an L-smooth F_k. The loss can but add to the
latter, so eta * lam < 1 and alpha_p * (lam + mu2) < 2 are checked.

Down: the model. Up: w_k. Kept by the client: theta, its personal model. No setting is FedAvg: with R = K = 1 and mu2 =
0 a round is w - eta lam alpha_p g, FedAvg with one step of that rate; with more steps gradients are taken at theta, not
at w_k, unless eta lam = 1, which the paper excludes. A client is evaluated by theta, and one that has none yet by the
newest global model.

Differences from the paper: `mu2`.

Differences from the authors' code: theta is kept by value, where theirs is overwritten by w_k before it is evaluated
(released codes report the accuracy of w_k or of w as that of theta: docs/public-defects.md); clients that are not
selected do not train; every step has a dropout mask of its own, as theirs. BatchNorm statistics follow theta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import fedloom as fl
from fedloom.core.random import fold_in


@dataclass(frozen=True, kw_only=True)
class PFedMe(fl.OwnSteps[fl.Weights, fl.Maybe[fl.Weights]]):
    """Train personal models that a Moreau envelope holds near the client's global one."""

    lam: Annotated[fl.Positive, fl.Grid(5.0, 15.0, 30.0)] = 15.0
    """Pull of theta and w_k to each other; the default is that of the authors' code, the grid ours."""
    K: fl.Count = 5
    """Steps of theta on a batch; the default is that of the authors' code."""
    alpha_p: fl.Positive = 0.09
    """Learning rate of theta; the default is that of the authors' code."""
    eta: Annotated[fl.Positive, fl.Grid(0.005, 0.01, 0.02)] = 0.005
    """Learning rate of w_k; the default is that of the authors' code, the grid ours."""
    mu2: fl.NonNegative = 0.001
    """Weight decay of theta, in the authors' code alone; 0 is the paper."""
    beta: Annotated[fl.Positive, fl.Grid(1.0, 2.0, 4.0)] = 1.0
    """Step of the server towards the clients' mean; the default is that of the authors' code, and 2 their tuned value.
    """
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, the paper's, or its number of `samples`, as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pull, inner = self.eta * self.lam, self.alpha_p * (self.lam + self.mu2)
        if pull >= 1:
            raise fl.SettingError(
                f"pFedMe is stable only with eta * lam < 1, got {self.eta:g} * {self.lam:g} = {pull:g}: "
                f"set eta below {1 / self.lam:.3g}, or lower lam"
            )
        if inner >= 2:
            raise fl.SettingError(
                f"pFedMe is stable only with alpha_p * (lam + mu2) < 2, got {self.alpha_p:g} * ({self.lam:g} + "
                f"{self.mu2:g}) = {inner:g}: set alpha_p below {2 / (self.lam + self.mu2):.3g}, or lower lam"
            )

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Maybe[fl.Weights]:
        return fl.Maybe.none(initial)

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Maybe[fl.Weights]], w: fl.Weights
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def step(carry: tuple[fl.Weights, fl.Params], batch: fl.Batch) -> tuple[fl.Weights, fl.Params]:
            theta, w = carry
            for k in range(self.K):
                again = fl.replace(batch, key=fold_in(batch.key, k))
                g, _, buffers = fl.batch_gradient(task_loss, theta, again)
                pull = g + self.lam * (theta.params - w) + self.mu2 * theta.params
                theta = fl.Weights(theta.params - self.alpha_p * pull, buffers)
            return theta, w - self.eta * self.lam * (w - theta.params)

        theta, w_k = fl.fold(step, (w, w.params), client.train)
        return fl.Maybe.some(theta), client.weigh(fl.Weights(w_k, theta.buffers), self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.towards(cohort.reduce(self.local_update, w).mean, self.beta)

    def personal(self, client: fl.Client[fl.Maybe[fl.Weights]], sent: fl.Weights) -> fl.Weights:
        return client.state.otherwise(sent)

    def has_personal(self, state: fl.Maybe[fl.Weights]) -> Tensor:
        return state.present

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
