"""FedNTD: federated not-true distillation.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, eq. 10 and 11.

    q~(c) = exp(z_c / tau) / sum_{c' != y} exp(z_c' / tau),   c != y
    L = CE(q, y) + beta * tau^2 * KL(q~_global || q~_local)        mean over the batch

The teacher is the model received this round, frozen, in evaluation mode, on the same inputs. The gradient with respect
to the true class's logit is that of cross-entropy alone. For two classes the term is zero.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.

Differences from the paper: the factor tau^2 is not in eq. 10, but in the authors' code (the same at the default tau =
1); the default mean is weighted by samples, as in the authors' code (eq. 2 has `aggregation = "uniform"`; the same
under shards of equal size).

Differences from the authors' code: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.ntd import TaughtByReceived
from fedloom.core.losses import not_true


@dataclass(frozen=True, kw_only=True)
class FedNTD(TaughtByReceived):
    """Distil the not-true logits of the received model in local training."""

    tau: Annotated[fl.Positive, fl.Grid(0.3, 1.0, 3.0, 10.0)] = 1.0
    """Temperature of the distillation, the paper's. Its grid is ours: the paper's values are lost."""

    @property
    def requires(self) -> fl.Requires:
        return super().requires | fl.Requires(logits=3)  # two that are not the true one

    def penalty(self, logits: Tensor, batch: fl.Batch) -> Tensor:
        """Beta * tau^2 * KL(q~_global || q~_local), [] (10, 11)."""
        q, teacher = not_true(logits, batch.y), not_true(batch.teacher, batch.y)
        return self.beta * batch.mean(fl.distillation(q, teacher, self.tau))
