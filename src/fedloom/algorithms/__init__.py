"""One paper, one file. `ALGORITHMS` names them as the command line does."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.centralised import Centralised
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedntd import FedNTD
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.kt_pfl import KTpFL
from fedloom.algorithms.local_only import LocalOnly
from fedloom.algorithms.pfedsd import PFedSD
from fedloom.algorithms.scaffold import Scaffold
from fedloom.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedntd": FedNTD,
    "pfedsd": PFedSD,
    "kt_pfl": KTpFL,
    "local_only": LocalOnly,
    "centralised": Centralised,
}

__all__ = ["ALGORITHMS", "Centralised", "FedAvg", "FedNTD", "FedProx", "KTpFL", "LocalOnly", "PFedSD", "Scaffold"]
