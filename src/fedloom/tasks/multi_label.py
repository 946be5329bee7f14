"""Multi-label classification: any number of labels of each example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import Positive, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind
from fedloom.core.task_measures import Score, Sum, TaskMeasure
from fedloom.tasks.classification import is_confusion, macro_f1
from fedloom.tasks.ranking import MeanScore, average_precision, roc_auc


@dataclass(frozen=True)
class MultiLabel:
    """Binary cross-entropy of L labels: targets [B, L] of 0 and 1, logits [B, L]; a label is said above one half.

    Args:
        positive_weights: weight of the examples that have a label, for each label; none: all alike.
    """

    positive_weights: tuple[Positive, ...] = ()

    targets: ClassVar[TargetKind] = "labels"

    def __post_init__(self) -> None:
        check_choices(self)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy of all labels over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, L].
            batch: the examples, with their targets and the number of real rows.

        Raises:
            SettingError: there is not one logit, or weight, for each label.
        """
        y = batch.y.to(logits.dtype)
        if y.shape != logits.shape:
            raise SettingError(
                f"logits are as many as labels, got logits {list(logits.shape)} for labels {list(y.shape)}: take a "
                f"network with {y.shape[-1]} outputs"
            )
        weights = logits.new_tensor(self.positive_weights) if self.positive_weights else None
        each = F.binary_cross_entropy_with_logits(logits, y, reduction="none", pos_weight=weights)
        return batch.mean(each.mean(1))

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label, [B, L] float64.

        Args:
            logits: outputs of the network, [B, L].
        """
        return logits.double().sigmoid()

    def predicted(self, logits: Tensor) -> Tensor:
        """Return which labels are predicted, [B, L] bool.

        Args:
            logits: outputs of the network, [B, L].
        """
        return logits > 0

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        """The measures of the task, the share of right labels first."""
        return (
            Sum(
                name="label_accuracy", title="label accuracy", rows=self._right, value=_mean,
                meaning="Share of right answers over all labels of all examples.",
            ),
            Sum(
                name="subset_accuracy", title="subset accuracy", rows=self._all_right,
                meaning="Share of examples all of whose labels are right.",
            ),
            Sum(
                name="macro_f1", title="macro F1", rows=self._confusion, value=macro_f1, possible=is_confusion,
                meaning="Mean of F1 over the labels that occur or are said.",
            ),
            Score(
                name="auc", title="macro AUC", outputs=_logits, values=MeanScore(roc_auc, of_labels=True),
                chance=0.5,
                meaning="Mean over labels of the area under the ROC curve, of those that have both answers.",
            ),
            Score(
                name="average_precision", title="mAP", outputs=_logits,
                values=MeanScore(average_precision, of_labels=True),
                meaning="Mean over labels of the average precision, of those that occur.",
            ),
        )  # fmt: skip

    def _right(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.predicted(logits) == (y > 0.5)

    def _all_right(self, logits: Tensor, y: Tensor) -> Tensor:
        return self._right(logits, y).all(-1)

    def _confusion(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which labels are right, said and true, [B, 3, L]."""
        said, true = self.predicted(logits), y > 0.5
        return torch.stack([said & true, said, true], 1)


def _logits(logits: Tensor) -> Tensor:
    """Return what labels are ranked by: beyond 37 all probabilities are 1."""
    return logits.double()


def _mean(total: Tensor, count: int) -> float:
    return float(total.double().mean()) / count
