"""FedCurv: elastic weight consolidation towards what other clients have learnt.

Shoham, Avidor, Keren, Israel, Benditkis, Mor-Yosef, Zeitak. *Overcoming Forgetting in Federated Learning on Non-IID
Data.* 2019. https://arxiv.org/abs/1910.07796, eq. 3 and 4.

    L_k(w) = CE(w) + lam * sum_{j != k} (w - w_j)^T diag(F_j) (w - w_j)
           = CE(w) + lam * ( <P_k, w * w> - 2 <Q_k, w> ) + constant
    u_j = F_j,   v_j = F_j * w_j,   P_k = sum_j u_j - u_k,   Q_k = sum_j v_j - v_k

w_j and F_j: the model with which client j ended last time and its diagonal Fisher information; the sums are over all
clients that ever took part, with their last reports. Until somebody has reported there is no penalty.

Down: the model and both sums. Up: the model and the changes of u_k and v_k. Kept by the client: u_k and v_k.
lam = 0 is FedAvg.
Differences from the paper: clients that are not asked keep their last report (there, all take part in every round). The
Fisher information is that of FedNTD's code: gradients of batches, squared, over the `fisher_size` first examples of a
pass. From FedNTD's code: it takes the sampled clients' own terms out of the sums in place, so that later clients of a
round also lose those of earlier ones, which is a mistake; its measuring pass is shuffled and augmented
anew, here it repeats the first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batch
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.continual import first_pass, fisher
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.model import Model
from fedloom.core.tree import axpy, sub, zeros_like
from fedloom.core.types import Params, Weighted, Weights, replace, state


@state
class Report:
    """Of one client, or summed over clients."""

    u: Params
    v: Params


@state
class FedCurvServer:
    w: Weights
    total: Report


@state
class FedCurvUpload:
    w: Weighted[Weights]
    change: Weighted[Report]


@final
@dataclass(frozen=True, kw_only=True)
class FedCurv(Algorithm[FedCurvServer, Report]):
    """`lam` >= 0: weight of the penalty. `fisher_size` >= 1: a client stops measuring F once it has seen more examples.
    `aggregation`: of the models.
    """

    lam: float = 1.0
    fisher_size: int = 500
    aggregation: Aggregation = "samples"

    neutral: ClassVar[Mapping[str, Any]] = {"lam": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0 or self.fisher_size < 1:
            raise SettingError(
                f"FedCurv needs lam >= 0 and fisher_size >= 1, got lam = {self.lam}, fisher_size = {self.fisher_size}"
            )

    def init(self, model: Model, key: int, *, num_clients: int) -> FedCurvServer:
        w = model.init(key)
        return FedCurvServer(w=w, total=Report(u=zeros_like(w.params), v=zeros_like(w.params)))

    def init_client(self, initial: Weights, model: Model, key: int) -> Report:
        return Report(u=zeros_like(initial.params), v=zeros_like(initial.params))

    @on_client
    def local_update(self, client: Client[Report], w: Weights, total: Report) -> tuple[Report, FedCurvUpload]:
        model, task, lam, batch_size = client.model, client.task, self.lam, self.local.batch_size

        def loss(weights: Weights, batch: Batch, others: Report) -> tuple[Tensor, Weights]:
            logits, buffers = model.train(weights, batch)
            return task.loss(logits, batch) + lam * penalty(weights.params, others), replace(weights, buffers=buffers)

        others = sub(total, client.state)  # P_k, Q_k
        w = minimise(loss, w, client.train, self.local.optimiser, others, lr=client.lr)
        u = fisher(model, task, w, first_pass(client.train, batch_size, self.fisher_size))
        mine = Report(u=u, v={n: u[n] * p for n, p in w.params.items()})
        weight = client.weight(self.aggregation)
        change = Weighted(value=sub(mine, client.state), weight=torch.ones_like(weight))
        return mine, FedCurvUpload(w=Weighted(value=w, weight=weight), change=change)

    def round(self, server: FedCurvServer, cohort: Cohort) -> FedCurvServer:
        replies = cohort.reduce(self.local_update, server.w, server.total)
        return FedCurvServer(w=replies.mean.w, total=axpy(len(replies.cohort.ids), replies.mean.change, server.total))

    def global_weights(self, server: FedCurvServer) -> Weights:
        return server.w


def penalty(w: Params, others: Report) -> Tensor:
    """<P, w * w> - 2 <Q, w>, []; no factor 1/2, no constant."""
    return torch.stack([(p * (others.u[n] * p - 2.0 * others.v[n])).sum() for n, p in w.items()]).sum()
