"""FedProx: a proximal term that holds the local model near the one received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. *Federated Optimization in Heterogeneous Networks.* MLSys 2020.
https://arxiv.org/abs/1812.06127, eq. 2.

    L = CE(w) + mu / 2 * ||w - w_received||^2      over all trained parameters

Down: the model. Up: the model. Kept by the client: nothing. mu = 0 is FedAvg.
Differences from the paper: the local solver is the run's (momentum included, as in the comparisons of FedNTD), not
plain gradient descent; stragglers are lost and do not send partial work. `sampler = "by_size"` with
`aggregation = "uniform"` is the sampling of the paper's analysis. From FedNTD's code: none (its
table says mu = 0.1, its configuration file 1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

from fedloom.core.averaging import Averaging
from fedloom.core.errors import SettingError
from fedloom.core.terms import Proximal, Term


@final
@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """`mu` >= 0: weight of the proximal term."""

    mu: float = 0.1

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise SettingError(f"FedProx needs mu >= 0, got mu = {self.mu}")

    @property
    def terms(self) -> tuple[Term, ...]:
        return (Proximal(self.mu),)
