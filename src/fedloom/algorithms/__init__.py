"""One paper, one file. `ALGORITHMS` names them as the command line does."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms.apfl_ni import APFLNi
from fedloom.algorithms.centralised import Centralised
from fedloom.algorithms.dense import DENSE
from fedloom.algorithms.fed_adi import FedADI
from fedloom.algorithms.fed_dafl import FedDAFL
from fedloom.algorithms.fedalign import FedAlign
from fedloom.algorithms.fedavg import FedAvg
from fedloom.algorithms.fedavg_ft import FedAvgFT
from fedloom.algorithms.fedavg_stored import FedAvgStored
from fedloom.algorithms.fedavgm import FedAvgM
from fedloom.algorithms.fedbe import FedBE
from fedloom.algorithms.fedcurv import FedCurv
from fedloom.algorithms.fedcurv_ni import FedCurvNi
from fedloom.algorithms.feddf import FedDF
from fedloom.algorithms.feddyn import FedDyn
from fedloom.algorithms.fedfomo import FedFomo
from fedloom.algorithms.fedmd import FedMD
from fedloom.algorithms.fedmd_kt import FedMDKT
from fedloom.algorithms.fedmeta import FedMeta
from fedloom.algorithms.fednova import FedNova
from fedloom.algorithms.fedntd import FedNTD
from fedloom.algorithms.fedntd_mse import FedNTDMSE
from fedloom.algorithms.fedper import FedPer
from fedloom.algorithms.fedprox import FedProx
from fedloom.algorithms.kd_ntd import KDNTD
from fedloom.algorithms.kt_pfl import KTpFL
from fedloom.algorithms.kt_pfl_weights import KTpFLWeights
from fedloom.algorithms.lg_fedavg import LGFedAvg
from fedloom.algorithms.local_only import LocalOnly
from fedloom.algorithms.moon import MOON
from fedloom.algorithms.per_fedavg import PerFedAvg
from fedloom.algorithms.pfeddf import PFedDF
from fedloom.algorithms.pfedme import PFedMe
from fedloom.algorithms.pfedsd import PFedSD
from fedloom.algorithms.scaffold import Scaffold
from fedloom.algorithms.sim_pfl import SimPFL
from fedloom.algorithms.topk_pfl import TopKPFL
from fedloom.core.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    "fedavg": FedAvg,
    "fedavgm": FedAvgM,
    "fedprox": FedProx,
    "fednova": FedNova,
    "fedcurv": FedCurv,
    "fedcurv_ni": FedCurvNi,
    "scaffold": Scaffold,
    "feddyn": FedDyn,
    "moon": MOON,
    "fedntd": FedNTD,
    "fedalign": FedAlign,
    "kd_ntd": KDNTD,
    "fedntd_mse": FedNTDMSE,
    "feddf": FedDF,
    "fedbe": FedBE,
    "dense": DENSE,
    "fed_dafl": FedDAFL,
    "fed_adi": FedADI,
    "pfedsd": PFedSD,
    "fedper": FedPer,
    "lg_fedavg": LGFedAvg,
    "fedavg_stored": FedAvgStored,
    "fedavg_ft": FedAvgFT,
    "pfedme": PFedMe,
    "fedfomo": FedFomo,
    "fedmeta": FedMeta,
    "per_fedavg": PerFedAvg,
    "apfl_ni": APFLNi,
    "kt_pfl": KTpFL,
    "kt_pfl_weights": KTpFLWeights,
    "sim_pfl": SimPFL,
    "topk_pfl": TopKPFL,
    "fedmd": FedMD,
    "fedmd_kt": FedMDKT,
    "pfeddf": PFedDF,
    "local_only": LocalOnly,
    "centralised": Centralised,
}

__all__ = [
    "ALGORITHMS",
    "DENSE",
    "KDNTD",
    "MOON",
    "APFLNi",
    "Centralised",
    "FedADI",
    "FedAlign",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedAvgStored",
    "FedBE",
    "FedCurv",
    "FedCurvNi",
    "FedDAFL",
    "FedDF",
    "FedDyn",
    "FedFomo",
    "FedMD",
    "FedMDKT",
    "FedMeta",
    "FedNTD",
    "FedNTDMSE",
    "FedNova",
    "FedPer",
    "FedProx",
    "KTpFL",
    "KTpFLWeights",
    "LGFedAvg",
    "LocalOnly",
    "PFedDF",
    "PFedMe",
    "PFedSD",
    "PerFedAvg",
    "Scaffold",
    "SimPFL",
    "TopKPFL",
]
