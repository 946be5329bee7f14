"""Recipes of pFedSD's experiments: the protocol of the authors' code, and its sizes."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from fedloom.core import tree
from fedloom.core.model import Model
from fedloom.data import Dataset, Examples
from fedloom.experiments import catalogue
from fedloom.models import build
from fedloom_papers import find, recipes
from fedloom_papers.pfedsd.scenarios import DATA, SCENARIOS

SHAPES = {"fmnist": (1, 28, 28), "fmnist14k": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


def labels(data: str) -> Dataset:
    """As many labels of each class as train and test have together, in random order; images of one pixel."""
    classes, each = {"fmnist": (10, 7000), "cifar10": (10, 6000), "cifar100": (100, 600)}[data]
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))
    return Dataset(Examples(torch.zeros(len(y), 1), torch.from_numpy(y), classes), None)


@pytest.mark.parametrize("table", SCENARIOS)
def test_each_column_has_every_method_once(table: str) -> None:
    found = recipes(table)
    assert set(Counter((r.column, r.row) for r in found).values()) == {1}
    assert len({r.place for r in found}) == len(found)
    ratios = len(SCENARIOS[table].ratios)
    assert len(found) == 4 * 5 * ratios * 11
    assert not any(r.variant or r.target for r in found)
    assert all((r.measure, r.reading, r.accuracy) == ("personal_accuracy", "best", None) for r in found)


def test_settings_are_those_of_the_protocol() -> None:
    (recipe,) = find("pfedsd-a", ["cifar10-dir0.1-r0.6"], ["pfedsd"])
    e = recipe.experiment
    assert (e.model, e.data.merge, e.data.test_fraction, e.data.partition_seed, e.data.augment) == (
        "lenet", True, 0.2, 7, "none",
    )  # fmt: skip
    assert (e.data.partition, e.data.clients, e.run.cohort_size, e.run.rounds) == (
        "balanced_dirichlet:0.1",
        20,
        12,
        100,
    )
    sgd = e.local.optimiser
    assert (e.local.epochs, e.local.batch_size, sgd.lr, sgd.momentum, sgd.weight_decay, e.local.decay) == (
        5, 64, 0.01, 0.9, 1e-5, 1.0,
    )  # fmt: skip
    assert e.settings == {"pfedsd": {"aggregation": "uniform", "lam": 1.0, "T": 1.0}}
    (recipe,) = find("pfedsd-b", ["fmnist14k-s2-r0.1"], ["fedprox"])
    e = recipe.experiment
    assert (e.data.clients, e.run.cohort_size, e.run.rounds, e.data.examples) == (100, 10, 200, 14_000)
    assert e.settings["fedprox"]["mu"] == 0.001
    mu = {r.column: r.experiment.settings["fedprox"]["mu"] for r in find("pfedsd-a", (), ["fedprox"])}
    assert (mu["cifar10-s2-r1"], mu["cifar100-s20-r1"]) == (0.01, 0.001)


def test_methods_that_need_it_have_other_runs() -> None:
    column = {r.row: r.experiment for r in find("pfedsd-a", ["cifar10-s2-r0.6"])}
    plain = column["fedavg"]
    assert column["fedfomo"].settings["fedfomo"]["M"] == 4  # and its own model: five, as in the paper
    assert column["fedfomo"].data == dataclasses.replace(plain.data, val_fraction=0.2)
    assert column["pfedme"].local == dataclasses.replace(plain.local, epochs=1)
    assert column["fedavg_ft"].run == dataclasses.replace(plain.run, eval_every=10)
    for row in set(column) - {"fedfomo", "pfedme", "fedavg_ft"}:
        e = column[row]
        assert (e.data, e.local, e.run, e.model) == (plain.data, plain.local, plain.run, plain.model), row


@pytest.mark.filterwarnings("ignore:PFedSD with lam = 0 is FedAvg")  # which the control is
def test_everything_that_exists_can_be_made() -> None:
    for e in (r.experiment for table in SCENARIOS for r in recipes(table) if r.missing is None):
        catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))


@pytest.mark.some(1)
@pytest.mark.parametrize("table", SCENARIOS)
@pytest.mark.parametrize("data", ["fmnist", "cifar10", "cifar100"])
def test_partitions_have_equal_sizes_and_few_classes(data: str, table: str) -> None:
    """Acceptance: equal sizes, at most s classes, and together a partition of the examples."""
    dataset = labels(data)
    for skew in dict.fromkeys(r.experiment.data.partition for r in recipes(table) if r.column.startswith(f"{data}-")):
        made = catalogue.partition(skew, dataset, SCENARIOS[table].clients, 7)
        n = len(dataset.train)
        assert set(made.sizes.tolist()) == {n // SCENARIOS[table].clients}
        assert sorted(made.indices.tolist()) == list(range(n))
        held = (made.counts(dataset.train.y, dataset.train.num_classes) > 0).sum(1)
        if skew.startswith("pathological"):
            assert held.max() <= int(skew.partition(":")[2])


def test_the_smaller_fashion_mnist_has_equal_sizes_too() -> None:
    cut = catalogue.cut(labels("fmnist"), 14_000, 7)
    assert cut.train.class_counts().tolist() == [1400] * 10
    for skew in ("pathological:2", "balanced_dirichlet:0.1"):
        for clients in (20, 100):
            assert set(catalogue.partition(skew, cut, clients, 7).sizes.tolist()) == {14_000 // clients}


@pytest.mark.parametrize(
    ("data", "classes", "whole", "base", "head"),
    [
        ("fmnist", 10, 244_234, 235_328, 8_906),
        ("cifar10", 10, 62_006, 61_156, 11_014),
        ("cifar100", 100, 1_075_044, 1_062_144, 45_796),
    ],
)
def test_sizes_of_the_networks_and_of_their_parts(data: str, classes: int, whole: int, base: int, head: int) -> None:
    """What FedPer shares, and what LG-FedAvg shares, as patterns of layers."""
    images = DATA[data]
    model = Model(lambda: build(images.model, SHAPES[data], classes), name=data)
    weights = model.init(0)
    assert (model.num_params, tree.nbytes(weights)) == (whole, 4 * whole)
    for shared, size in ((f"* !last:{images.personal}", base), ("last:2", head)):
        part = catalogue.algorithm("fedavg", find("pfedsd-a")[0].experiment.local, {"shared": shared}).down(weights)
        assert tree.nbytes(part) == 4 * size
