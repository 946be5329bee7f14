"""FedCurv: elastic weight consolidation towards what other clients have learnt.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak. *Overcoming Forgetting in Federated Learning on Non-IID
Data.* 2019. https://arxiv.org/abs/1910.07796, eq. 3 and 4.

    L_k(w) = CE(w) + lam * sum_{j != k} (w - w_j)^T diag(F_j) (w - w_j)
           = CE(w) + lam * ( <P_k, w * w> - 2 <Q_k, w> ) + constant
    u_j = F_j,   v_j = F_j * w_j,   P_k = sum_j u_j - u_k,   Q_k = sum_j v_j - v_k

w_j and F_j are the model with which client j ended last time and its diagonal Fisher information. The sums are over all
clients that ever took part, each with its last report, however old. The recorded loss lacks the constant, as in the
FedNTD authors' code. Clients send changes, so that the server needs no more than the sums.

Down: the model and both sums. Up: the model and the changes of u_k and v_k. Kept by the client: u_k and v_k (zero at
first). lam = 0 is FedAvg. So is a round before any client has reported.

Differences from the paper: clients that are not selected keep their last report (there, all take part in every round).
The Fisher information is that of the FedNTD authors' code (`fisher_size`).

Differences from the FedNTD authors' code: it takes the sampled clients' own terms out of the sums in place, so that
later clients of a round also lose those of earlier ones, which is a mistake; its measuring pass is shuffled and
augmented anew, here it repeats the first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.fisher import first_pass, fisher


@fl.state
class Report(fl.Arithmetic):
    """Report of one client, or the sum over clients."""

    u: fl.Params
    v: fl.Params


@fl.state
class Server:
    w: fl.Weights
    total: Report


@dataclass(frozen=True, kw_only=True)
class FedCurv(fl.Algorithm[Server, Report]):
    """Hold local weights near what other clients have learnt, by their Fisher information."""

    lam: Annotated[fl.NonNegative, fl.Grid(0.01, 0.1, 1.0, 10.0)] = 1.0
    """Weight of the penalty, without a factor 1/2; 1 as in FedNTD's paper and code. With plain SGD, steps overshoot
    once lr * lam * max(P_k) exceeds 1. The sums grow with the number of clients. Its grid is ours."""
    fisher_size: fl.Count = 500
    """Examples after which a client stops to measure F. After training, it squares the gradients of its batches (of
    `local.batch_size`, true labels, evaluation mode) in the first pass over its examples, and takes their mean. It
    stops once it has seen more than this number: with batches of 50 after at most 11. So does the FedNTD authors' code.
    The square of a batch's gradient, which is that of a mean loss, is up to 50 times less than the mean of squared
    gradients of single examples."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    neutral: ClassVar[Mapping[str, Any]] = {"lam": 0}
    requires = fl.Requires(sums=True)  # sum_j u_j - u_k >= 0, without which the penalty falls without end

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        w = model.init(key)
        return Server(w=w, total=Report(u=fl.tree.zeros_like(w.params), v=fl.tree.zeros_like(w.params)))

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> Report:
        return Report(u=fl.tree.zeros_like(initial.params), v=fl.tree.zeros_like(initial.params))

    @fl.on_client
    def local_update(
        self, client: fl.Client[Report], w: fl.Weights, total: Annotated[Report, "fisher"]
    ) -> tuple[Report, tuple[fl.Weighted[fl.Weights], Annotated[fl.Weighted[Report], "fisher"]]]:
        task_loss, others = client.loss, total - client.state  # P_k, Q_k

        def loss(w: fl.Weights, batch: fl.Batch, others: Report) -> fl.BatchLoss:
            return task_loss(w, batch) + self.lam * penalty(w.params, others)  # (4)

        w = self.train(client, w, others, loss=loss)
        seen = first_pass(client.train, self.local.batch_size, self.fisher_size)
        u = fisher(client.model, client.task, w, seen)
        mine = Report(u=u, v=u * w.params)
        return mine, (client.weigh(w, self.aggregation), client.weigh(mine - client.state, "uniform"))

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        replies = cohort.reduce(self.local_update, server.w, server.total)
        w, change = replies.mean
        return Server(w=w, total=server.total + len(replies.cohort.ids) * change)

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w


def penalty(w: fl.Params, others: Report) -> Tensor:
    """<P, w * w> - 2 <Q, w>, []; no factor 1/2, no constant."""
    return torch.stack([(p * (others.u[n] * p - 2.0 * others.v[n])).sum() for n, p in w.items()]).sum()
