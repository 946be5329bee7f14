"""One paper, one file, named here by its module: fedavg.py defines `FedAvg`, the method `fedavg`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedloom.algorithms.apfl_deng import APFLDeng as APFLDeng
from fedloom.algorithms.apfl_ni import APFLNi as APFLNi
from fedloom.algorithms.centralised import Centralised as Centralised
from fedloom.algorithms.dense import DENSE as DENSE
from fedloom.algorithms.ditto import Ditto as Ditto
from fedloom.algorithms.fed_adi import FedADI as FedADI
from fedloom.algorithms.fed_dafl import FedDAFL as FedDAFL
from fedloom.algorithms.fedala import FedALA as FedALA
from fedloom.algorithms.fedalign import FedAlign as FedAlign
from fedloom.algorithms.fedavg import FedAvg as FedAvg
from fedloom.algorithms.fedavg_ft import FedAvgFT as FedAvgFT
from fedloom.algorithms.fedavg_stored import FedAvgStored as FedAvgStored
from fedloom.algorithms.fedavgm import FedAvgM as FedAvgM
from fedloom.algorithms.fedbabu import FedBABU as FedBABU
from fedloom.algorithms.fedbe import FedBE as FedBE
from fedloom.algorithms.fedbn import FedBN as FedBN
from fedloom.algorithms.fedcurv import FedCurv as FedCurv
from fedloom.algorithms.fedcurv_ni import FedCurvNi as FedCurvNi
from fedloom.algorithms.feddf import FedDF as FedDF
from fedloom.algorithms.feddyn import FedDyn as FedDyn
from fedloom.algorithms.fedexp import FedExP as FedExP
from fedloom.algorithms.fedfomo import FedFomo as FedFomo
from fedloom.algorithms.fedgkd import FedGKD as FedGKD
from fedloom.algorithms.fedlc import FedLC as FedLC
from fedloom.algorithms.fedmd import FedMD as FedMD
from fedloom.algorithms.fedmd_kt import FedMDKT as FedMDKT
from fedloom.algorithms.fedmeta import FedMeta as FedMeta
from fedloom.algorithms.fednova import FedNova as FedNova
from fedloom.algorithms.fedntd import FedNTD as FedNTD
from fedloom.algorithms.fedntd_mse import FedNTDMSE as FedNTDMSE
from fedloom.algorithms.fedper import FedPer as FedPer
from fedloom.algorithms.fedproto import FedProto as FedProto
from fedloom.algorithms.fedprox import FedProx as FedProx
from fedloom.algorithms.fedrep import FedRep as FedRep
from fedloom.algorithms.fedrod import FedRoD as FedRoD
from fedloom.algorithms.fedsam import FedSAM as FedSAM
from fedloom.algorithms.fml import FML as FML
from fedloom.algorithms.ifca import IFCA as IFCA
from fedloom.algorithms.kd_ntd import KDNTD as KDNTD
from fedloom.algorithms.kt_pfl import KTpFL as KTpFL
from fedloom.algorithms.kt_pfl_weights import KTpFLWeights as KTpFLWeights
from fedloom.algorithms.lg_fedavg import LGFedAvg as LGFedAvg
from fedloom.algorithms.local_only import LocalOnly as LocalOnly
from fedloom.algorithms.moon import MOON as MOON
from fedloom.algorithms.per_fedavg import PerFedAvg as PerFedAvg
from fedloom.algorithms.pfeddf import PFedDF as PFedDF
from fedloom.algorithms.pfedme import PFedMe as PFedMe
from fedloom.algorithms.pfedsd import PFedSD as PFedSD
from fedloom.algorithms.q_fedavg import QFedAvg as QFedAvg
from fedloom.algorithms.scaffold import Scaffold as Scaffold
from fedloom.algorithms.server_optimisers import FedAdagrad as FedAdagrad, FedAdam as FedAdam, FedYogi as FedYogi
from fedloom.algorithms.sim_pfl import SimPFL as SimPFL
from fedloom.algorithms.topk_pfl import TopKPFL as TopKPFL
from fedloom.core.algorithm import Algorithm

FAMILIES: dict[str, tuple[type[Algorithm[Any, Any]], ...]] = {
    "one global model": (
        FedAvg,
        FedAvgM,
        FedAdam,
        FedYogi,
        FedAdagrad,
        FedExP,
        QFedAvg,
        FedProx,
        FedNova,
        Scaffold,
        FedDyn,
        MOON,
        FedCurv,
        FedCurvNi,
        FedAlign,
        FedSAM,
        FedLC,
    ),
    "distillation against forgetting": (FedNTD, KDNTD, FedNTDMSE, FedGKD),
    "the server trains, too": (FedDF, FedBE),
    "one round of uploads": (DENSE, FedDAFL, FedADI),
    "personal models": (
        PFedSD,
        APFLNi,
        APFLDeng,
        FedPer,
        FedRoD,
        FedRep,
        FedBABU,
        FedBN,
        LGFedAvg,
        FedAvgStored,
        FedAvgFT,
        PFedMe,
        Ditto,
        FML,
        FedALA,
        IFCA,
        FedFomo,
        FedMeta,
        PerFedAvg,
        PFedDF,
    ),
    "several architectures, prototypes": (FedProto,),
    "several architectures, public data": (KTpFL, KTpFLWeights, SimPFL, TopKPFL, FedMD, FedMDKT),
    "references": (LocalOnly, Centralised),
}
"""The algorithms, as lists of them are ordered."""

_KINDS = [kind for family in FAMILIES.values() for kind in family]
_IN_FILE = Counter(kind.__module__ for kind in _KINDS)

ALGORITHMS: dict[str, type[Algorithm[Any, Any]]] = {
    kind.__module__.rpartition(".")[2] if _IN_FILE[kind.__module__] == 1 else kind.__name__.lower(): kind
    for kind in _KINDS
}
"""By their names on the command line: that of the file, or, where a file has several, of the class in small letters."""

globals()["__all__"] = ["ALGORITHMS", *(kind.__name__ for kind in ALGORITHMS.values())]  # type checkers read imports
