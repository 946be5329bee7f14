"""Linear support vector machines: two classes, one logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import NonNegative, check_choices
from fedloom.core.task_measures import TaskMeasure
from fedloom.core.types import Params
from fedloom.tasks.classification import ClassTask


@dataclass(frozen=True)
class Hinge(ClassTask):
    """Binary hinge loss of a linear SVM: labels 0 and 1 stand for -1 and +1, logits [B, 1]."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean hinge loss over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, 1].
            batch: the examples, with their targets and the number of real rows.
        """
        sign = 2.0 * batch.y.to(logits.dtype) - 1.0
        return batch.mean(F.relu(1.0 - sign * logits.squeeze(-1)))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which rows are right, [B] bool.

        Args:
            logits: outputs of the network, [B, 1].
            y: labels 0 and 1, [B].
        """
        return (logits.squeeze(-1) > 0) == (y > 0)

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which rows nothing is said, [B] bool; an infinite margin is as sure as can be.

        Args:
            logits: outputs of the network, [B, 1].
            y: labels 0 and 1, [B].
        """
        return logits[:, 0].isnan()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the margin of each class, [B, 2] float64, by which examples are ranked: it is no probability.

        Args:
            logits: outputs of the network, [B, 1].
        """
        margin = logits.double()[:, 0]
        return torch.stack([-margin, margin], -1)

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        return tuple(m for m in super().measures if m.name not in ("log_loss", "calibration_error"))


@dataclass(frozen=True)
class SVM(Hinge):
    """A linear SVM: hinge loss, added up over the batch or its mean, and a ridge on the weights but not on biases.

    sum:   ridge ||w||^2 + sum_i max(0, 1 - y_i (<w, x_i> + b))        fair_flearn, ridge = 0.5
    mean:  ridge ||w||^2 + mean_i max(0, 1 - y_i (<w, x_i> + b))       Ditto, ridge = 0.01

    Algorithms whose gradients are of all of a client's examples (FedMeta; Per-FedAvg where it is evaluated) add up over
    them: `mean` fits their rates.
    """

    reduction: Literal["sum", "mean"] = "sum"
    ridge: NonNegative = 0.5

    def __post_init__(self) -> None:
        check_choices(self)

    def objective(self, loss: Tensor, count: Tensor, params: Params) -> Tensor:
        """Return the training objective: the hinge loss and a ridge on the weights.

        Args:
            loss: mean loss of the batch, [].
            count: number of real rows, [].
            params: the network's parameters.

        Returns:
            The objective, [].
        """
        total = loss * count if self.reduction == "sum" else loss
        return total + self.ridge * params.select(lambda name: not name.endswith("bias")).sq_norm()
