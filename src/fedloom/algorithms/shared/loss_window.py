"""Plateaus and peaks of a loss: when something has been learnt, and when something new begins.

Aljundi, Kelchtermans, Tuytelaars. *Task-Free Continual Learning.* CVPR 2019, as Ni, Shen and Zhang use it (2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.types import replace, state


@state
class Window:
    """The last losses. Armed, it waits for a plateau; quiet, for a peak, which arms it again."""

    losses: Tensor  # [L], the newest last
    seen: Tensor  # [] int64: how many there were
    armed: Tensor  # [] bool
    mean: Tensor  # [] of the losses at the last plateau
    std: Tensor  # []

    @staticmethod
    def new(length: int) -> Window:
        return Window(
            losses=torch.zeros(length),
            seen=torch.tensor(0),
            armed=torch.tensor(True),
            mean=torch.tensor(0.0),
            std=torch.tensor(0.0),
        )

    @property
    def now(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (of the population) of the losses that are there, [] each."""
        there = self.losses[-int(self.seen.clamp(max=len(self.losses))) :]
        return there.mean(), there.std(correction=0)

    def push(self, loss: Tensor, delta_mu: float, delta_sigma: float, min_fill: int) -> tuple[Window, Tensor]:
        """Return the window with one more finite loss, and whether it has come to a plateau, [] bool."""
        new = replace(self, losses=torch.cat([self.losses[1:], loss[None]]), seen=self.seen + 1)
        if new.seen < min_fill:
            return new, torch.zeros_like(self.armed)
        mean, std = new.now
        plateau = self.armed & (mean < delta_mu) & (std < delta_sigma)
        if plateau:
            return replace(new, armed=~plateau, mean=mean, std=std), plateau
        return replace(new, armed=self.armed | (mean > self.mean + self.std)), plateau
