"""FedMeta: federated meta-learning; the global model is one from which a step on a client's own examples leads far.

Chen, Luo, Dong, Li, He. *Federated Meta-Learning with Fast Convergence and Efficient Communication.* 2018.
https://arxiv.org/abs/1802.07876, Algorithm 1, with the MAML of Finn, Abbeel, Levine (ICML 2017,
https://arxiv.org/abs/1703.03400).

    u_k = w - alpha grad F_k^sup(w)                                        F^sup, F^qry: mean losses of the client's
    g_k = (I - alpha H_k^sup(w)) grad F_k^qry(u_k)                         support and query examples, H: the Hessian
    w   <- w - beta sum_k (n_k / n) g_k                                    over the clients that answered

With `inner_steps` of K, u^(j+1) = u^j - alpha grad F^sup(u^j) from u^0 = w, and the gradient goes back through all: g
<- (I - alpha H^sup(u^j)) g for j = K - 1, ..., 0. No Hessian is formed: H g is the gradient of the product of grad
F^sup and g. A task with an objective of its own, such as `SVM`, has that in the place of the mean loss, over all
examples of the set.

A client is evaluated by u_k of the newest w. Of `local`, nothing is used: learning rates are `alpha` and `beta`, every
step is on all examples of its set. `train_loss` is not recorded.

Down: the model. Up: g_k. Kept by the client: nothing. There is no value that gives FedAvg.

Differences from the paper: no learning rates that are learnt (Meta-SGD). Networks run in evaluation mode, without
dropout: BatchNorm keeps the statistics with which it began.

Differences from ddayzzz's federated-meta: its gradient is of first order, although it says MAML; it weighs by query
examples, and its server steps with Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import Gt, Lt
from torch import Tensor

import fedloom as fl
from fedloom.core.derivatives import objective_gradient, objective_hessian_times


@dataclass(frozen=True, kw_only=True)
class FedMeta(fl.OwnSteps[fl.Weights, tuple[()]]):
    """Learn an initialisation from which a client adapts in a few steps."""

    alpha: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.01
    """Learning rate of the inner steps; the comparison of APFL takes each data set's learning rate for it.
    The grid is ours."""
    beta: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.01
    """Learning rate of the server; the grid is ours."""
    inner_steps: fl.Count = 1
    """Number of inner steps, of adaptation. Each costs a product with the Hessian."""
    order: Literal["second", "first"] = "second"
    """Order of the meta-gradient: `second`, or `first`, which leaves the Hessians out. Released code that says MAML is
    of first order (docs/public-defects.md)."""
    support: Annotated[float, Gt(0), Lt(1)] = 0.8
    """Share of a client's examples to adapt on; the others are query examples. Both are spread over the stored order,
    and the same in every round: with 0.8, each fifth example is a query example. A client that would have no support or
    no query examples is refused before work starts."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean of g_k: its number of `samples`, or `uniform`, the paper's."""

    @property
    def evaluation_training(self) -> fl.Local:
        return self.local

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        sizes = federation.at(0).partition.sizes  # where examples arrive, a client may have few at first
        query = np.floor(sizes * (1 - self.support) + _TIE).astype(int)
        wrong = np.flatnonzero((sizes > 0) & ((query == 0) | (query == sizes)))  # a new client has nothing to train on
        if len(wrong):
            n, q = sizes[wrong[0]], query[wrong[0]]
            raise fl.SettingError(
                f"FedMeta needs support and query examples on each client, got {n - q} and {q} of the {n} of client "
                f"{wrong[0]} with support = {self.support:g}: leave this client out, or set support nearer to 0.5"
            )
        return super().bind(federation, models)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    @fl.on_client
    def meta_gradient(
        self, client: fl.Client[tuple[()]], w: fl.Weights
    ) -> tuple[tuple[()], Annotated[fl.Weighted[fl.Params], "gradient"]]:
        support, query = self.sets(client)
        *path, u = self.adapted(client, w, support)
        g = objective_gradient(client.model, client.task, u, query)
        if self.order == "second":
            for u in reversed(path):
                g = g - self.alpha * objective_hessian_times(client.model, client.task, u, support, g)
        return (), client.weigh(g, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return fl.replace(w, params=w.params - self.beta * cohort.reduce(self.meta_gradient, w).mean)

    def sets(self, client: fl.Client[tuple[()]]) -> tuple[fl.Batches, fl.Batches]:
        """One pass over the support examples, and one over the query examples."""
        query = is_query(client.train.places, self.support)
        return client.train.only(~query), client.train.only(query)

    def adapted(self, client: fl.Client[tuple[()]], w: fl.Weights, support: fl.Batches) -> list[fl.Weights]:
        """u^0 = w, u^1, ..., u^K."""
        path = [w]
        for _ in range(self.inner_steps):
            slope = objective_gradient(client.model, client.task, path[-1], support)
            path.append(fl.replace(w, params=path[-1].params - self.alpha * slope))
        return path

    def personal(self, client: fl.Client[tuple[()]], sent: fl.Weights) -> fl.Weights:
        return self.adapted(client, sent, self.sets(client)[0])[-1]

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


_TIE = 1e-9  # 15 * 0.2 is 3, on whichever side of it the product is rounded


def is_query(place: Tensor, support: float) -> Tensor:
    """Return which of a client's examples, [n] from 0, are of its query set, [n] bool: a share 1 - support."""
    share = 1 - support
    return ((place + 1) * share + _TIE).floor() > (place * share + _TIE).floor()
