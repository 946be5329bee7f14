"""FedDyn: dynamic regularisation, which makes the optima of clients and server agree.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. *Federated Learning Based on Dynamic Regularization.* ICLR
2021. https://arxiv.org/abs/2111.04263, Algorithm 1.

    client   w_k = argmin_u  L_k(u) - <g_k, u> + alpha / 2 ||u - w||^2,     g_k <- g_k - alpha (w_k - w)
    server   h <- h - (alpha / N) sum_k (w_k - w),                          w <- mean_k w_k - h / alpha

g_k becomes the client's gradient at w_k, and h the mean of all clients' g_k. N counts all clients (with this
architecture). The sum and the mean are over those that answered. At the fixed point all w_k equal w, and the g_k are
the gradients there, which add up to h = 0: the optimum, however different the clients are.

Down: the model. Up: the model. Kept by the client: g_k (zero at first). No value of alpha gives FedAvg.

Differences from the paper: the argmin is the run's local training, so g_k is near the gradient only; buffers are
averaged.

Differences from the authors' code: it divides alpha by each client's share of the examples (times N). Here, as in the
paper, all clients count the same.

Differences from the FedNTD authors' code: its mean of w_k is weighted by samples, while h is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import fedloom as fl


@fl.state
class Server:
    w: fl.Weights
    h: fl.Params  # like w.params


@dataclass(frozen=True, kw_only=True)
class FedDyn(fl.Algorithm[Server, fl.Params]):
    """Regularise local training dynamically, so that the optima of clients and server agree."""

    alpha: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.1
    """Weight of the regularisation; 0.1 as in the FedNTD authors' repository. The paper searches 0.001 to 0.1. The
    server's step -h / alpha is large where alpha is small."""

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        w = model.init(key)
        return Server(w=w, h=fl.tree.zeros_like(w.params))

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Params:
        return fl.tree.zeros_like(initial.params)

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Params], w: fl.Weights) -> tuple[fl.Params, fl.Weighted[fl.Weights]]:
        task_loss, g = client.loss, client.state

        def loss(u: fl.Weights, batch: fl.Batch, w: fl.Params, g: fl.Params) -> fl.BatchLoss:
            return task_loss(u, batch) - g.dot(u.params) + self.alpha / 2 * (u.params - w).sq_norm()

        w_k = self.train(client, w, w.params, g, loss=loss)
        return g - self.alpha * (w_k.params - w.params), client.weigh(w_k, "uniform")

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        replies = cohort.reduce(self.local_update, server.w)
        mean, w = replies.mean, server.w
        h = server.h - self.alpha * replies.share * (mean.params - w.params)
        return Server(w=fl.Weights(mean.params - 1 / self.alpha * h, mean.buffers), h=h)

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w
