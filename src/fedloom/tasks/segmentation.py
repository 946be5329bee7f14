"""Segmentation: one class for each pixel of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import check_choices
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind
from fedloom.core.task_measures import Sum, TaskMeasure
from fedloom.data.inputs import IGNORED
from fedloom.tasks.classification import macro_f1


@dataclass(frozen=True)
class Segmentation:
    """Cross-entropy or Dice loss of the class of each pixel: masks [B, H, W], logits [B, C, H, W].

    Pixels whose target is -100 count nowhere; `from_arrays` makes that of the value 255. Volumes, [B, C, D, H, W], are
    segmented alike.

    The loss is a mean over images, each weighted by how many of its pixels count; of the cross-entropy it is the mean
    over these pixels. The Dice loss of an image is 1 minus the mean, over the classes that its mask has, of
    2 sum(p t) / (sum(p) + sum(t)): p is the probability of the class at each pixel that counts, t 1 where it is true.

    Args:
        error: what is minimised: the cross-entropy, the Dice loss, or both, added up.
        by_class: how many classes have measures of their own, `iou_0`, `dice_0`, `iou_1` and so on, for `--measures`.
    """

    error: Literal["cross_entropy", "dice", "both"] = "cross_entropy"
    by_class: Annotated[int, Ge(0)] = 0

    targets: ClassVar[TargetKind] = "pixels"

    def __post_init__(self) -> None:
        check_choices(self)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, C, H, W].
            batch: the images, with their masks and the number of real rows.
        """
        scores, y = self._flat(logits.to(torch.promote_types(logits.dtype, torch.float32)), batch.y)
        count = (y != IGNORED).sum(1).to(scores.dtype)
        each = torch.zeros_like(count)
        if self.error != "dice":
            entropy = F.cross_entropy(
                scores.reshape(-1, scores.shape[-1]), y.reshape(-1), reduction="none", ignore_index=IGNORED
            )
            each = each + entropy.reshape(y.shape).sum(1)
        if self.error != "cross_entropy":
            each = each + count * _dice_loss(scores, y)
        return batch.mean(each) / batch.mean(count).clamp(min=1 / (2 * len(each)))  # 0 where no pixel counts

    def example_weights(self, batch: Batch) -> Tensor:
        """Return how many pixels of each image count, [B].

        Args:
            batch: the images, with their masks, [B, H, W]; -100 where none counts.
        """
        return (batch.y != IGNORED).reshape(len(batch.y), -1).sum(1)

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which images nothing is said, [B] bool: where no class of a pixel that counts has a probability.

        Args:
            logits: outputs of the network, [B, C, H, W].
            y: masks, [B, H, W]; -100 where none counts.
        """
        scores, y = self._flat(logits, y)
        return (~scores.amax(-1).isfinite() & (y != IGNORED)).any(1)  # NaN, plus infinity, or minus that of all

    def predicted(self, logits: Tensor) -> Tensor:
        """Return the predicted class of each pixel, [B, H, W].

        Args:
            logits: outputs of the network, [B, C, H, W].
        """
        return logits.argmax(1)

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        """The measures of the task, the mean IoU first.

        All are of counts over the pixels of all images of a set together, those that count: an image has no measure of
        its own. A class that neither occurs in the set nor is said has no IoU and no Dice there: it is left out of
        means, and is not 0.
        """
        of_classes = (
            Sum(
                name=f"{name}_{k}", title=f"{title} of class {k}", rows=self._confusion, value=_OfClass(k, name),
                possible=_is_confusion, meaning=f"{meaning} of class {k}, over the pixels of all images together.",
            )
            for k in range(self.by_class)
            for name, title, meaning in (("iou", "IoU", "Intersection over union"), ("dice", "Dice", "Dice score"))
        )  # fmt: skip
        return (
            Sum(
                name="mean_iou", title="mean IoU", rows=self._confusion, value=_mean_iou, possible=_is_confusion,
                chance="constant",
                meaning="Mean of intersection over union over the classes that occur or are said, each over the pixels "
                "of all images together.",
            ),
            Sum(
                name="mean_dice", title="mean Dice", rows=self._confusion, value=macro_f1, possible=_is_confusion,
                chance="constant",
                meaning="Mean of the Dice score over the classes that occur or are said, each over the pixels of all "
                "images together.",
            ),
            Sum(
                name="pixel_accuracy", title="accuracy of pixels", rows=self._confusion, value=_accuracy,
                possible=_is_confusion, chance="majority",
                meaning="Share of right answers over the pixels of all images together.",
            ),
            *of_classes,
        )  # fmt: skip

    def _confusion(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return at how many pixels of each image a class is right, said and true, [B, 3, C]."""
        scores, y = self._flat(logits, y)
        classes = torch.arange(scores.shape[-1], device=y.device)
        said, true = scores.argmax(-1)[..., None] == classes, y[..., None] == classes
        said = said & (y != IGNORED)[..., None]
        return torch.stack([(said & true).sum(1), said.sum(1), true.sum(1)], 1).double()

    def _flat(self, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, P, C] and targets [B, P] int64 of P pixels."""
        if logits.ndim < 2 or (logits.shape[0], *logits.shape[2:]) != tuple(y.shape):
            raise SettingError(
                f"logits are those of the classes for each pixel, {[len(y), 'C', *y.shape[1:]]}, got "
                f"{list(logits.shape)} for masks {list(y.shape)}: take a network that answers at every pixel of an "
                "image, such as 'unet'"
            )
        scores = logits.reshape(*logits.shape[:2], -1).transpose(1, 2)
        return scores, y.reshape(len(y), -1).long()


def _dice_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Return the Dice loss of each image, [B], by logits [B, P, C] and targets [B, P]."""
    true = (y[..., None] == torch.arange(scores.shape[-1], device=y.device)).to(scores.dtype)
    likely = scores.softmax(-1) * (y != IGNORED)[..., None]
    size, there = true.sum(1), true.sum(1) > 0
    score = 2 * (likely * true).sum(1) / torch.where(there, likely.sum(1) + size, 1.0)
    return 1 - score.sum(1) / there.sum(1).clamp(min=1)  # of a class that is not there the score is 0


def _union(total: Tensor) -> Tensor:
    return total[1] + total[2] - total[0]


def _mean_iou(total: Tensor, count: int) -> float:
    known = _union(total) > 0
    return float((total[0] / _union(total))[known].mean()) if bool(known.any()) else math.nan


def _accuracy(total: Tensor, count: int) -> float:
    right, _, true = total.sum(1).tolist()
    return float(right / true) if true else math.nan


@dataclass(frozen=True)
class _OfClass:
    """Take the IoU or the Dice score of one class; NaN where it neither occurs nor is said."""

    number: int
    name: str

    def __call__(self, total: Tensor, count: int) -> float:
        own = total[:, self.number : self.number + 1]  # nothing, of a class beyond the network's
        return _mean_iou(own, count) if self.name == "iou" else macro_f1(own, count)


def _is_confusion(total: Tensor, count: int) -> bool:
    """Return whether pixels can add up to a total [3, C]: what is right is said and true, and each pixel is both."""
    finite = bool(total.isfinite().all()) and bool((total >= 0).all())
    return finite and bool((total[0] <= total[1:]).all()) and bool(total[1].sum() == total[2].sum())
