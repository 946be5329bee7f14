"""KD to NTD: from ordinary distillation to FedNTD.

Lee, Jeong, Shin, Bae, Yun. *Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.*
NeurIPS 2022. https://arxiv.org/abs/2106.03097, appendix H, eq. 17 and 18.

    L = CE(q, y) + beta * [ (1 - lam) * tau^2 * KL(q_global || q_local) + lam * tau^2 * KL(q~_global || q~_local) ]

q: softmax at tau, q~: the same over the not-true classes. The teacher is the model received this round, frozen, on the
same inputs. lam = 0 is FedAvg with distillation, lam = 1 FedNTD.

Down: the model. Up: the model. Kept by the client: nothing. beta = 0 is FedAvg.
Differences from the paper: none that is known; it does not say beta and tau, and 1 agrees with its FedNTD. From the
authors' code: there is none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from torch import Tensor

from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch
from fedloom.core.errors import SettingError
from fedloom.core.losses import distillation
from fedloom.core.terms import NotTrue, Term
from fedloom.core.types import Maybe, Weights


@dataclass(frozen=True)
class PartlyNotTrue(NotTrue):
    """(1 - lam) of the divergence over all classes, lam of that over the not-true ones (eq. 17 and 18)."""

    lam: float

    def penalty(
        self, weights: Weights, logits: Tensor, batch: Batch, received: Weights, previous: Maybe[Weights]
    ) -> Tensor:
        kd = self.beta * batch.mean(distillation(logits, batch.teacher, self.tau))
        ntd = super().penalty(weights, logits, batch, received, previous)
        return (1.0 - self.lam) * kd + self.lam * ntd


@final
@dataclass(frozen=True, kw_only=True)
class KDNTD(Averaging):
    """`lam` in [0, 1]: 0 is KD, 1 NTD. `beta` >= 0: weight of the distillation. `tau` > 0: its temperature."""

    lam: float = 0.5
    beta: float = 1.0
    tau: float = 1.0

    neutral: ClassVar[Mapping[str, Any]] = {"beta": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam <= 1 or self.beta < 0 or self.tau <= 0:
            raise SettingError(
                "KD to NTD needs lam in [0, 1], beta >= 0 and tau > 0, "
                f"got lam = {self.lam}, beta = {self.beta}, tau = {self.tau}"
            )

    @property
    def terms(self) -> tuple[Term, ...]:
        return (PartlyNotTrue(beta=self.beta, tau=self.tau, lam=self.lam),)
