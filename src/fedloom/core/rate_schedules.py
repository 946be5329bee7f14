"""Schedules of a learning rate, in words: `cosine:100`, `step:30:0.1`, `exponential:0.99`, each with a warm-up."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, arguments, make_named
from fedloom.wording import whole

By = Literal["round", "step"]
FORM = "NAME:VALUE?warmup=N&by=step"


@dataclass(frozen=True)
class RateSchedule:
    """Factor of a learning rate over time.

    `after`: the factor at a time from 0, [] or [K] float64, once the warm-up is over. `warmup`: at times 0 to
    `warmup` - 1 the factor is (t + 1) / (warmup + 1), as of PyTorch's `LinearLR` and `SequentialLR`. `by`: what a time
    is: a round, or a step of the optimiser that has the schedule.
    """

    after: Callable[[Tensor], Tensor]
    warmup: int = 0
    by: By = "round"

    def factor(self, time: Tensor) -> Tensor:
        """Return the factor at a time, [] or [K] float64, from 0."""
        factor = self.after((time - self.warmup).clamp(min=0))
        return torch.where(time < self.warmup, (time + 1) / (self.warmup + 1), factor) if self.warmup else factor


def _constant() -> Callable[[Tensor], Tensor]:
    return torch.ones_like


def _cosine(over: int, end: float = 0.0) -> Callable[[Tensor], Tensor]:
    if over < 1 or not 0 <= end <= 1:
        raise ValueError("OVER must be >= 1, and END in 0..1")
    return lambda t: end + (1 - end) * 0.5 * (1 + torch.cos(math.pi * (t / over).clamp(max=1.0)))


def _step(every: int, factor: float = 0.1) -> Callable[[Tensor], Tensor]:
    if every < 1 or not 0 < factor <= 1:
        raise ValueError("EVERY must be >= 1, and FACTOR above 0 and at most 1")
    return lambda t: factor ** torch.floor(t / every)


def _exponential(factor: float) -> Callable[[Tensor], Tensor]:
    if not 0 < factor <= 1:
        raise ValueError("FACTOR must be above 0 and at most 1")
    return lambda t: factor**t


SCHEDULES = {
    "constant": Named(("constant",), _constant),
    "cosine": Named(("cosine:OVER", "cosine:OVER:END"), _cosine, (int, float)),
    "step": Named(("step:EVERY", "step:EVERY:FACTOR"), _step, (int, float)),
    "exponential": Named(("exponential:FACTOR",), _exponential, (float,)),
}
"""Schedules by name."""


@functools.cache
def rate_schedule(text: str) -> RateSchedule:
    """Return the schedule that a text names.

    Args:
        text: such as `cosine:100`, or `step:30:0.1?warmup=5&by=step`.

    Raises:
        SettingError: there is none of this name, or a value is missing, of another kind or out of range.
    """
    named, mark, more = text.partition("?")
    after = make_named("schedule", named, SCHEDULES)
    kinds = {"warmup": whole, "by": By}
    return RateSchedule(after, **(arguments("schedule", more, kinds, FORM) if mark else {}))


def factor_at(text: str, round: int) -> float:
    """Return the factor of a learning rate in a round, from 0; of a schedule by steps it is 1."""
    if text == "constant" or (found := rate_schedule(text)).by == "step":
        return 1.0
    return float(found.factor(torch.tensor(round, dtype=torch.float64)))


def by_rounds(name: str, text: str) -> None:
    """Refuse a schedule by steps where a time is a round.

    Args:
        name: of the setting.
        text: its value.

    Raises:
        SettingError: it is by steps, or no schedule.
    """
    if rate_schedule(text).by == "step":
        raise SettingError(f"{name} is by rounds, got {text!r}: leave by=step out")
