"""FedNova: normalised averaging, so that a client that takes more steps does not pull harder.

Wang, Liu, Liang, Joshi, Poor. *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization.*
NeurIPS 2020. https://arxiv.org/abs/2007.07481, section 5.

    d_k = (w - w_k) / a_k                    a_k: the plain SGD steps that client k's steps with momentum amount to
    w <- w - tau_eff * sum_k p_k d_k         tau_eff = sum_k p_k a_k

a_k is tau_k, the number of steps, without momentum, and (tau_k - m (1 - m^tau_k) / (1 - m)) / (1 - m) with momentum m.
Steps are those taken, not those planned. Weight decay counts as a part of the gradient. Nesterov's momentum has the a_k
of heavy-ball momentum, as in the authors' code. Adam has no a_k, and is refused.

Clients with few steps are amplified by tau_eff / a_k. Under strong Dirichlet skew that can diverge, which FedNTD's
tables report.

Down: the model. Up: d_k (with the buffers) and the number a_k. Kept by the client: nothing. No value gives FedAvg; with
equal a_k it is FedAvg but for rounding. Under shards of equal size all a_k are equal.

Differences from the paper: the learning rate stays inside d_k; no proximal steps.

Differences from the FedNTD authors' code: theirs has `variance_reduction = "released"` by default. FedNTD prints other
numbers for FedNova than for FedAvg under shards, where plain FedNova equals FedAvg: these numbers cannot come from
plain FedNova.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.gradient_sums import SumsGradients


@dataclass(frozen=True, kw_only=True)
class FedNova(SumsGradients[fl.Weights, fl.Params]):
    """Normalise what clients send by their number of steps."""

    aggregation: fl.Aggregation = "samples"
    """p_k, over the clients that answered: n_k / n (`samples`), or 1 / |S| (`uniform`)."""
    variance_reduction: Literal["none", "released"] = "none"
    """`none` is the paper's algorithm. `released` is the default of the FedNTD authors' code: each gradient loses the
    client's last d_k / lr, which the client keeps. The paper's variance reduction adds the mean of all clients' at the
    same place; the released server never updates that mean from zero. So nothing changes at a client's first
    participation, and its gradients nearly cancel at the second."""

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
