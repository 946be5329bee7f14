from dataclasses import dataclass
from typing import ClassVar

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Pull(fl.FedAvg):
    mu: fl.NonNegative = 0.1
    neutral: ClassVar[dict] = {"mu": 0.0}

    def term(self, loss, batch, start):
        return self.mu * (loss.weights.params - start.params).sq_norm()
