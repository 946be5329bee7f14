"""Take what a client's weights moved for a sum of gradients."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client
from fedloom.core.errors import SettingError

V = TypeVar("V")
S = TypeVar("S")


class SumsGradients(Algorithm[V, S]):
    """Read gradients from moved weights, so that local steps must be those of SGD (abstract)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.keep_optimiser:
            raise SettingError(
                f"{type(self).__name__} reads gradients from what the steps of one round have moved, and kept momentum "
                "moves by those of earlier rounds too, got local.keep_optimiser = True: leave it out"
            )
        try:
            self.local.optimiser.effective_steps(torch.ones(()))
        except SettingError as error:
            name = type(self).__name__
            told = f"{name} reads gradients from its steps, and {error} for all methods, or leave {name} out"
            raise SettingError(told) from None

    def plain_steps(self, client: Client[Any], counted: Literal["adaptive", "steps"] = "adaptive") -> Tensor:
        """Return the number of plain SGD steps that a client's training of this round amounts to, [] float64.

        Args:
            client: the client.
            counted: "adaptive": by the optimiser's momentum; "steps": the number of steps taken.
        """
        taken = client.train.num_steps
        return self.local.optimiser.effective_steps(taken) if counted == "adaptive" else taken.double()
