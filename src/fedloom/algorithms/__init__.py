"""One paper, one file. `ALGORITHMS` names them as the command line does."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.centralised import Centralised
from fedloom.algorithms.fedalign import FedAlign
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedavgm import FedAvgM
from fedloom.algorithms.fedbe import FedBE
from fedloom.algorithms.fedcurv import FedCurv
from fedloom.algorithms.feddf import FedDF
from fedloom.algorithms.feddyn import FedDyn
from fedloom.algorithms.fedfomo import FedFomo
from fedloom.algorithms.fednova import FedNova
from fedloom.algorithms.fedntd import FedNTD
from fedloom.algorithms.fedntd_mse import FedNTDMSE
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.kd_ntd import KDNTD
from fedloom.algorithms.kt_pfl import KTpFL
from fedloom.algorithms.local_only import LocalOnly
from fedloom.algorithms.moon import MOON
from fedloom.algorithms.pfedme import PFedMe
from fedloom.algorithms.pfedsd import PFedSD
from fedloom.algorithms.scaffold import Scaffold
from fedloom.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "fednova": FedNova,
    "fedcurv": FedCurv,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "moon": MOON,
    "fedntd": FedNTD,
    "fedalign": FedAlign,
    "kd_ntd": KDNTD,
    "fedntd_mse": FedNTDMSE,
    "feddf": FedDF,
    "fedbe": FedBE,
    "pfedsd": PFedSD,
    "pfedme": PFedMe,
    "fedfomo": FedFomo,
    "kt_pfl": KTpFL,
    "local_only": LocalOnly,
    "centralised": Centralised,
}

__all__ = [
    "ALGORITHMS",
    "KDNTD",
    "MOON",
    "Centralised",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedCurv",
    "FedDF",
    "FedDyn",
    "FedFomo",
    "FedNTD",
    "FedNTDMSE",
    "FedNova",
    "FedProx",
    "KTpFL",
    "LocalOnly",
    "PFedMe",
    "PFedSD",
    "Scaffold",
]
