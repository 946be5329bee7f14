"""FedAvg with stored local models: FedAvg's rounds, each client evaluated by the model that it trained last.

McMahan et al., AISTATS 2017, with the other reading of its personal accuracy: the control of pFedSD's comparison, for
which it is `lam = 0` and the same `aggregation`, and of other methods with personal models. It shows the effect of
keeping a model alone.

Down: the model. Up: the model. Kept by the client: the whole model with which its last training ended. The server's
weights are those of FedAvg. A client that never took part is evaluated by the newest global model.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.algorithms.fedavg import FedAvg
from fedloom.core.averaging import KeepsModel


@dataclass(frozen=True, kw_only=True)
class FedAvgStored(KeepsModel, FedAvg):
    """See `Averaging` for the settings."""
