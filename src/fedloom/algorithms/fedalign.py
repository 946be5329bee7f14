"""FedAlign: the last stage of the network and a slim version of it are to have the same Lipschitz constant.

Mendieta, Yang, Wang, Lee, Ding, Chen. *Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning.*
CVPR 2022. https://arxiv.org/abs/2111.14213, eq. 3 and 4.

    t2, t3       maps before and after the last stage;   s2 the first `width` of t2's channels, s3 the last stage on s2
                 with the first `width` of its filters
    TM(f1, f2)   f1 f2^T / P for each example: channels x channels; f1 is pooled to the P pixels of f2
    L_lip        mean over the batch of (sigma(TM(s2, s3)) - sigma(TM(t2, t3)))^2       sigma: largest singular value
    L            CE + mu * [CE / L_lip] * L_lip                                          [.] and t2, t3, s2 are constant

The second term is always mu CE in value, so its gradient alone matters, which is that of s3. It grows without bound as
the two constants meet. The authors therefore clip the sum of both gradients: SGD(lr=0.01, momentum=0.9, nesterov=True,
weight_decay=1e-4, clip=10.0), with batches of 64 and 20 epochs. sigma^2 is found by ten power iterations on TM TM^T
from the vector of ones.

The network needs two methods, stages(x) -> (t2, t3, logits) and slim(t2, width) -> (s2, s3), which `resnet10`,
`resnet18` and `resnet56` (the paper's) have. BatchNorm takes the statistics of the batch in the slim pass, and keeps
running ones of the full pass alone.

Down: the model. Up: the model. Kept by the client: nothing. mu = 0 is FedAvg.

Differences from the paper: short batches are kept; the division by L_lip is guarded by 1e-8.

Differences from the authors' code: momentum begins anew in every round, theirs goes on from round to round and client
to client; weights n_k count all examples, not those of full batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Gt, Lt
from torch import Tensor

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedAlign(fl.Algorithm[fl.Weights, tuple[()]]):
    """Align the Lipschitz constant of the last stage with that of a slim version of it."""

    mu: fl.NonNegative = 0.45
    """Weight of the alignment, the paper's."""
    width: Annotated[float, Gt(0), Lt(1)] = 0.25
    """Share of the channels of the slim stage, the paper's; rounded to multiples of 8."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    requires = fl.Requires(front=True)
    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        if not (model.offers("stages") and model.offers("slim")):
            raise fl.SettingError(
                f"FedAlign slims the last stage of a network, and {model.name} cannot: use resnet10, resnet18 or "
                "resnet56, or define stages(x) -> (before, after, logits) and slim(before, width) -> (s2, s3)"
            )
        return model.init(key)

    @fl.on_client
    def local_update(self, client: fl.Client[tuple[()]], w: fl.Weights) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        model, task = client.model, client.task

        def passes(network: Any, x: Tensor) -> tuple[Tensor, ...]:
            t2, t3, logits = network.stages(x)
            return logits, t2.detach(), t3.detach(), *network.slim(t2.detach(), self.width)

        def loss(w: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
            (logits, t2, t3, s2, s3), moved = model.train_calling(w, batch, passes)
            ce = fl.objective(task, logits, batch, w.params)
            apart = sigma(transmitting(s2, s3)) - sigma(transmitting(t2, t3))
            lip = batch.mean(apart.square())
            return fl.BatchLoss(ce + self.mu * (ce / (lip + 1e-8)).detach() * lip, logits, fl.Weights(w.params, moved))

        return (), client.weigh(self.train(client, w, loss=loss), self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


def transmitting(f1: Tensor, f2: Tensor) -> Tensor:
    """TM = f1 f2^T / P for each example, [B, C1, C2]; f1 [B, C1, H1, W1] is averaged to the size of f2 if larger."""
    if f1.ndim == 4 and f1.shape[2] > f2.shape[2]:
        f1 = F.adaptive_avg_pool2d(f1, (f2.shape[2], f2.shape[3]))
    a, b = f1.reshape(*f1.shape[:2], -1), f2.reshape(*f2.shape[:2], -1)
    return a @ b.mT / a.shape[-1]


def sigma(matrix: Tensor, iterations: int = 10) -> Tensor:
    """Return the largest singular value of each matrix A [B, M, N], from below, by power iterations on A A^T; [B]."""
    square = matrix @ matrix.mT
    v = torch.ones_like(square[..., :1])
    for _ in range(iterations):
        v = square @ v
        norm = (v.square().sum((-2, -1), keepdim=True) + 1e-30).sqrt()  # of zero maps it is not zero
        v = v / norm
    return norm[..., 0, 0].sqrt()
