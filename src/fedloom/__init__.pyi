from annotated_types import Ge as Ge, Gt as Gt, Le as Le, Lt as Lt

from fedloom.algorithms import *
from fedloom.algorithms import ALGORITHMS as ALGORITHMS
from fedloom.algorithms.pfedsd import self_distilled as self_distilled
from fedloom.algorithms.shared.ldam import LDAM as LDAM
from fedloom.coordinator import (
    Arriving as Arriving,
    Available as Available,
    BySize as BySize,
    FixedList as FixedList,
    History as History,
    Job as Job,
    NewClients as NewClients,
    Part as Part,
    Running as Running,
    RunSettings as RunSettings,
    Schedule as Schedule,
    SeededByRound as SeededByRound,
    Uniform as Uniform,
    Wants as Wants,
    run as run,
    verify as verify,
)
from fedloom.core import tree as tree
from fedloom.core.algorithm import Algorithm as Algorithm
from fedloom.core.augment import Augment as Augment
from fedloom.core.averaging import Averaging as Averaging
from fedloom.core.batch import Batch as Batch
from fedloom.core.batches import Batches as Batches
from fedloom.core.choices import (
    Count as Count,
    Grid as Grid,
    NonNegative as NonNegative,
    Positive as Positive,
    WholeNumber as WholeNumber,
)
from fedloom.core.client import Aggregation as Aggregation, Client as Client, on_client as on_client
from fedloom.core.cohort import Cohort as Cohort, Reduction as Reduction, Replies as Replies
from fedloom.core.derivatives import (
    batch_gradient as batch_gradient,
    mean_gradient as mean_gradient,
    mean_loss as mean_loss,
)
from fedloom.core.errors import FedloomError as FedloomError, SettingError as SettingError
from fedloom.core.fold import fold as fold, minimise as minimise, minimise_from as minimise_from
from fedloom.core.local_training import Digest as Digest, Distill as Distill, Local as Local
from fedloom.core.losses import distillation as distillation, objective as objective, task_loss as task_loss
from fedloom.core.model import Model as Model
from fedloom.core.optimiser import (
    SGD as SGD,
    Adagrad as Adagrad,
    Adam as Adam,
    AdamW as AdamW,
    Optimiser as Optimiser,
    RMSprop as RMSprop,
)
from fedloom.core.own_steps import OwnSteps as OwnSteps
from fedloom.core.requires import GlobalOnly as GlobalOnly, Requires as Requires
from fedloom.core.task import Task as Task
from fedloom.core.task_measures import Score as Score, Sum as Sum, TaskMeasure as TaskMeasure
from fedloom.core.types import (
    Arithmetic as Arithmetic,
    BatchLoss as BatchLoss,
    Maybe as Maybe,
    Params as Params,
    Weighted as Weighted,
    Weights as Weights,
    replace as replace,
    state as state,
)
from fedloom.data import (
    Dataset as Dataset,
    Examples as Examples,
    Federation as Federation,
    Partition as Partition,
    dirichlet as dirichlet,
    federate as federate,
    from_arrays as from_arrays,
    iid as iid,
    shards as shards,
)
from fedloom.display.command import Command as Command
from fedloom.engines.attack_kinds import (
    Backdoor as Backdoor,
    Constant as Constant,
    FlippedLabels as FlippedLabels,
    InnerProduct as InnerProduct,
    LittleIsEnough as LittleIsEnough,
    Noise as Noise,
    Scale as Scale,
    StandStill as StandStill,
)
from fedloom.engines.attacks import Attack as Attack
from fedloom.engines.faults import Unreliable as Unreliable
from fedloom.engines.links import Encoder as Encoder, Link as Link
from fedloom.evaluate.measure import Measure as Measure
from fedloom.experiments.experiment import Experiment as Experiment
from fedloom.experiments.export import export as export, module as module
from fedloom.experiments.predictions import Predictions as Predictions, predict as predict
from fedloom.experiments.run_evaluation import RunEvaluation as RunEvaluation, evaluate_run as evaluate_run
from fedloom.experiments.trackers import Tracker as Tracker, track as track, tracker as tracker
from fedloom.experiments.trials import Sweep as Sweep
from fedloom.experiments.weights_file import load_network as load_network, load_weights as load_weights
from fedloom.report import summary as summary
from fedloom.sources import fashion_mnist_small as fashion_mnist_small, from_torch as from_torch
from fedloom.tables import (
    from_frame as from_frame,
    read_csv as read_csv,
    read_parquet as read_parquet,
    read_sites as read_sites,
)
from fedloom.tasks import (
    SVM as SVM,
    Binary as Binary,
    Classification as Classification,
    Hinge as Hinge,
    MultiLabel as MultiLabel,
    NextToken as NextToken,
    Regression as Regression,
)
from fedloom.tasks.segmentation import Segmentation as Segmentation

__version__: str
