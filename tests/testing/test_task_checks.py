"""The battery for tasks: fedloom's own pass, and each wrong one is refused with a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

import fedloom as fl
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.core.batch import Batch
from fedloom.core.task_measures import Score, Sum
from fedloom.tasks.ranking import roc_auc
from fedloom.testing import TASK_CHECKS, TaskSubject, check_task

OWN: list[tuple[Any, int | None]] = [
    (fl.Classification(class_weights=(1.0, 2.0, 5.0)), None),
    (fl.Binary(threshold=0.3, positive_weight=4.0), 1),
    (fl.MultiLabel(), None),
    (fl.Regression(), 1),
    (fl.Regression(error="huber"), None),
    (fl.Classification(focal=2.0), None),
    (fl.SVM(), 1),
    (LDAM(drw=0.8), None),
    (fl.NextToken(), None),
    (fl.Segmentation(by_class=3), None),
    (fl.Segmentation(error="both"), None),
]


@pytest.mark.some(1)
@pytest.mark.parametrize(("task", "outputs"), OWN, ids=lambda value: type(value).__name__)
def test_tasks_of_fedloom_pass(task: Any, outputs: int | None) -> None:
    check_task(task, outputs=outputs)


@dataclass(frozen=True)
class Counts:
    """A sound task of one's own, of numbers that count; each wrong one differs from it in one thing."""

    targets: ClassVar[Any] = "numbers"

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        y = self.fitting(logits, batch.y).to(logits.dtype)
        return batch.mean(F.huber_loss(logits, y, reduction="none").mean(1))

    def fitting(self, logits: Tensor, y: Tensor) -> Tensor:
        y = y.reshape(len(y), -1)
        if y.shape != logits.shape:
            raise fl.SettingError(f"got {list(y.shape)} targets for {list(logits.shape)} outputs")
        return y

    def error(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits - self.fitting(logits, y)).abs().mean(1).double()

    def close(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.error(logits, y) < 1.0

    @property
    def measures(self) -> tuple[Any, ...]:
        return (
            Sum(name="error", title="error", meaning="Mean absolute error.", rows=self.error, better="low", unit=""),
            Sum(name="close", title="close", meaning="Share of errors below 1.", rows=self.close),
        )


def headline(**changes: Any) -> Any:
    """The measures of a task whose first one has other fields."""
    return property(
        lambda self: (Sum(**{**{n: getattr(Counts().measures[0], n) for n in FIELDS}, "rows": self.error, **changes}),)
    )


FIELDS = ("name", "title", "meaning", "rows", "value", "better", "unit")


@pytest.mark.slow
def test_a_sound_task_of_ones_own_passes() -> None:
    check_task(Counts())
    check_task(Counts(), outputs=1)


@pytest.mark.slow
def test_a_task_of_correct_alone_passes() -> None:
    class Plain:
        def loss(self, logits: Tensor, batch: Batch) -> Tensor:
            return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))

        def correct(self, logits: Tensor, y: Tensor) -> Tensor:
            return logits.argmax(-1) == y

    check_task(Plain(), outputs=4)
    with pytest.raises(fl.SettingError, match=r"got <class .*Plain'>: write Plain\(\)"):
        check_task(Plain)  # type: ignore[arg-type]


class _Score(Counts):
    """Rank the first output; `wrong` says how."""

    wrong: ClassVar[str] = ""

    @property
    def measures(self) -> tuple[Any, ...]:
        def outputs(logits: Tensor) -> Tensor:
            return logits[:, 0] - logits[:, 0].mean() if self.wrong == "company" else logits[:, 0]

        def values(outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
            if self.wrong == "padding":
                real = torch.ones_like(real)
            if self.wrong == "order":
                outputs = outputs + torch.arange(outputs.shape[-1])
            return roc_auc(outputs, (y if y.ndim == 2 else y[..., 0]) > 5, real)

        rank = Score(name="rank", title="rank", meaning="Area.", outputs=outputs, values=values)
        return (*super().measures, rank)


@pytest.mark.slow
def test_a_sound_score_passes() -> None:
    check_task(_Score())


def wrong(check: str, message: str) -> Any:
    def mark(kind: type) -> type:
        WRONG.append((check, message, dataclass(frozen=True)(kind) if kind is not Unhashable else kind))
        return kind

    return mark


WRONG: list[tuple[str, str, type]] = []


@dataclass(frozen=True)
class Unhashable(Counts):
    weights: list[float] = field(default_factory=list)


WRONG.append(("declarations_hold", "can be hashed .*: make it a frozen dataclass", Unhashable))


@wrong("loss_is_a_mean", r"is the mean of those of two batches .* write example_weights\(batch\)")
class WeighedInBatches(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        y = self.fitting(logits, batch.y).to(logits.dtype)
        weight = 1 + (logits.detach()[:, 0] > 0)
        return batch.mean(weight * (logits - y).square().mean(1)) / batch.mean(weight.to(logits.dtype))


@wrong("declarations_hold", "targets are 'classes' or 'numbers' or 'labels' or 'tokens' or 'pixels', got 'number'")
class MisspeltTargets(Counts):
    targets: ClassVar[Any] = "number"


@wrong("declarations_hold", "a task has at least one measure")
class NoMeasures(Counts):
    measures: ClassVar[Any] = ()


@wrong("declarations_hold", "lower-case letters, digits and _, .* got 'Mean error'")
class SpokenName(Counts):
    measures = headline(name="Mean error")


@wrong("declarations_hold", "measure 'loss' would be global_loss in records")
class TakenName(Counts):
    measures = headline(name="loss")


@wrong("declarations_hold", "measures have different names, got error, error")
class TwiceTheSame(Counts):
    measures = property(lambda self: (Counts().measures[0],) * 2)  # type: ignore[assignment]


@wrong("declarations_hold", "'error' is better 'high' or 'low', got 'lower'")
class MisspeltDirection(Counts):
    measures = headline(better="lower")


@wrong("declarations_hold", "unit of measure 'error' is '%' .* got 'days'")
class OtherUnit(Counts):
    measures = headline(unit="days")


@wrong("declarations_hold", "a title and a meaning: write them")
class NoMeaning(Counts):
    measures = headline(meaning=" ")


@wrong("declarations_hold", "a task of numbers says its measures, got correct")
class CorrectAlone:
    targets: ClassVar[Any] = "numbers"
    loss = Counts.loss

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return logits[:, 0] > 0


@wrong("loss_is_a_mean", r"one floating point number, got torch.float64 of shape \[24\]: return batch.mean")
class LossByRow(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return self.error(logits, batch.y)


@wrong("loss_is_a_mean", "counts rows of padding: .* mean over the real rows")
class CountsPadding(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return self.error(logits, batch.y).mean()


@wrong("loss_is_a_mean", "the loss is a mean, not a sum")
class AddsUp(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(self.error(logits, batch.y)) * batch.mask.sum()


@wrong("loss_is_a_mean", "depends on the order of rows")
class Ordered(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        weight = torch.arange(len(batch.y)) + 1.0
        return batch.mean(weight * self.error(logits, batch.y)) / batch.mean(weight)


@wrong("loss_is_a_mean", "the loss of a row depends on other rows")
class Standardises(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        each = batch.mask[:, None] * logits
        centre = each.sum(0) / batch.mask.sum()
        return batch.mean(self.error(logits - centre, batch.y))


@wrong("loss_is_a_mean", "the loss is finite in float32, got inf of logits up to 60")
class LogOfProbability(fl.Classification):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        p = logits.softmax(-1).gather(-1, batch.y[:, None])[:, 0]
        return batch.mean(-p.log())


@wrong("loss_is_a_mean", "the loss is finite, got nan of random logits")
class NotFinite(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits[:, 0].log())


@wrong("loss_trains", "no gradient flows from the loss")
class Detached(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(self.error(logits.detach(), batch.y))


@wrong("loss_trains", "the gradient of the loss by the logits is 0")
class Flat(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(self.error(0 * logits, batch.y))


@wrong("loss_trains", "is not finite on random logits")
class RootAtZero(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        root = torch.where(logits[:, 0] > 0, logits[:, 0].sqrt(), 0.0)  # whose gradient is NaN below 0
        return batch.mean(root + self.error(logits, batch.y))


@wrong("other_targets_are_refused", "the loss takes 3 targets for 2 outputs: compare shapes")
class TakesTheFirst(Counts):
    def fitting(self, logits: Tensor, y: Tensor) -> Tensor:
        return y.reshape(len(y), -1)[:, : logits.shape[1]]


@wrong("other_targets_are_refused", "the loss refuses 3 targets of 2 outputs without a message")
class RefusesWordlessly(Counts):
    def fitting(self, logits: Tensor, y: Tensor) -> Tensor:
        if y.reshape(len(y), -1).shape != logits.shape:
            raise ValueError
        return y.reshape(len(y), -1)


@wrong("nothing_is_overwritten", "the loss writes on what it is given")
class InPlace(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(logits.sub_(self.fitting(logits, batch.y)).abs().mean(1))


@wrong("nothing_is_overwritten", "the measure 'error' writes on what it is given")
class MeasuresInPlace(Counts):
    def error(self, logits: Tensor, y: Tensor) -> Tensor:
        return y.reshape(len(y), -1).sub_(logits).abs().mean(1).double()


@wrong("sums_add_up", "rows of measure 'error' are bools, .* got torch.int64")
class Integers(Counts):
    def error(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().error(logits, y).long()


@wrong("sums_add_up", r"one for each example, \[24, ...\], got \[\]: do not add them up")
class Adds(Counts):
    def error(self, logits: Tensor, y: Tensor) -> Tensor:
        return super().error(logits, y).sum()


@wrong("sums_add_up", "depends on the others of its batch: the sum would be another in another split")
class ComparesToBatch(Counts):
    def error(self, logits: Tensor, y: Tensor) -> Tensor:
        each = super().error(logits, y)
        return each - each.mean()


@wrong("scores_ignore_order_and_company", "outputs of measure 'rank' depend on the other rows")
class ScoreOfBatch(_Score):
    wrong: ClassVar[str] = "company"


@wrong("scores_ignore_order_and_company", "counts rows that are not real, or another set's")
class ScoresPadding(_Score):
    wrong: ClassVar[str] = "padding"


@wrong("scores_ignore_order_and_company", "measure 'rank' depends on the order of rows")
class ScoresByPlace(_Score):
    wrong: ClassVar[str] = "order"


@wrong("measures_are_in_range", "measure 'error' is a share, between 0 and 1, got")
class NoShare(Counts):
    measures = headline(unit="%")


@wrong("measures_are_in_range", "is better high, and gets worse where the loss is minimised.*direction right")
class TurnedRound(Counts):
    measures = headline(better="high")


@wrong("measures_are_in_range", "measure 'error' is a float, got torch.float64 of shape")
class NoFloat(Counts):
    measures = headline(value=lambda total, count: total / count)


@wrong("undefined_is_nan", "fails on one row .ZeroDivisionError: .*: return NaN where it is undefined")
class DividesByZero(Counts):
    measures = headline(value=lambda total, count: float(total) / (count - 1))


@wrong("undefined_is_nan", "is inf on one row: return NaN")
class Infinite(Counts):
    measures = headline(value=lambda total, count: math.inf if count == 1 else float(total))


@wrong("undefined_is_nan", r"where a model answers one row with NaN: let `silent\(logits, y\)` name that row")
class HearsAnAnswer(Counts):
    measures = headline(rows=lambda logits, y: (logits.nan_to_num() - y).abs().mean(1).double())

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        return torch.zeros(len(y), dtype=torch.bool)


@wrong("engines_agree", "a stacked run fails: ")
class Branches(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        loss = super().loss(logits, batch)
        return loss if loss > 3 else 2 * loss - 3


@wrong("engines_agree", "a traced run trains otherwise than the loop")
class KnowsThatItIsTraced(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().loss(logits, batch) * (1 if get_proxy_mode() is None else 2)


CALLS: list[int] = []


@wrong("engines_agree", "a stacked run trains otherwise than the loop")
class CountsCalls(Counts):
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        CALLS.append(1)
        return super().loss(logits, batch) * (1 + len(CALLS) / 1000)


@pytest.mark.parametrize(("check", "message", "kind"), WRONG, ids=[kind.__name__ for *_, kind in WRONG])
def test_a_wrong_task_is_refused_with_a_sentence(check: str, message: str, kind: type) -> None:
    outputs = 3 if issubclass(kind, fl.Classification) else 2
    with pytest.raises(AssertionError, match=message):
        TASK_CHECKS[check](TaskSubject(kind(), outputs, 3))


def test_every_check_can_fail() -> None:
    assert {check for check, *_ in WRONG} == set(TASK_CHECKS)


def test_the_message_names_task_and_check() -> None:
    with pytest.raises(
        AssertionError, match=r"^AddsUp \(2 logits\) does not pass 'loss_is_a_mean' \(.+\): the loss is"
    ):
        check_task(AddsUp())  # type: ignore[abstract]
