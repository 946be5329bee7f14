"""Recipes for the experiments of pFedSD: the protocol of its authors' code, and our numbers where theirs are lost.

Jin, Bai, Yao, Dai, Gu, Yu, Sun. *Personalized Edge Intelligence via Federated Self-Knowledge Distillation.* IEEE TPDS
34(2), 2023. Its result tables are not in the material that we hold, nor are the numbers of clients, rounds and
repetitions: scenarios, rounds and the strengths of label skew are ours. docs/pfedsd.md says which is which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedloom.coordinator import RunSettings
from fedloom.core.local_training import Local
from fedloom.core.optimiser import SGD
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_sections import DataSettings
from fedloom_papers.reproduction.recipe import Method, Recipe

PARTITION_SEED = 7  # of the authors' code, for every seed of a run


class Scenario(NamedTuple):
    """One table: how many clients there are, which part of them is asked in a round, for how many rounds."""

    clients: int
    ratios: tuple[float, ...]
    rounds: int


class Images(NamedTuple):
    """One data set: its settings, its network, how many classes a client has at most, and what methods set by it."""

    data: dict[str, Any]
    model: str
    classes: tuple[int, ...]
    mu: float  # of FedProx
    personal: int  # last layers that FedPer leaves to each client
    pfedme: dict[str, float]  # its rates, as its authors' commands have them for MNIST and for CIFAR-10


SCENARIOS = {"pfedsd-a": Scenario(20, (0.6, 1.0), 100), "pfedsd-b": Scenario(100, (0.1,), 200)}
ABOUT = {
    name: f"personal models, {s.clients} clients, {' or '.join(f'{r:.0%}' for r in s.ratios)} of them a round; ours"
    for name, s in SCENARIOS.items()
}
_FASHION = {"source": "fashion_mnist", "normalise": "0.5/0.5"}
_CIFAR10 = {"source": "cifar10", "normalise": "0.4914,0.4822,0.4465/0.2023,0.1994,0.201"}
_CIFAR100 = {"source": "cifar100", "normalise": "0.5071,0.4867,0.4408/0.2675,0.2565,0.2761"}
_GREY, _COLOUR = {"alpha_p": 0.09, "eta": 0.005}, {"alpha_p": 0.01, "eta": 0.01}
DATA = {
    "fmnist": Images(_FASHION, "pfedsd_fmnist_cnn", (2, 4), 0.001, 2, _GREY),
    "fmnist14k": Images({**_FASHION, "examples": 14_000}, "pfedsd_fmnist_cnn", (2, 4), 0.001, 2, _GREY),
    "cifar10": Images(_CIFAR10, "lenet", (2, 4), 0.01, 1, _COLOUR),
    "cifar100": Images(_CIFAR100, "pfedsd_cifar100_cnn", (20, 40), 0.001, 1, _COLOUR),
}
BETAS = (0.1, 0.5, 1.0)


def methods(images: Images) -> dict[str, Method]:
    """Return the rows of a column: pFedSD, what the paper compares it with, and the controls that it lacks."""
    uniform = {"aggregation": "uniform"}
    return {
        "fedavg": Method("fedavg", uniform, caveat="evaluated by the global model, as in the authors' code"),
        "fedprox": Method("fedprox", {**uniform, "mu": images.mu}, caveat="evaluated by the global model"),
        "fedper": Method("fedper", {**uniform, "personal_layers": f"last:{images.personal}"}),
        "lg_fedavg": Method("lg_fedavg", {**uniform, "global_modules": "last:2", "pretrain_rounds": 0}),
        "pfedme": Method(
            "pfedme",
            {**uniform, "lam": 15.0, "K": 5, "mu2": 0.001, "beta": 1.0, **images.pfedme},
            {"local.epochs": 1},
            caveat="its settings in the paper are lost: those of its own authors' code, on one epoch of batches of 64, "
            "which with K = 5 takes as many gradients as five epochs of the others",
        ),
        "fedfomo": Method(
            "fedfomo",
            {"M": 4, "epsilon": 0.3, "decay": 0.05, "norm": "euclid"},
            {"data.val_fraction": 0.2},
            caveat="trains on a fifth less, which it needs to choose by",
        ),
        "local_only": Method("local_only", caveat="a client trains in the rounds in which it would be asked"),
        "pfedsd": Method("pfedsd", {**uniform, "lam": 1.0, "T": 1.0}),
        "pfedsd_lam0": Method(
            "pfedsd", {**uniform, "lam": 0.0}, caveat="the control: FedAvg's models, evaluated as pFedSD is"
        ),
        "fedavg_ft": Method(
            "fedavg_ft",
            uniform,
            {"run.eval_every": 10},
            caveat="the global model, fine-tuned by every client to be evaluated, and so in every tenth round only",
        ),
        "fedavg_stored": Method("fedavg_stored", uniform, caveat="evaluated by the model that the client trained last"),
    }


ABOVE = ("fedavg", "fedprox", "fedper", "lg_fedavg", "pfedme", "fedfomo", "local_only")
"""Methods that pFedSD is better than by the paper, on all data sets and settings. Our controls are not among them."""


def recipes() -> dict[str, list[Recipe]]:
    """Return the recipes of both scenarios."""
    return {table: list(_of(table, scenario)) for table, scenario in SCENARIOS.items()}


def protocol(images: Images, partition: str, clients: int, ratio: float, rounds: int) -> Experiment:
    """Return the experiment of the authors' code, whatever the method; `ratio`: of the clients, asked in a round."""
    return Experiment(
        model=images.model,
        data=DataSettings(
            **images.data, merge=True, partition=partition, clients=clients, partition_seed=PARTITION_SEED
        ),
        local=Local(epochs=5, batch_size=64, optimiser=SGD(lr=0.01, momentum=0.9, weight_decay=1e-5)),
        run=RunSettings(
            rounds=rounds,
            cohort_size=math.floor(ratio * clients + 0.5),
            monitor="personal_accuracy",
            checkpoint_every=5,
            keep_every=1000,
        ),
    )


def _of(table: str, scenario: Scenario) -> Iterator[Recipe]:
    for name, images in DATA.items():
        skews = {f"s{s}": f"pathological:{s}" for s in images.classes}
        skews |= {f"dir{beta:g}": f"balanced_dirichlet:{beta:g}" for beta in BETAS}
        for skew, partition in skews.items():
            for ratio in scenario.ratios:
                column = f"{name}-{skew}-r{ratio:g}"
                experiment = protocol(images, partition, scenario.clients, ratio, scenario.rounds)
                for row, method in methods(images).items():
                    above = ABOVE if row == "pfedsd" else ()
                    yield method.recipe(
                        table, column, row, experiment, measure="personal_accuracy", reading="best", above=above
                    )
