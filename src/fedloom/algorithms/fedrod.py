"""FedRoD: a generic head that learns from balanced classes, and a personal head that corrects it on each client.

Chen, Chao. *On Bridging Generic and Personalized Federated Learning for Image Classification.* ICLR 2022.
https://arxiv.org/abs/2107.00778, section 4, with linear personal heads.

    z, o = G(z)       features and logits of the generic model w, of which G is the last layer
    w_k, G_k          minimise -log( n_y exp(o_y) / sum_c n_c exp(o_c) )         n_c: the client's examples of class c
    P_k               minimises the loss of G(z) + P_k(z), whose z and G(z) are constants
    server            w <- sum_k (n_k / n) w_k                                   over the clients that answered

Each step takes both at the old weights, in one pass. A class that the client does not have drops out of the sum. A
client is evaluated by G(z) + P_k(z) with the newest w, and w alone is the global model. P_k begins as G does in the
common initial model. The loss of the task is taken of both logits, so a task other than cross-entropy is balanced in
the same way. `train_loss` is the sum of both losses; `clip` counts w_k and P_k as one.

Down: w. Up: w_k. Kept by the client: P_k. There is no value that gives FedAvg; with equal n_c on all clients w is that
of FedAvg.

Differences from the paper: no heads that a hypernetwork makes of class counts; BatchNorm statistics are averaged.

Differences from public code (docs/public-defects.md): FL-bench trains P_k without G(z), and through the body; PFLlib
counts classes without the last, shorter batch. The authors released none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.linear_head import EndsLinear


@dataclass(frozen=True, kw_only=True)
class FedRoD(EndsLinear[fl.Weights, fl.Params]):
    """Average a generic model, and add a personal head to it."""

    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, as in the paper, or `uniform`."""

    @property
    def requires(self) -> fl.Requires:
        return super().requires | fl.Requires(logits=2, optimisers=2)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Params:
        return self.head(model).part(initial)

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Params], w: fl.Weights) -> tuple[fl.Params, fl.Weighted[fl.Weights]]:
        model, task, G = client.model, client.task, self.head(client.model)

        def loss(w: fl.Weights, batch: fl.Batch, P: fl.Params, log_n: Tensor) -> fl.BatchLoss:
            o, z, moved = G.train(model, w, batch)
            balanced = fl.objective(task, o + log_n.type_as(o), batch, w.params)
            personal = fl.objective(task, o.detach() + G.logits(P, z.detach()), batch, P)
            return fl.BatchLoss(balanced + personal, o, moved)

        log_n = G.class_counts(client).log()  # of an absent class -inf
        w_k, P = self.train_beside(client, w, client.state, log_n, loss=loss)
        return P, client.weigh(w_k, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def personal(self, client: fl.Client[fl.Params], sent: fl.Weights) -> fl.Weights:
        return self.head(client.model).added(sent, client.state)  # G + P

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
