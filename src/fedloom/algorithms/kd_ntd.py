"""KD to NTD: from ordinary distillation to FedNTD.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, appendix H, eq. 17 and 18.

    L = CE(q, y) + beta * [ (1 - lam) * tau^2 * KL(q_global || q_local) + lam * tau^2 * KL(q~_global || q~_local) ]

q: softmax at tau, q~: the same over the not-true classes. The teacher is that of `fedntd`. Beside FedNTD's, the
gradient with respect to the true class's logit gains (1 - lam) beta tau (q_local(y) - q_global(y)), which opposes
learning where the global model is unsure of the class.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.

Differences from the paper: none that is known; it does not say beta and tau. Its end at lam = 1 is its FedNTD, with 1
and 1.

Differences from the authors' code: there is none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.ntd import TaughtByReceived
from fedloom.core.losses import not_true


@dataclass(frozen=True, kw_only=True)
class KDNTD(TaughtByReceived):
    """Mix ordinary and not-true distillation of the received model."""

    lam: Annotated[float, Ge(0), Le(1), fl.Grid(0.0, 0.25, 0.5, 0.75, 1.0)] = 0.5
    """Share of FedNTD's term: 0 is FedAvg with distillation over all classes, 1 is FedNTD. The paper's accuracy rises
    from one to the other. The values between are ours."""
    tau: fl.Positive = 1.0
    """Temperature of the distillation; the paper does not say it."""

    @property
    def requires(self) -> fl.Requires:
        return super().requires | fl.Requires(logits=3 if self.lam else 2)  # two that are not the true one

    def penalty(self, logits: Tensor, batch: fl.Batch) -> Tensor:
        """(1 - lam) of the divergence over all classes, lam of that over the not-true ones, [] (17, 18)."""
        q, teacher = not_true(logits, batch.y), not_true(batch.teacher, batch.y)
        kd = self.beta * batch.mean(fl.distillation(logits, batch.teacher, self.tau))
        ntd = self.beta * batch.mean(fl.distillation(q, teacher, self.tau))
        return (1.0 - self.lam) * kd + self.lam * ntd
