"""FedNTD: federated not-true distillation.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, eq. 10 and 11.

    L = CE(q, y) + beta * tau^2 * KL(q~_global || q~_local)      q~: softmax over the not-true classes, at tau

The teacher is the model received this round, frozen, on the same inputs.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.
Differences from the paper: the factor tau^2 (as in the authors' code; the same at the default tau = 1); the mean is
weighted by samples by default, as in the authors' code (eq. 2 has `aggregation = "uniform"`). From the authors'
code: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from fedloom.core.averaging import Averaging
from fedloom.core.errors import SettingError
from fedloom.core.terms import NotTrue, Term


@final
@dataclass(frozen=True, kw_only=True)
class FedNTD(Averaging):
    """`beta` >= 0: weight of the distillation. `tau` > 0: its temperature."""

    beta: float = 1.0
    tau: float = 1.0

    neutral: ClassVar[Mapping[str, Any]] = {"beta": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 0 or self.tau <= 0:
            raise SettingError(f"FedNTD needs beta >= 0 and tau > 0, got beta = {self.beta}, tau = {self.tau}")

    @property
    def terms(self) -> tuple[Term, ...]:
        return (NotTrue(beta=self.beta, tau=self.tau),)
