"""Regression: one or several numbers of each example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.batch import Batch
from fedloom.core.choices import Positive, check_choices
from fedloom.core.errors import SettingError
from fedloom.core.task import TargetKind, TargetMoments
from fedloom.core.task_measures import Sum, TaskMeasure

_UNITS = tuple(2.0**power for power in range(72, -97, -24))
_PLACES = len(_UNITS) + 1  # of a number, with its rest


@dataclass(frozen=True)
class Regression:
    """Learn D numbers of each example: targets [B] or [B, D], outputs of the network [B, D].

    The network learns targets of mean 0 and deviation 1 where they are standardised, by the training examples of all
    clients; measures are in the unit of the targets. The loss, and so `global_loss`, is of what is learnt.

    Args:
        error: what is minimised: the squared error, the absolute one, or Huber's, which is squared up to `delta`.
        delta: where Huber's loss begins to be linear, in the unit of what is learnt.
        standardise: learn standardised targets.
        centre, scale: mean and deviation of each target, by which it is standardised; `fit` takes them of the data.
    """

    error: Literal["squared", "absolute", "huber"] = "squared"
    delta: Positive = 1.0
    standardise: bool = True
    centre: tuple[float, ...] = ()
    scale: tuple[Positive, ...] = ()

    targets: ClassVar[TargetKind] = "numbers"

    def __post_init__(self) -> None:
        check_choices(self)
        if len(self.centre) != len(self.scale):
            raise SettingError(
                f"centre and scale have one value for each target, got {len(self.centre)} and {len(self.scale)}: give "
                "as many of both"
            )

    def fit(self, moments: TargetMoments) -> Self:
        """Return the task that standardises by these means and deviations; targets that do not vary keep theirs.

        Args:
            moments: of the training targets of all clients.
        """
        if not self.standardise or self.centre:
            return self
        scale = tuple(d if d > 0 else 1.0 for d in moments.deviation)
        return replace(self, centre=moments.mean, scale=scale)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean error over the real rows of a batch, [].

        Args:
            logits: outputs of the network, [B, D].
            batch: the examples, with their targets and the number of real rows.
        """
        centre, scale = self._standard(logits)
        wide = torch.promote_types(logits.dtype, torch.float32)  # the error of bfloat16 outputs is no bfloat16
        logits, wanted = logits.to(wide), ((self._columns(batch.y, logits) - centre) / scale).to(wide)
        if self.error == "squared":
            each = (logits - wanted).square()
        elif self.error == "absolute":
            each = (logits - wanted).abs()
        else:
            each = F.huber_loss(logits, wanted, reduction="none", delta=self.delta)
        return batch.mean(each.flatten(1).mean(1))

    def silent(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return on which rows nothing is said, [B] bool: where an output is NaN or infinite.

        Args:
            logits: outputs of the network, [B, D].
            y: targets, [B] or [B, D].
        """
        return ~logits.isfinite().reshape(len(logits), -1).all(-1)

    def predicted(self, logits: Tensor) -> Tensor:
        """Return the predictions in the unit of the targets, [B, D] float64.

        Args:
            logits: outputs of the network, [B, D], standardised if the task standardises.
        """
        centre, scale = self._standard(logits)
        return logits.double() * scale + centre

    @property
    def measures(self) -> tuple[TaskMeasure, ...]:
        """The measures of the task, RMSE first. Of several targets each is the mean over them."""
        return (
            Sum(
                name="rmse", title="RMSE", better="low", unit="", rows=self._squared, value=_root_mean,
                meaning="Root of the mean squared error, in the unit of the target.",
            ),
            Sum(
                name="mae", title="MAE", better="low", unit="", rows=self._absolute, value=_mean,
                meaning="Mean absolute error, in the unit of the target.",
            ),
            Sum(
                name="r2", title="R²", unit="", rows=self._variance, value=_r2, chance=0.0,
                meaning="Share of the target's variance on the examples that is explained: 1 minus the squared error "
                "over that of their mean.",
            ),
        )  # fmt: skip

    def _standard(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return centre and scale, float64: targets far from 0 lose no digits before they are standardised."""
        if logits.ndim != 2:
            raise SettingError(
                f"outputs are a column for each target, (N, D), got {list(logits.shape)}: return (N, 1) where there is "
                "one target, without squeeze(-1)"
            )
        if self.centre and len(self.centre) != logits.shape[-1]:
            raise SettingError(
                f"targets are standardised one by one, got {len(self.centre)} of them and a network with "
                f"{logits.shape[-1]} outputs: take a network with an output for each target"
            )
        moments = (self.centre or [0.0], self.scale or [1.0])
        centre, scale = (torch.tensor(each, dtype=torch.float64, device=logits.device) for each in moments)
        return centre, scale

    def _columns(self, y: Tensor, logits: Tensor) -> Tensor:
        """Return the targets as the outputs are, [B, D]."""
        columns = y[:, None] if y.ndim == 1 else y
        if columns.shape != logits.shape:
            raise SettingError(
                f"outputs are as many as targets, got outputs {list(logits.shape)} for targets {list(y.shape)}: take "
                f"a network with {columns.shape[-1]} output{'s' * (columns.shape[-1] != 1)}"
            )
        return columns.double()

    def _error(self, logits: Tensor, y: Tensor) -> Tensor:
        return self.predicted(logits) - self._columns(y, logits)

    def _squared(self, logits: Tensor, y: Tensor) -> Tensor:
        return self._error(logits, y).square()

    def _absolute(self, logits: Tensor, y: Tensor) -> Tensor:
        return self._error(logits, y).abs()

    def _variance(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return squared error, and the digits of the target and of its square, [B, 1 + 2 * 9, D].

        The variance of targets far from 0 is a small difference of large sums. Digits add up without rounding, in any
        order.
        """
        centre, scale = self._standard(logits)
        wanted = (self._columns(y, logits) - centre) / scale
        square = wanted.square()
        high = _high_half(wanted)
        low = wanted - high
        lost = ((high.square() - square) + 2 * high * low) + low.square()  # by rounding the square (Dekker)
        return torch.cat(
            [(logits.double() - wanted).square()[:, None], _digits(wanted), _digits(square) + _digits(lost)], 1
        )


def _mean(total: Tensor, count: int) -> float:
    return float((total / count).mean())


def _root_mean(total: Tensor, count: int) -> float:
    return float((total / count).sqrt().mean())


def _high_half(numbers: Tensor) -> Tensor:
    """Return numbers rounded to 26 binary digits, whose squares are exact (Veltkamp)."""
    moved = numbers * (2.0**27 + 1)
    return moved - (moved - numbers)


def _digits(numbers: Tensor) -> Tensor:
    """Return numbers [B, D] as sums of multiples of 2^72, 2^48, ... and a rest, [B, 9, D].

    Each is below 2^24 times its unit, so that 2^29 of them add up without rounding.
    """
    out = []
    for unit in _UNITS:
        out.append((numbers / unit).trunc() * unit)
        numbers = numbers - out[-1]
    return torch.stack([*out, numbers], 1)


def _r2(total: Tensor, count: int) -> float:
    if not bool(total.isfinite().all()):
        return math.nan
    values: list[float] = []
    for error, *digits in total.T.tolist():
        first, second = (sum(map(Fraction, of), Fraction()) for of in (digits[:_PLACES], digits[_PLACES:]))
        spread = second - first * first / count
        # what rounding leaves of targets that do not vary: of rests, and of targets beyond 2^60
        least = count * Fraction(2) ** -145 + (second * Fraction(2) ** -40 if second > 2**124 else 0)
        if spread <= least or second > 2**1000:
            return math.nan
        values.append(1 - error / float(spread))
    return sum(values) / len(values)


def target_columns(y: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return targets (N,) or (N, D) as columns (N, D)."""
    return y.astype(np.float64).reshape(len(y), -1)


def mean_in_order(sums: Sequence[npt.NDArray[np.float64]], count: int) -> npt.NDArray[np.float64]:
    """Return the mean (D,) over `count` rows from each client's sums (D,), which are added in the order of clients."""
    return sum(sums, np.zeros(len(sums[0]))) / max(1, count)
