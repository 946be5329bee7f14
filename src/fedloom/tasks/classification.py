"""Classification: one class of several, or one of two by a single logit."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import NonNegative, Positive, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind
from fedloom.core.task_measures import Score, Sum, TaskMeasure, correct_measure
from fedloom.tasks.ranking import average_precision, mean_where_defined, roc_auc

_BINS = 15  # of the calibration error (Guo et al., On Calibration of Modern Neural Networks, ICML 2017)


class ClassTask:
    """Give a task whose targets are class numbers its measures.

    A subclass says its `loss`, which class is right (`correct`) and the probabilities of the classes.
    """

    targets: ClassVar[TargetKind] = "classes"

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which rows are right, [B] bool. `logits`: [B, C], `y`: [B]."""
        return logits.argmax(-1) == y

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, [B, C] float64."""
        return logits.double().softmax(-1)

    def predicted(self, logits: Tensor) -> Tensor:
        """Return the class that is said, [B]."""
        return self.probabilities(logits).argmax(-1)

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        """The measures of the task, accuracy first."""
        return (
            correct_measure(self.correct),
            Sum(
                name="balanced_accuracy", title="balanced accuracy", rows=self._confusion, value=_balanced,
                meaning="Mean over the classes that occur of the share of their examples that are right.",
            ),
            Sum(
                name="macro_f1", title="macro F1", rows=self._confusion, value=macro_f1,
                meaning="Mean of F1 over the classes that occur or are said.",
            ),
            Score(
                name="auc", title="AUC", outputs=self.probabilities, values=_each_class(roc_auc),
                meaning="Area under the ROC curve; of several classes the mean over each one against the others.",
            ),
            Score(
                name="average_precision", title="average precision", outputs=self.probabilities,
                values=_each_class(average_precision),
                meaning="Mean over positives of the precision at their threshold; of several classes their mean.",
            ),
            Sum(
                name="log_loss", title="log loss", rows=self._surprise, better="low", unit="",
                meaning="Mean negative logarithm of the probability of the true class, without weights or smoothing.",
            ),
            Sum(
                name="calibration_error", title="calibration error", rows=self._calibration, value=_calibration_error,
                better="low",
                meaning=f"Mean distance of probability and accuracy of the answers, in {_BINS} bins of probability.",
            ),
        )  # fmt: skip

    def _confusion(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which class is right, said and true, [B, 3, C]."""
        classes = torch.arange(self.probabilities(logits).shape[-1], device=y.device)
        said, true = self.predicted(logits)[:, None] == classes, y[:, None] == classes
        return torch.stack([said & true, said, true], 1)

    def _surprise(self, logits: Tensor, y: Tensor) -> Tensor:
        p = self.probabilities(logits).gather(-1, y[:, None])[:, 0]
        return -p.clamp(min=torch.finfo(p.dtype).eps).log()

    def _calibration(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return number, probability and correctness of an answer in the bin of its probability, [B, 3, bins]."""
        said = self.predicted(logits)
        p = self.probabilities(logits).gather(-1, said[:, None])[:, 0]
        place = (p * _BINS).ceil().long().clamp(1, _BINS) - 1
        row = torch.stack([torch.ones_like(p), p, (said == y).double()], 1)
        return row[..., None] * (place[:, None] == torch.arange(_BINS, device=y.device))[:, None]


@dataclass(frozen=True)
class Classification(ClassTask):
    """Cross-entropy and top-1 accuracy.

    Args:
        class_weights: weight of each class in the loss, whose mean is then weighted (as PyTorch's); none: all alike.
        label_smoothing: share of the target that is spread over all classes.
        focal: exponent gamma of the focal loss, (1 - p)^gamma times the cross-entropy (Lin et al., ICCV 2017); 0: none.
    """

    _: KW_ONLY
    class_weights: tuple[Positive, ...] = ()
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0
    focal: NonNegative = 0.0

    def __post_init__(self) -> None:
        if type(self) is Classification:  # fields of a subclass are its own
            check_choices(self)
        if self.focal and self.label_smoothing:
            raise SettingError(
                f"the focal loss is of the true class alone, got focal = {self.focal:g} and label_smoothing = "
                f"{self.label_smoothing:g}: leave one of them out"
            )

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        each = F.cross_entropy(logits, batch.y, reduction="none", label_smoothing=self.label_smoothing)
        if self.focal:
            each = (1 - torch.exp(-each)) ** self.focal * each
        if not self.class_weights:
            return batch.mean(each)
        if len(self.class_weights) != logits.shape[-1]:
            raise SettingError(
                f"class_weights has one weight for each of the {logits.shape[-1]} classes, got "
                f"{len(self.class_weights)}: give as many"
            )
        weight = torch.tensor(self.class_weights, dtype=each.dtype, device=each.device)[batch.y]
        return batch.mean(weight * each) / batch.mean(weight)


@dataclass(frozen=True)
class Binary(ClassTask):
    """Binary cross-entropy of one logit: labels 0 and 1, logits [B, 1]; recall and precision at a threshold.

    Args:
        threshold: from which probability the answer is class 1.
        positive_weight: weight of the examples of class 1 in the loss.
    """

    threshold: Annotated[float, Gt(0), Lt(1)] = 0.5
    positive_weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_choices(self)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        weight = logits.new_tensor(self.positive_weight)
        y = batch.y.to(logits.dtype)
        each = F.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none", pos_weight=weight)
        return batch.mean(each)

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.predicted(logits) == y

    def probabilities(self, logits: Tensor) -> Tensor:
        p = logits.double()[:, 0].sigmoid()
        return torch.stack([1 - p, p], -1)

    def predicted(self, logits: Tensor) -> Tensor:
        cut = math.log(self.threshold / (1 - self.threshold))
        return (logits[:, 0] > cut).long()

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        def of(name: str, title: str, meaning: str, below: int) -> Sum:
            return Sum(name=name, title=title, meaning=meaning, rows=self._confusion, value=_Ratio(below))

        return (
            *super().measures,
            of("recall", "recall", "Share of the examples of class 1 that are said to be of it.", 2),
            of("precision", "precision", "Share of the examples said to be of class 1 that are of it.", 1),
        )


@dataclass(frozen=True)
class _Ratio:
    """Divide the right answers of class 1 by those that are said (1) or true (2); NaN where there are none."""

    below: int

    def __call__(self, total: Tensor, count: int) -> float:
        whole = int(total[self.below, 1])
        return int(total[0, 1]) / whole if whole else math.nan


@dataclass(frozen=True)
class _each_class:  # noqa: N801  # a function that can be compared, for programs that are traced once
    """Take the score of class 1 of two, else the mean over the classes that have one."""

    score: object

    def __call__(self, outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
        classes = outputs.shape[-1]
        of = [1] if classes == 2 else range(classes)
        return mean_where_defined(torch.stack([self.score(outputs[..., c], y == c, real) for c in of], -1))  # type: ignore[operator]


def _balanced(total: Tensor, count: int) -> float:
    right, _, true = total.double()
    return float((right / true)[true > 0].mean())


def macro_f1(total: Tensor, count: int) -> float:
    """Return the mean of F1 over the classes or labels that occur or are said; NaN where none does.

    `total`: how often each is right, said and true, [3, C].
    """
    right, said, true = total.double()
    known = said + true > 0
    return float((2 * right / (said + true))[known].mean()) if bool(known.any()) else math.nan


def _calibration_error(total: Tensor, count: int) -> float:
    _, probability, right = total
    return float((probability - right).abs().sum() / count)
