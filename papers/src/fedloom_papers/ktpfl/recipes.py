"""Recipes for the experiments of KT-pFL: its protocol, and our choices where a setting is lost.

Zhang, Guo, Ma, Wang, Xu, Wu. *Parameterized Knowledge Transfer for Personalized Federated Learning.* NeurIPS 2021.
https://arxiv.org/abs/2111.02801. No number of its tables is in the material that we hold: what is evaluated are orders
that it states. docs/ktpfl.md says which setting comes from where.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedloom.coordinator import RunSettings
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom_papers.reproduction.recipe import Method, Recipe

PARTITION_SEED = 1  # of the released code, for every seed of a run
CLIENTS = 20
ALONE = 5  # clients, each with two of ten classes
RHOS = (0.0, 0.1, 0.7)  # of the groups
PAPER = "ktpfl_lenet,ktpfl_alexnet,ktpfl_resnet18,ktpfl_shufflenet"
OURS = "lenet,dense_cnn1,wrn16_1,mlp"

ABOUT = {
    "ktpfl-mixed": "personal models of four architectures, two settings of label skew; the numbers are lost",
    "ktpfl-same": "the same with one architecture, LeNet, and weights as knowledge; the numbers are lost",
    "ktpfl-small": "four small architectures, 20,000 images; ours",
    "ktpfl-groups": "whether the coefficients find two groups of clients with like data; ours",
    "ktpfl-alone": "whether a client whose data no other has keeps to itself without rho; ours",
    "ktpfl-useful": "whether it pays to learn from clients with like data, before and after distillation; ours",
    "ktpfl-networks": "that the paper's own networks run, two rounds of 2,000 images; ours",
    "ktpfl-sweeps": "rho, E, distillation epochs and P, as the released code has configurations; the numbers are lost",
}


class Images(NamedTuple):
    """One data set: its settings, whose images are public, and the local rate."""

    data: dict[str, Any]
    public: str
    lr: float


@dataclass(frozen=True)
class Scale:
    """Size of the experiments of a table, and settings with which a client trains and distils.

    `pool`: public images to draw from; 0: all. `steps`: of FedDF's server, for each architecture, each round.
    """

    model: str
    rounds: int
    epochs: int
    batch_size: int
    public: int  # P
    pool: int
    distill_batch_size: int
    momentum: float  # of local training; distillation has none
    steps: int
    public_epochs: int  # of FedMD's phase 0
    labelled: int = 5000  # images that FedMD takes out of the clients' data


_EMNIST = {"source": "emnist_letters", "classes": 10}
_FASHION = {"source": "fashion_mnist"}
_CIFAR10 = {"source": "cifar10"}
DATA = {
    "emnist_aj": Images({**_EMNIST, "merge": True}, "mnist", 0.01),
    "fmnist": Images({**_FASHION, "merge": True}, "mnist", 0.01),
    "cifar10": Images({**_CIFAR10, "merge": True}, "cifar100", 0.02),
    "emnist20k": Images({**_EMNIST, "examples": 20_000}, "mnist", 0.01),
    "fmnist20k": Images({**_FASHION, "examples": 20_000}, "mnist", 0.01),
    "cifar20k": Images({**_CIFAR10, "examples": 20_000}, "cifar100", 0.01),
    "fmnist2k": Images({**_FASHION, "examples": 2000}, "mnist", 0.01),
    "cifar2k": Images({**_CIFAR10, "examples": 2000}, "cifar100", 0.02),
}
SETTINGS = {"two": "label_blocks:2", "all": "label_blocks:10"}  # classes of a client

FULL = Scale(PAPER, 30, 20, 128, 3000, 0, 256, 0.0, 10_000, 20)
SMALL = Scale(OURS, 20, 2, 32, 1000, 2000, 64, 0.9, 100, 5, labelled=2000)
GROUPS = dataclasses.replace(SMALL, model="lenet,dense_cnn1,mlp")
CHECK = Scale(PAPER, 2, 1, 32, 200, 400, 50, 0.0, 10, 1, labelled=400)

_FEDMD = (
    "its phase 0 needs labels: its public images are taken out of the clients' data set, with labels, which no other "
    "row has; Adam begins anew in each round"
)
_PFEDDF = (
    "how clients are personalised is not said: each is evaluated by the copy of the fused model that it trained last"
)
_FEDDF = "evaluated by the fused model of each client's architecture; no validation set, which nobody else has"


def methods(scale: Scale, lr: float) -> dict[str, Method]:
    """Return the rows of a column: KT-pFL, what the paper compares it with, and local training alone."""
    knowledge = {
        "num_public": scale.public,
        "tau": 1.0,
        "distill.batch_size": scale.distill_batch_size,
        "distill.lr": lr,
    }
    feddf = {"steps": scale.steps, "distill.batch_size": 64, "aggregation": "uniform"}
    return {
        "kt_pfl": Method(
            "kt_pfl",
            {**knowledge, "lam": 1.0, "rho": 0.7, "eta3": 0.1, "coefficient_steps": 5},
            above=("fedmd_kt", "feddf", "pfeddf", "sim_pfl", "topk_pfl"),
        ),
        "fedmd_kt": Method("fedmd_kt", knowledge, caveat="FedMD as the authors of KT-pFL ported it"),
        "fedmd": Method(
            "fedmd",
            {"num_public": scale.public, "public_epochs": scale.public_epochs},
            {
                "data.public_source": None,
                "data.public": scale.labelled,
                "data.public_labels": True,
            },
            caveat=_FEDMD,
        ),
        "feddf": Method("feddf", feddf, caveat=_FEDDF),
        "pfeddf": Method("pfeddf", feddf, caveat=_PFEDDF),
        "sim_pfl": Method("sim_pfl", knowledge, above=("fedmd_kt",)),
        "topk_pfl": Method("topk_pfl", knowledge, above=("fedmd_kt",)),
        "local_only": Method("local_only", caveat="a strong reference where a client has two classes"),
    }


def recipes() -> dict[str, list[Recipe]]:
    """Return the recipes of each table."""
    made = {
        "ktpfl-mixed": _columns("ktpfl-mixed", ("emnist_aj", "fmnist", "cifar10"), FULL),
        "ktpfl-same": _columns("ktpfl-same", ("emnist_aj", "fmnist", "cifar10"), _with(FULL, model="ktpfl_lenet")),
        "ktpfl-small": _columns("ktpfl-small", ("emnist20k", "fmnist20k", "cifar20k"), SMALL),
        "ktpfl-groups": _groups(),
        "ktpfl-alone": _alone(),
        "ktpfl-useful": _useful(),
        # With every class a client, 2,000 images would be ten of each for everybody, and too few for FedMD's row.
        "ktpfl-networks": _columns("ktpfl-networks", ("fmnist2k", "cifar2k"), CHECK, ("two",)),
        "ktpfl-sweeps": _sweeps(),
    }
    return {table: list(found) for table, found in made.items()}


def _with(scale: Scale, **changes: Any) -> Scale:
    return dataclasses.replace(scale, **changes)


def _columns(
    table: str, data: tuple[str, ...], scale: Scale, settings: Collection[str] = tuple(SETTINGS)
) -> Iterator[Recipe]:
    for name in data:
        for setting in settings:
            rows = methods(scale, DATA[name].lr)
            if table == "ktpfl-same":
                rows |= _of_one_architecture()
            if table == "ktpfl-small":
                kt_pfl = rows["kt_pfl"]
                rows["kt_pfl"] = dataclasses.replace(kt_pfl, above=(*kt_pfl.above, "local_only"))
            for row, method in rows.items():
                yield _recipe(table, name, setting, row, method, scale)


def _of_one_architecture() -> dict[str, Method]:
    weights = "how weights are mixed and weighed is not said: ours"
    return {
        "kt_pfl_weights": Method("kt_pfl_weights", {"lam": 1.0, "rho": 0.7, "eta3": 0.1}, caveat=weights),
        "fedavg": Method("fedavg", caveat="evaluated by the global model"),
        "fedavg_stored": Method("fedavg_stored", caveat="evaluated by the model that the client trained last"),
    }


def _groups() -> Iterator[Recipe]:
    """Yield recipes in which clients of even and of odd numbers have like data.

    There are three architectures, so that each is in both groups.
    """
    for name in ("fmnist20k", "cifar20k"):
        kt_pfl = methods(GROUPS, DATA[name].lr)["kt_pfl"]
        for rho in RHOS:
            method = dataclasses.replace(kt_pfl, own={**kt_pfl.own, "rho": rho}, above=())
            yield _recipe("ktpfl-groups", name, "groups", f"kt_pfl-rho{rho:g}", method, GROUPS)


def _alone() -> Iterator[Recipe]:
    """Yield recipes in which each of five clients has two classes that no other has."""
    for name in ("fmnist20k", "cifar20k"):
        kt_pfl = methods(GROUPS, DATA[name].lr)["kt_pfl"]
        clients = {"data.clients": ALONE, "run.cohort_size": ALONE}
        method = dataclasses.replace(kt_pfl, own={**kt_pfl.own, "rho": 0.0}, run=clients, above=())
        yield _recipe("ktpfl-alone", name, "two", "kt_pfl-rho0", method, GROUPS)


def _useful() -> Iterator[Recipe]:
    """Yield recipes of the same clients, evaluated before distillation too, and of what KT-pFL must be better than."""
    for name in ("fmnist20k", "cifar20k"):
        rows = methods(GROUPS, DATA[name].lr)
        made = {
            "kt_pfl": dataclasses.replace(
                rows["kt_pfl"], own={**rows["kt_pfl"].own, "rho": 0.1}, above=("fedmd_kt", "local_only")
            ),
            "fedmd_kt": rows["fedmd_kt"],
            "local_only": dataclasses.replace(rows["local_only"], caveat=None),
        }
        for row, method in made.items():
            yield _recipe("ktpfl-useful", name, "groups", row, method, GROUPS)


def _sweeps() -> Iterator[Recipe]:
    """Yield recipes of ten clients, five ResNet-18 and five ShuffleNetV2, one setting changed at a time."""
    scale = _with(FULL, model="ktpfl_resnet18,ktpfl_shufflenet")
    changes: dict[str, tuple[str, tuple[float, ...]]] = {
        "rho": ("kt_pfl.rho", (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0)),
        "E": ("local.epochs", (1, 2, 3, 4, 5, 10, 15, 20)),
        "R": ("kt_pfl.distill.epochs", (1, 2, 3, 4, 5)),
        "P": ("kt_pfl.num_public", (500, 1000, 2000, 3000, 4000, 5000)),
    }
    for setting in SETTINGS:
        for what, (key, values) in changes.items():
            for value in values:
                method = dataclasses.replace(methods(scale, DATA["cifar10"].lr)["kt_pfl"], above=())
                method.run.update({"data.clients": 10, "run.cohort_size": 10, key: value})
                yield _recipe("ktpfl-sweeps", "cifar10", setting, f"kt_pfl-{what}{value:g}", method, scale)


def _recipe(table: str, name: str, setting: str, row: str, method: Method, scale: Scale) -> Recipe:
    images = DATA[name]
    data: Mapping[str, Any] = {
        **images.data,
        "partition": {**SETTINGS, "groups": "label_blocks:5"}[setting],
        "clients": CLIENTS,
        "partition_seed": PARTITION_SEED,
        "test_fraction": 0.25,
        "public_source": images.public,
        "public": scale.pool,
    }
    if method.run.get("data.public_labels") and images.data.get("examples"):
        # so that clients have as many as elsewhere
        more = {"data.examples": images.data["examples"] + scale.labelled}
        method = dataclasses.replace(method, run={**method.run, **more})
    experiment = Experiment(
        model=scale.model,
        data=DataSettings(**data),
        local=Local(
            epochs=scale.epochs,
            batch_size=scale.batch_size,
            optimiser=SGD(lr=images.lr, momentum=scale.momentum),
        ),
        run=RunSettings(
            rounds=scale.rounds,
            cohort_size=CLIENTS,
            monitor="personal_accuracy",
            per_client=True,  # which has accuracies before distillation
            checkpoint_every=5,
            keep_every=1000,
        ),
    )
    return method.recipe(table, f"{name}-{setting}", row, experiment, measure="personal_accuracy")
