"""Define a task: a loss, and the measures by which models are compared. It belongs to the federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedloom.core.batch import Batch, lend, probe
from fedloom.core.errors import SettingError
from fedloom.core.types import Params


@runtime_checkable
class Task(Protocol):
    """A frozen (hashable) object with this pure function, and one way to measure models; write your own.

    A task of class numbers says which rows are right: `correct(logits, y)`, logits [B, C] and targets [B] to [B] bool.
    Any other says its `measures`, the headline first (`fedloom.core.task_measures`), and what its `targets` are.
    """

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, ...].
            batch: the examples, with targets `batch.y` and the number of real rows.
        """
        ...


TargetKind = Literal["classes", "numbers", "labels", "tokens", "pixels"]
"""Class numbers [N] int64; floating point numbers [N] or [N, D]; labels [N, L], each 0 or 1; token ids int64, [N, T] or
[N], -100 where none counts; class numbers of pixels, integers [N, H, W], -100 where none counts."""


class TargetMoments(NamedTuple):
    """Mean and standard deviation of each target over the training examples of all clients."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@runtime_checkable
class FitsTargets(Protocol):
    """A task that is made for its targets before a run, such as `Regression`, which standardises them."""

    def fit(self, moments: TargetMoments) -> Task: ...


def needs_moments(task: object) -> bool:
    """Return whether a task is another one once it is made for its targets; one that standardises nothing is not."""
    if not isinstance(task, FitsTargets):
        return False
    fitted: object = task.fit(TargetMoments((0.0,), (1.0,)))
    return fitted is not task


@runtime_checkable
class WeighsExamples(Protocol):
    """A task whose mean loss is a weighted one, such as `NextToken` and `Classification` with class weights."""

    def example_weights(self, batch: Batch) -> Tensor:
        """Return the weight of each example in the mean loss, [B], such as how many of its targets count."""
        ...


@runtime_checkable
class NeedsLabelStatistics(Protocol):
    """A task whose loss needs statistics of all labels of a client, such as `LDAM`."""

    def notes(self, y: Tensor) -> Mapping[str, Tensor]:
        """Return what is to stand beside each training example, [n, ...] by name, from a client's labels, [n].

        `y` has all labels of one client. A loss reads these notes as annotations, `batch.<name>`, where the batch is of
        the client's training examples.
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """A task whose clients minimise more than its mean loss, such as `SVM`; evaluation uses the loss alone."""

    def objective(self, loss: Tensor, count: Tensor, params: Params) -> Tensor:
        """Return what is minimised, [], from the mean `loss` [] over `count` [] examples and the model that has it."""
        ...


@runtime_checkable
class ScheduledLoss(Protocol):
    """A task or an algorithm whose local step depends on how far the round's training has progressed.

    `LDAM` with `drw` is one. So is a loss that reads `batch.progress`.

    `paced_by`: the name of the setting that makes it so; None: it is not so with these settings.
    """

    @property
    def paced_by(self) -> str | None: ...


@runtime_checkable
class ChoosesThreshold(Protocol):
    """A task whose threshold is chosen on the validation examples of all clients after a round, such as `Binary`."""

    @property
    def chosen_by(self) -> str | None:
        """The measure, a `Sum`, whose total over these examples chooses the threshold; None: it is set."""
        ...

    def choose(self, total: Tensor) -> float | None:
        """Return the threshold that a total chooses; None where it chooses none."""
        ...

    def at(self, threshold: float) -> Task:
        """Return the task with this threshold, to predict by."""
        ...

    def measured_at(self, threshold: float | None) -> Task:
        """Return a task that takes the values of this one's sums at a threshold."""
        ...


def require_task(task: object, name: str = "task") -> None:
    """Raise SettingError unless this is an object with a loss and a way to measure models."""
    lacks = [] if callable(getattr(task, "loss", None)) else ["loss"]
    if not (callable(getattr(task, "correct", None)) or hasattr(task, "measures")):
        lacks.append("correct")
    if isinstance(task, type) or lacks:
        remedy = f", which lacks {' and '.join(lacks)}" if lacks else f": write {getattr(task, '__name__', task)}()"
        raise SettingError(
            f"{name} must be an object with the methods loss(logits, batch) and correct(logits, y), such as "
            f"fedloom.Classification() for cross-entropy, got {task!r}{remedy} [FL-TASK-001]"
        )


def targets_of(task: Any) -> TargetKind:
    """Return what the targets of a task are."""
    kind: TargetKind = getattr(task, "targets", "classes")
    return kind


def weight_of(task: Task, batch: Batch) -> Tensor:
    """Return how much a batch counts in a mean loss over several, [] float64: the weights of its real rows, or 1 each.

    The task may write on the batch that it is given.
    """
    each = task.example_weights(lend(batch)) if isinstance(task, WeighsExamples) else torch.ones_like(batch.mask)
    return torch.where(batch.mask, each.double(), 0.0).sum()


def per_weight(total: Any, weight: Tensor) -> Any:
    """Return a weighted sum divided by the sum of its weights, []; the sum itself where nothing weighs."""
    return total / torch.where(weight > 0, weight, torch.ones_like(weight))


def notes_of(task: Task, y: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what a `NeedsLabelStatistics` task wants to know of examples with these labels, in this dtype."""
    told = task.notes(y.clone()) if isinstance(task, NeedsLabelStatistics) else {}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in told.items()}


def loss_of(task: Task, logits: Tensor, batch: Batch, inputs: Callable[[], Tensor] | None = None) -> Tensor:
    """Return the task's mean loss, []. The task may write on what it is given: logits and batch do not change.

    `inputs`: makes batch.x anew, where a network was given it to write on.
    """
    if not isinstance(logits, Tensor):
        raise TypeError(f"logits must be a tensor, not {type(logits).__name__}")
    return task.loss(logits.clone(), lend(batch, inputs))


def check_padding(task: Task, logits: Tensor, x: Tensor, y: Tensor) -> None:
    """Raise SettingError where the task's loss of some rows changes with rows of padding behind them, or by itself.

    A stack pads the batches of its smaller clients, so results would depend on the engine. `logits`: [B, C] of the rows
    `x` with labels `y`.
    """
    notes = notes_of(task, y, logits.dtype)
    key = torch.zeros((), dtype=torch.int64, device=y.device)
    real = torch.ones(len(y), dtype=torch.bool, device=y.device)
    plain, again = (loss_of(task, logits, probe(x, y, notes)) for _ in range(2))
    if not torch.allclose(plain, again, rtol=1e-6, atol=1e-6, equal_nan=True):
        raise SettingError(
            f"task {type(task).__name__} draws random numbers that no seed governs, or counts its calls: its loss of "
            f"the same rows was {float(plain):.4g} and then {float(again):.4g}; draw by the key of the batch, as "
            "fedloom.core.random.normal(batch.key, 0, shape) does"
        )

    def behind(rows: Tensor) -> Tensor:  # padding is copies of the first row
        return torch.cat([rows, rows[:1].expand_as(rows)])

    # other logits than the real rows', who share one loss where a network begins with zeros
    far = torch.linspace(-5.0, 5.0, logits.numel(), dtype=logits.dtype, device=logits.device).reshape(logits.shape)
    more = {name: behind(t) for name, t in notes.items()}
    batch = Batch(x=behind(x), y=behind(y), mask=torch.cat([real, ~real]), key=key, notes=more)
    padded = loss_of(task, torch.cat([logits, far]), batch)
    if not torch.allclose(plain, padded, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise SettingError(
            f"task {type(task).__name__} counts rows of padding: its loss must be a mean over the real rows, got "
            f"{float(plain):.4g} of {len(y)} of them and {float(padded):.4g} with padding behind; write "
            "batch.mean(F.cross_entropy(logits, batch.y, reduction='none')) or the like [FL-TASK-002]"
        )
