"""pFedSD: personalised federated learning by self-knowledge distillation.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. *Personalized Edge Intelligence via Federated Self-Knowledge Distillation.*
IEEE TPDS 34(2), 2023, Algorithm 1, eq. 4 and 5.

    phi_k(w; v_k) = CE(w) + lam * T^2 * KL(q(v_k; T) || q(w; T))      v_k: the client's model after its last round

Training starts from the global model and is pulled towards the personal one; what it ends with becomes v_k.

Down: the model. Up: the model. Kept by the client: v_k. lam = 0 trains the models of FedAvg with
`aggregation = "uniform"`. Differences from the paper: T^2 (its equation is damaged in our text; the authors' code has
it). From the authors' code: the teacher is in evaluation mode; a client that never took part is judged by the newest
global model, not the initial one; BatchNorm statistics are averaged (`buffers = "server"` keeps the server's, as they
do).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch
from fedloom.core.choices import NonNegative, Positive
from fedloom.core.client import Aggregation, Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.losses import distillation
from fedloom.core.model import Model
from fedloom.core.types import BatchLoss, Maybe, Weighted, Weights, state


@state
class PFedSDClient:
    own: Weights  # tensors that are never shared
    v: Maybe[Weights]  # v_k


@dataclass(frozen=True, kw_only=True)
class PFedSD(Averaging[PFedSDClient]):
    """`lam` >= 0: weight of the distillation. `T` > 0: its temperature."""

    aggregation: Aggregation = "uniform"
    lam: NonNegative = 1.0
    T: Positive = 1.0

    neutral: ClassVar[Mapping[str, Any]] = {"lam": 0}

    def init_client(self, initial: Weights, model: Model, key: int) -> PFedSDClient:
        return PFedSDClient(own=self.own(initial), v=Maybe.none(initial))

    def own_of(self, state: PFedSDClient) -> Weights:
        return state.own

    @on_client
    def local_update(self, client: Client[PFedSDClient], sent: Weights) -> tuple[PFedSDClient, Weighted[Weights]]:
        task_loss, v = client.loss, client.state.v

        def loss(w: Weights, batch: Batch, present: Tensor) -> BatchLoss:
            ce = task_loss(w, batch)
            kd = batch.mean(distillation(ce.logits, batch.v, self.T))
            return ce + torch.where(present, self.lam * kd, 0.0)  # (4), (5)

        batches = client.train.annotate("v", client.model, v.value)
        w = self.train(client, self.received(client, sent), v.present, loss=loss, batches=batches)
        return PFedSDClient(own=self.own(w), v=Maybe.some(w)), client.weigh(self.up(w), self.aggregation)

    def round(self, w: Weights, cohort: Cohort) -> Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)

    def personal(self, client: Client[PFedSDClient], sent: Weights) -> Weights:
        return client.state.v.otherwise(self.received(client, sent))
