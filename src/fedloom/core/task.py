"""What is learnt: a loss and a notion of being right. It belongs to the federation, not to an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch, lend
from fedloom.core.choices import NonNegative, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.types import Params


@runtime_checkable
class Task(Protocol):
    """A frozen (hashable) object with these two pure functions; write your own for other problems."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the real rows of the batch, []. `logits`: [B, C]."""
        ...

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return which rows are right, [B] bool. `logits`: [B, C], `y`: [B]."""
        ...


@runtime_checkable
class NeedsLabelStatistics(Protocol):
    """A task whose loss wants to know more of a client's training examples than a batch says, such as `LDAM`."""

    def notes(self, y: Tensor) -> Mapping[str, Tensor]:
        """Return what is to stand beside each training example, [n, ...] by name, from a client's labels, [n].

        `y` has all labels of one client. A loss reads these notes as annotations, `batch.<name>`, where the batch is of
        the client's training examples.
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """A task whose clients minimise more than its mean loss, such as `SVM`; they are judged by the loss alone."""

    def objective(self, loss: Tensor, count: Tensor, params: Params) -> Tensor:
        """Return what is minimised, [], from the mean `loss` [] over `count` [] examples and the model that has it."""
        ...


@runtime_checkable
class ScheduledLoss(Protocol):
    """A task or an algorithm whose clients know how long a round's training is.

    What they do in a step depends on how many steps are still to come, such as `LDAM` with `drw`. A loss that reads
    `batch.progress` is of that kind.

    `paced_by`: the name of the setting that makes it so; None: it is not so with these settings.
    """

    @property
    def paced_by(self) -> str | None: ...


def check_task(task: object, name: str = "task") -> None:
    """Raise SettingError unless this is an object with the two functions."""
    if isinstance(task, type) or not isinstance(task, Task):
        missing = [method for method in ("loss", "correct") if not callable(getattr(task, method, None))]
        lacks = f", which lacks {' and '.join(missing)}" if missing else f": write {getattr(task, '__name__', task)}()"
        raise SettingError(
            f"{name} must be an object with the methods loss(logits, batch) and correct(logits, y), such as "
            f"fedloom.Classification() for cross-entropy, got {task!r}{lacks}"
        )


def notes_of(task: Task, y: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what a `NeedsLabelStatistics` task wants to know of examples with these labels, in this dtype."""
    told = task.notes(y.clone()) if isinstance(task, NeedsLabelStatistics) else {}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in told.items()}


def loss_of(task: Task, logits: Tensor, batch: Batch, inputs: Callable[[], Tensor] | None = None) -> Tensor:
    """Return the task's mean loss, []. The task may write on what it is given: logits and batch do not change.

    `inputs`: makes batch.x anew, where a network was given it to write on.
    """
    return task.loss(logits.clone(), lend(batch, inputs))


def right_of(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """Return which rows are right, [B] bool, by a task that may write on what it is given."""
    return task.correct(logits.clone(), y.clone())


def check_padding(task: Task, logits: Tensor, x: Tensor, y: Tensor) -> None:
    """Raise SettingError where the task's loss of some rows changes with rows of padding behind them.

    A stack pads the batches of its smaller clients, so results would depend on the engine. `logits`: [B, C] of the rows
    `x` with labels `y`.
    """
    notes = notes_of(task, y, logits.dtype)
    key, real = torch.zeros((), dtype=torch.int64, device=y.device), torch.ones_like(y, dtype=torch.bool)
    plain = loss_of(task, logits, Batch(x=x, y=y, mask=real, key=key, notes=notes, full=True))

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
            "batch.mean(F.cross_entropy(logits, batch.y, reduction='none')) or the like"
        )


@dataclass(frozen=True)
class Classification:
    """Cross-entropy and top-1 accuracy."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none"))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return logits.argmax(-1) == y


@dataclass(frozen=True)
class Hinge:
    """Binary hinge loss of a linear SVM: labels 0 and 1 stand for -1 and +1, logits [B, 1]."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        sign = 2.0 * batch.y.to(logits.dtype) - 1.0
        return batch.mean(F.relu(1.0 - sign * logits.squeeze(-1)))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return (logits.squeeze(-1) > 0) == (y > 0)


@dataclass(frozen=True)
class SVM(Hinge):
    """A linear SVM: hinge loss, added up over the batch or its mean, and a ridge on the weights but not on biases.

    sum:   ridge ||w||^2 + sum_i max(0, 1 - y_i (<w, x_i> + b))        fair_flearn, ridge = 0.5
    mean:  ridge ||w||^2 + mean_i max(0, 1 - y_i (<w, x_i> + b))       Ditto, ridge = 0.01

    Algorithms whose gradients are of all of a client's examples (FedMeta; Per-FedAvg, to be judged) add up over those:
    `mean` fits their rates.
    """

    reduction: Literal["sum", "mean"] = "sum"
    ridge: NonNegative = 0.5

    def __post_init__(self) -> None:
        check_choices(self)

    def objective(self, loss: Tensor, count: Tensor, params: Params) -> Tensor:
        total = loss * count if self.reduction == "sum" else loss
        return total + self.ridge * params.select(lambda name: not name.endswith("bias")).sq_norm()
