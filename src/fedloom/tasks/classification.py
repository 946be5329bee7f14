"""Classification: one class of several, or one of two by a single logit."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import NonNegative, Positive, check, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind
from fedloom.core.task_measures import Score, Sum, TaskMeasure, correct_measure, is_total
from fedloom.tasks.ranking import MeanScore, average_precision, roc_auc

CHOSEN = "validation"
_STEP = 0.125
_CUTS = tuple(_STEP * k for k in range(-48, 49))  # log-odds, each exact in float32
_BINS = 15  # of the calibration error (Guo et al., On Calibration of Modern Neural Networks, ICML 2017)


class ClassTask:
    """Give a task whose targets are class numbers its measures.

    A subclass says its `loss`, which class is right (`correct`) and the probabilities of the classes.
    """

    targets: ClassVar[TargetKind] = "classes"

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which rows are right, [B] bool. `logits`: [B, C], `y`: [B]."""
        return logits.argmax(-1) == y

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which rows nothing is said, [B] bool: NaN, plus infinity, or minus infinity of all classes."""
        return ~logits.amax(-1).isfinite()  # where softmax is no number

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, [B, C] float64."""
        return logits.double().softmax(-1)

    def ranked_by(self, logits: Tensor) -> Tensor:
        """Return the numbers by which examples are ranked for each class, [B, C] float64."""
        return self.probabilities(logits)

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
                possible=is_confusion, chance="classes",
                meaning="Mean over the classes that occur of the share of their examples that are right.",
            ),
            Sum(
                name="macro_f1", title="macro F1", rows=self._confusion, value=macro_f1, possible=is_confusion,
                meaning="Mean of F1 over the classes that occur or are said.",
            ),
            Score(
                name="auc", title="AUC", outputs=self.ranked_by, values=MeanScore(roc_auc), chance=0.5,
                meaning="Area under the ROC curve; of several classes the mean over each one against the others.",
            ),
            Score(
                name="average_precision", title="average precision", outputs=self.ranked_by,
                values=MeanScore(average_precision),
                meaning="Mean over positives of the precision at their threshold; of several classes their mean.",
            ),
            Sum(
                name="log_loss", title="log loss", rows=self._surprise, better="low", unit="",
                meaning="Mean negative logarithm of the probability of the true class, without weights or smoothing.",
            ),
            Sum(
                name="calibration_error", title="calibration error", rows=self._calibration, value=_calibration_error,
                possible=_is_calibration, better="low",
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
        label_smoothing: share of the target that is spread over all classes, each by its weight (as PyTorch's).
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
        """Return the mean cross-entropy over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, C].
            batch: the examples, with their targets and the number of real rows.

        Raises:
            SettingError: the class weights are not as many as the classes.
        """
        if self.class_weights and len(self.class_weights) != logits.shape[-1]:
            raise SettingError(
                f"class_weights has one weight for each of the {logits.shape[-1]} classes, got "
                f"{len(self.class_weights)}: give as many [FL-TASK-008]"
            )
        smoothed = logits.new_tensor(self.class_weights) if self.class_weights and self.label_smoothing else None
        each = F.cross_entropy(
            logits, batch.y, smoothed, reduction="none", label_smoothing=self.label_smoothing
        )  # weighted already, class by class, where the target is spread over classes
        if self.focal:
            each = (1 - torch.exp(-each)) ** self.focal * each
        if not self.class_weights:
            return batch.mean(each)
        weight = self.example_weights(batch).to(each.dtype)
        return batch.mean(each if smoothed is not None else weight * each) / batch.mean(weight)

    def example_weights(self, batch: Batch) -> Tensor:
        """Return the weight of each example's class in the mean loss, [B] float64.

        Args:
            batch: the examples, with their targets.
        """
        if not self.class_weights:
            return torch.ones_like(batch.y, dtype=torch.float64)
        return torch.tensor(self.class_weights, dtype=torch.float64, device=batch.y.device)[batch.y]


@dataclass(frozen=True)
class Binary(ClassTask):
    """Binary cross-entropy of one logit: labels 0 and 1, logits [B, 1]; recall and precision at a threshold.

    Args:
        threshold: from which probability the answer is class 1; "validation": after each round the one with the best F1
            on the validation examples of all clients.
        positive_weight: weight of the examples of class 1 in the loss.

    A threshold that validation chooses is one of 97, evenly spaced in the log-odds from -6 to 6: clients count their
    examples between neighbours, and these counts are added up. Recall, precision, balanced accuracy and macro F1 are
    measured at it; the accuracy of a round, over all and by class, stays at one half.
    """

    threshold: float | Literal["validation"] = 0.5
    positive_weight: Positive = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        if isinstance(self.threshold, str) and self.threshold != CHOSEN:
            raise SettingError(f"threshold is a probability or {CHOSEN!r}, got {self.threshold!r}: write one of these")
        if self.threshold != CHOSEN:
            check(self.threshold, Annotated[float, Gt(0), Lt(1)], "threshold")

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
            batch: the examples, with their targets and the number of real rows.
        """
        weight = logits.new_tensor(self.positive_weight)
        y = batch.y.to(logits.dtype)
        each = F.binary_cross_entropy_with_logits(logits[:, 0], y, reduction="none", pos_weight=weight)
        return batch.mean(each)

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which rows are right, [B] bool.

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
            y: labels 0 and 1, [B].
        """
        return self.predicted(logits) == y

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which rows nothing is said, [B] bool; an infinite logit is as sure as can be.

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
            y: labels 0 and 1, [B].
        """
        return logits[:, 0].isnan()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, [B, 2] float64.

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
        """
        p = logits.double()[:, 0].sigmoid()
        return torch.stack([1 - p, p], -1)

    def ranked_by(self, logits: Tensor) -> Tensor:
        """Return the logit of each class, [B, 2] float64: beyond 37 all probabilities are 1.

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
        """
        logit = logits.double()[:, 0]
        return torch.stack([-logit, logit], -1)

    def predicted(self, logits: Tensor) -> Tensor:
        """Return the predicted class, [B].

        Args:
            logits: outputs of the network, [B, 1] or [B, 2].
        """
        threshold = 0.5 if isinstance(self.threshold, str) else self.threshold
        cut = math.log(threshold / (1 - threshold))
        return (logits[:, 0] > cut).long()

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        def of(name: str, title: str, meaning: str, below: int) -> Sum:
            return Sum(
                name=name,
                title=title,
                meaning=meaning,
                rows=self._confusion,
                value=_Ratio(below),
                possible=is_confusion,
            )

        fixed = (
            *super().measures,
            of("recall", "recall", "Share of the examples of class 1 that are said to be of it.", 2),
            of("precision", "precision", "Share of the examples said to be of class 1 that are of it.", 1),
        )
        return fixed if self.threshold != CHOSEN else tuple(map(self._at_chosen, fixed))

    @property
    def chosen_by(self) -> str | None:
        """Measure whose sum over validation examples chooses the threshold."""
        return "recall" if self.threshold == CHOSEN else None

    def choose(self, total: Tensor) -> float | None:
        """Return the threshold with the best F1, of equals the one nearest to one half; None without class 1.

        Args:
            total: number of validation examples by class and place between thresholds, [2, places].
        """
        if not int(total[1].sum()):
            return None
        best = max(range(len(_CUTS)), key=lambda cut: (_f1(_counts_at(total, cut)), -abs(_CUTS[cut])))
        return 1 / (1 + math.exp(-_CUTS[best]))

    def at(self, threshold: float) -> Self:
        """Return the task with another threshold, to predict by.

        Args:
            threshold: probability of class 1 from which on it is predicted.
        """
        return replace(self, threshold=threshold)

    def measured_at(self, threshold: float | None) -> Binary:
        """Return a task that takes the values of this one's sums at a threshold.

        Args:
            threshold: a probability; None: the values are undefined.
        """
        return _Chosen(self.threshold, self.positive_weight, threshold)

    def _at_chosen(self, m: TaskMeasure, threshold: float | None = None) -> TaskMeasure:
        if not isinstance(m, Sum) or m.rows != self._confusion:
            return m
        meaning = f"{m.meaning[:-1]}, at the threshold that validation examples choose."
        return replace(m, rows=self._places, value=_AtThreshold(m.value, threshold), meaning=meaning, possible=is_total)

    def _places(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which class an example is of and how many thresholds its logit exceeds, [B, 2, places]."""
        place = (logits[:, :1] > logits.new_tensor(_CUTS)).sum(1)
        there = place[:, None] == torch.arange(len(_CUTS) + 1, device=y.device)
        return torch.stack([(y == c)[:, None] & there for c in (0, 1)], 1)


@dataclass(frozen=True)
class _Chosen(Binary):
    """The task once a threshold was chosen: it has the same sums."""

    chosen: float | None = None

    def _at_chosen(self, m: TaskMeasure, threshold: float | None = None) -> TaskMeasure:
        return super()._at_chosen(m, self.chosen)


@dataclass(frozen=True)
class _AtThreshold:
    """Take the value of a measure of the right, said and true answers by class at a threshold; NaN without one."""

    value: Any
    threshold: float | None

    def __call__(self, total: Tensor, count: int) -> float:
        if self.threshold is None:
            return math.nan
        cut = round((math.log(self.threshold / (1 - self.threshold)) - _CUTS[0]) / _STEP)
        return float(self.value(_counts_at(total, cut), count))


def _counts_at(total: Tensor, cut: int) -> Tensor:
    """Return which class is how often right, said and true, [3, 2], of examples by class and place, [2, places]."""
    true, said = total.sum(1), total[:, cut + 1 :].sum(1)  # of each class: all, and those above the threshold
    ones = said.sum()
    return torch.stack([
        torch.stack([true[0] - said[0], said[1]]), torch.stack([true.sum() - ones, ones]), true,
    ])  # fmt: skip


def _f1(counts: Tensor) -> float:
    right, said, true = counts[:, 1].tolist()
    return float(2 * right / (said + true))


@dataclass(frozen=True)
class _Ratio:
    """Divide the right answers of class 1 by those that are said (1) or true (2); NaN where there are none."""

    below: int

    def __call__(self, total: Tensor, count: int) -> float:
        whole = int(total[self.below, 1])
        return int(total[0, 1]) / whole if whole else math.nan


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


def is_confusion(total: Tensor, count: int) -> bool:
    """Return whether examples can add up to a total [3, C]: what is right is said and true."""
    return is_total(total, count) and bool((total[0] <= total[1:]).all())


def _is_calibration(total: Tensor, count: int) -> bool:
    numbers, *others = total
    return bool(total.isfinite().all() and (total >= 0).all() and numbers.sum() == count) and all(
        bool((each <= numbers).all()) for each in others
    )


def _calibration_error(total: Tensor, count: int) -> float:
    _, probability, right = total
    return float((probability - right).abs().sum() / count)
