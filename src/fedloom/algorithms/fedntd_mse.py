"""FedNTD (MSE): the not-true logits themselves are held to those of the received model.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, appendix L.

    L = CE(q, y) + beta * MSE(z_local, z_global)        z: the logits of the not-true classes

The teacher is the model received this round, frozen, on the same inputs.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.
Differences from the paper: it does not say how the squares are reduced. `reduction = "mean"` averages over classes and
batch, "class_sum" adds over the classes and averages over the batch, C - 1 times as much; the paper's failure at
beta = 0.3 fits the sum better. From the authors' code: there is none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from torch import Tensor

from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch, Batches
from fedloom.core.errors import SettingError
from fedloom.core.losses import not_true
from fedloom.core.model import Model
from fedloom.core.terms import Term
from fedloom.core.types import Maybe, Weights


@dataclass(frozen=True)
class NotTrueSquares:
    """beta times the squared distance of the not-true logits, averaged over the classes or added up."""

    beta: float
    reduction: Literal["mean", "class_sum"]
    keeps_previous: ClassVar[bool] = False

    def annotate(self, model: Model, batches: Batches, received: Weights, previous: Maybe[Weights]) -> Batches:
        return batches.annotate("teacher", model, received)

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        squares = (not_true(logits, batch.y) - not_true(batch.teacher, batch.y)).square()
        others = squares.shape[-1] if self.reduction == "mean" else 1
        return self.beta * batch.mean(squares.sum(-1) / max(1, others))  # a task of one logit has no others


@final
@dataclass(frozen=True, kw_only=True)
class FedNTDMSE(Averaging):
    """`beta` >= 0: weight of the squared distance. `reduction`: `mean` or `class_sum`, see above."""

    beta: float = 0.05
    reduction: Literal["mean", "class_sum"] = "mean"

    neutral: ClassVar[Mapping[str, Any]] = {"beta": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 0:
            raise SettingError(f"FedNTD (MSE) needs beta >= 0, got {self.beta}")

    @property
    def terms(self) -> tuple[Term, ...]:
        return (NotTrueSquares(beta=self.beta, reduction=self.reduction),)
