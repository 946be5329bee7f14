"""Mark algorithms whose clients take steps of their own, and not those of `train`."""

from __future__ import annotations

from typing import TypeVar

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError

V = TypeVar("V")
S = TypeVar("S")


class OwnSteps(Algorithm[V, S]):
    """Take local steps with learning rates of its own, in the place of `train` and `local.lr` (abstract).

    A `term` would not reach such steps, and is refused.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local.keep_optimiser:
            raise SettingError(
                f"a client keeps the optimiser of `train`, and {type(self).__name__} takes local steps of its own, got "
                "local.keep_optimiser = True: leave it out, or take an algorithm that trains by `train`"
            )
        if type(self).term is not Algorithm.term:
            raise SettingError(
                f"a term is added to the loss of `train`, and {type(self).__name__} takes local steps of its own, "
                "which it would not reach: write the steps with the term in them, or take an algorithm that trains by "
                "`train`"
            )
