"""FedNTD (MSE): the not-true logits themselves are held to those of the received model.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, appendix L.

    L = CE(q, y) + beta * MSE(z_local, z_global)        z: the logits of the not-true classes

The teacher is that of `fedntd`. There is no temperature.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.

Differences from the paper: it does not say how the squares are reduced.

Differences from the authors' code: there is none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.ntd import TaughtByReceived
from fedloom.core.losses import not_true


@dataclass(frozen=True, kw_only=True)
class FedNTDMSE(TaughtByReceived):
    """Hold the not-true logits to those of the received model by their squared distance."""

    beta: Annotated[fl.NonNegative, fl.Grid(0.001, 0.005, 0.01, 0.05, 0.1, 0.3)] = 0.05
    """Weight of the squared distance; 0.05 is the best of the paper's sweep, which fails at 0.3."""
    reduction: Literal["mean", "class_sum"] = "mean"
    """Reduction of the squares. `mean`: over classes and batch. `class_sum`: added over the classes and averaged over
    the batch, C - 1 times as much. The paper's failure at beta = 0.3 fits the sum better, whose curvature in a logit is
    2 beta."""

    @property
    def requires(self) -> fl.Requires:
        return super().requires | fl.Requires(logits=2)  # one that is not the true one

    def penalty(self, logits: Tensor, batch: fl.Batch) -> Tensor:
        """Beta * MSE over the not-true classes, []."""
        squares = (not_true(logits, batch.y) - not_true(batch.teacher, batch.y)).square()
        others = squares.shape[-1] if self.reduction == "mean" else 1
        return self.beta * batch.mean(squares.sum(-1) / others)
