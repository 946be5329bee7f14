"""FedNova: normalised averaging, so that a client that takes more steps does not pull harder.

Wang, Liu, Liang, Joshi, Poor. *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.*
NeurIPS 2020. https://arxiv.org/abs/2007.07481, section 5.

    d_k = (w - w_k) / a_k                    a_k: the plain SGD steps that client k's steps with momentum amount to
    w <- w - tau_eff * sum_k p_k d_k         tau_eff = sum_k p_k a_k,   p_k = n_k / n over the clients that answered

Down: the model. Up: d_k (with the buffers) and the number a_k. Kept by the client: nothing. No value gives FedAvg; with
equal a_k it is FedAvg but for rounding.
Differences from the paper: the rate stays inside d_k; `aggregation = "uniform"` gives p_k = 1 / |S|; no proximal steps.
Nesterov's momentum has the a_k of heavy-ball momentum, as in the authors' code; Adam, which has none, is refused. From
the FedNTD authors' code: theirs subtracts the client's last d_k / lr from its gradients, by default: the paper's
variance reduction, whose global term it never adds. `variance_reduction = "released"` does that (the client then keeps
d_k / lr); FedNTD's published numbers of FedNova cannot come from plain FedNova.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedNova(fl.Algorithm[fl.Weights, fl.Params]):
    """Normalise what clients send by their number of steps."""

    aggregation: fl.Aggregation = "samples"
    """p_k: by the number of `samples`, or `uniform`."""
    variance_reduction: Literal["none", "released"] = "none"
    """`none`, or that of the FedNTD authors' code (`released`)."""

    sums_gradients = True  # who has no a_k is refused

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Params:
        return fl.tree.zeros_like(initial.params) if self.variance_reduction == "released" else fl.Params()

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Params], w: fl.Weights
    ) -> tuple[fl.Params, fl.Weighted[tuple[Annotated[fl.Weights, "gradient"], Annotated[Tensor, "control"]]]]:
        last, a = client.state, self.plain_steps(client)  # d_k / lr of the client's last round, if it counts
        w_k = self.train(client, w, last, loss=client.loss, correct=(lambda g, last: g - last) if last else None)
        d = 1 / a * (w.params - w_k.params)
        return 1 / client.lr * d if last else last, client.weigh((fl.Weights(d, w_k.buffers), a), self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        d, tau_eff = cohort.reduce(self.local_update, w).mean
        return fl.Weights(w.params - tau_eff * d.params, d.buffers)

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
