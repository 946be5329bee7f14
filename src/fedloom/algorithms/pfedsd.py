"""pFedSD: personalised federated learning by self-knowledge distillation.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. *Personalized Edge Intelligence via Federated Self-Knowledge Distillation.*
IEEE TPDS 34(2), 2023, Algorithm 1, eq. 4 and 5.

    phi_k(w; v_k) = CE(w) + lam * T^2 * KL(q(v_k; T) || q(w; T))      v_k: the client's model after its last round

Training starts from the global model and is pulled towards the personal one; what it ends with becomes v_k.

Down: the model. Up: the model. Kept by the client: v_k. lam = 0 trains the models of FedAvg with
`aggregation = "uniform"`. Differences from the paper: T^2 (its equation is damaged in our text; the authors' code has
it). From the authors' code: the teacher is in evaluation mode; a client that never took part is judged by the newest
global model, not the initial one; BatchNorm statistics are averaged (`buffers = "server"` keeps the server's, as they
do).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from fedloom.core.averaging import Averaging
from fedloom.core.client import Aggregation
from fedloom.core.errors import SettingError
from fedloom.core.terms import SelfDistillation, Term


@final
@dataclass(frozen=True, kw_only=True)
class PFedSD(Averaging):
    """`lam` >= 0: weight of the distillation. `T` > 0: its temperature."""

    aggregation: Aggregation = "uniform"
    lam: float = 1.0
    T: float = 1.0

    neutral: ClassVar[Mapping[str, Any]] = {"lam": 0}
    judged_by_previous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0 or self.T <= 0:
            raise SettingError(f"pFedSD needs lam >= 0 and T > 0, got lam = {self.lam}, T = {self.T}")

    @property
    def terms(self) -> tuple[Term, ...]:
        return (SelfDistillation(lam=self.lam, T=self.T),)
