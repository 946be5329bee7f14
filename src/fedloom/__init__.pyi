from fedloom.algorithms import (
    ALGORITHMS,
    KDNTD,
    MOON,
    Centralised,
    FedAlign,
    FedAvg,
    FedAvgM,
    FedBE,
    FedCurv,
    FedDF,
    FedDyn,
    FedNova,
    FedNTD,
    FedNTDMSE,
    FedProx,
    KTpFL,
    LocalOnly,
    PFedSD,
    Scaffold,
)
from fedloom.coordinator import (
    Arriving,
    Available,
    BySize,
    FixedList,
    History,
    Job,
    NewClients,
    RunSettings,
    SeededByRound,
    Uniform,
    run,
    verify,
)
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.augment import Augment
from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch, Batches
from fedloom.core.choices import Count, Ge, Gt, Le, Lt, NonNegative, Positive, WholeNumber
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort, Reduction, Replies
from fedloom.core.fold import fold, minimise
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Adam, Cosine, Digest, Distill, Local
from fedloom.core.task import Classification, Hinge, Task
from fedloom.core.types import Arithmetic, BatchLoss, Maybe, Params, Weighted, Weights, state
from fedloom.data import (
    Dataset,
    Examples,
    Federation,
    Partition,
    dirichlet,
    fashion_mnist_small,
    federate,
    from_arrays,
    iid,
    shards,
)
from fedloom.engines.faults import Unreliable
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export, module
from fedloom.experiments.search_space import Range
from fedloom.experiments.trackers import Tracker, track, tracker
from fedloom.experiments.trials import Sweep
from fedloom.experiments.weights_file import load_weights

__version__: str

__all__ = [
    "ALGORITHMS",
    "KDNTD",
    "MOON",
    "SGD",
    "Adam",
    "Algorithm",
    "Arithmetic",
    "Arriving",
    "Augment",
    "Available",
    "Averaging",
    "Batch",
    "BatchLoss",
    "Batches",
    "BySize",
    "Centralised",
    "Classification",
    "Client",
    "Cohort",
    "Cosine",
    "Count",
    "Dataset",
    "Digest",
    "Distill",
    "Examples",
    "Experiment",
    "FedAlign",
    "FedAvg",
    "FedAvgM",
    "FedBE",
    "FedCurv",
    "FedDF",
    "FedDyn",
    "FedNTD",
    "FedNTDMSE",
    "FedNova",
    "FedProx",
    "Federation",
    "FixedList",
    "Ge",
    "Gt",
    "Hinge",
    "History",
    "Job",
    "KTpFL",
    "Le",
    "Local",
    "LocalOnly",
    "Lt",
    "Maybe",
    "Model",
    "NewClients",
    "NonNegative",
    "PFedSD",
    "Params",
    "Partition",
    "Positive",
    "Range",
    "Reduction",
    "Replies",
    "RunSettings",
    "Scaffold",
    "SeededByRound",
    "Sweep",
    "Task",
    "Tracker",
    "Uniform",
    "Unreliable",
    "Weighted",
    "Weights",
    "WholeNumber",
    "dirichlet",
    "export",
    "fashion_mnist_small",
    "federate",
    "fold",
    "from_arrays",
    "iid",
    "load_weights",
    "minimise",
    "module",
    "on_client",
    "run",
    "shards",
    "state",
    "task_loss",
    "track",
    "tracker",
    "tree",
    "verify",
]
