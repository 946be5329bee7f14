"""Recipes of APFL's experiments: its protocol, the printed numbers and sizes, what shares a run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from fedloom.core.model import Model
from fedloom.data import Dataset, Examples, split
from fedloom.experiments import catalogue
from fedloom.experiments.settings_sections import DataSettings
from fedloom.models import build
from fedloom_papers import find, recipes
from fedloom_papers.apfl.recipes import ABOUT, DATA, LAMBDAS
from fedloom_papers.reproduction.recipe import Recipe, same
from published_runs import cell

ROWS = ["fedavg", "fedprox", "fedcurv_ni", "fedmeta", "apfl_ni", "iid"]


def everything() -> list[Recipe]:
    return [r for table in ABOUT for r in recipes(table)]


def test_cells_of_a_table_differ_and_equal_settings_share_a_run() -> None:
    for table in ABOUT:
        assert set(Counter((r.column, r.row) for r in recipes(table)).values()) == {1}
    places: dict[str, set[str]] = {}
    for r in everything():
        places.setdefault(same(r.experiment), set()).add(r.place)
    assert {len(found) for found in places.values()} == {1}
    assert len({r.place for r in everything()}) == len(places)
    ours = cell("apfl-comparison", "mnist", "apfl_ni").place
    assert len({cell("apfl-epochs", f"letters-e{e}", "fedmeta").place for e in (1, 5, 10, 20)}) == 1  # it has none
    for table, column, row in (
        ("apfl-lambda", "mnist-e5", "apfl_ni-1"),
        ("apfl-epochs", "mnist-e5", "apfl_ni"),
        ("apfl-ewc", "mnist", "apfl_ni"),
    ):
        assert cell(table, column, row).place == ours


def test_each_data_set_has_every_method() -> None:
    assert [r.row for r in find("apfl-comparison", ["mnist"])] == ROWS
    assert {r.column for r in recipes("apfl-comparison")} == set(DATA)
    assert {r.column for r in recipes("apfl-epochs")} == {
        f"{name}-e{e}" for name in ("mnist", "letters", "cifar10") for e in (1, 5, 10, 20)
    }
    assert {r.column for r in recipes("apfl-rate")} == {
        f"{name}-lr{lr}" for name in ("mnist", "letters") for lr in ("0.0001", "0.001", "0.01", "0.1")
    }
    assert [r.row for r in find("apfl-ewc", ["cifar10"])] == ["fedavg", "ewc", "decomposition", "apfl_ni"]
    assert all((r.measure, r.reading) == ("personal_accuracy_by_samples", "mean") for r in everything())
    assert all(r.missing is None for r in everything())


@pytest.mark.parametrize(
    ("column", "rounds", "lr", "plateau"),
    [
        ("vehicle", 20, 0.03, (700, 400)),
        ("mnist", 150, 0.03, (1, 0.5)),
        ("letters", 200, 0.003, (1, 0.5)),
        ("cifar10", 100, 0.01, (1, 0.2)),
    ],
)
def test_settings_are_those_of_the_paper(column: str, rounds: int, lr: float, plateau: tuple[float, float]) -> None:
    for r in find("apfl-comparison", [column], [row for row in ROWS if row != "iid"]):
        e = r.experiment
        assert (e.run.rounds, e.run.cohort_size, e.clients.sampler) == (rounds, 10, "by_round")
        assert (e.local.epochs, e.local.batch_size, e.local.decay) == (5, 10, 1)
        assert (e.local.optimiser.lr, e.local.optimiser.momentum, e.local.optimiser.weight_decay) == (lr, 0, 0)
    own = {r.row: r.experiment.settings.get(r.experiment.algorithm, {}) for r in find("apfl-comparison", [column])}
    assert own["fedprox"] == own["fedcurv_ni"] == {"mu": 1.0}
    assert own["fedmeta"] == {"alpha": lr, "beta": 0.01}
    made = catalogue.algorithm("apfl_ni", e.local, own["apfl_ni"])
    assert (made.mu, made.lam, made.z, made.forced_rounds, made.window) == (1, 1, 2, (0, 1, 2), 5)
    assert (made.delta_mu, made.delta_sigma) == plateau


def test_where_hinge_losses_are_summed_meta_learning_has_their_mean() -> None:
    """Its steps are on all of a client's examples: the rates fit no sum over them."""
    for r in recipes("apfl-comparison"):
        summed = r.column.startswith("vehicle") and not r.row.startswith(("fedmeta", "per_fedavg"))
        assert (r.experiment.task == "svm") == summed, (r.column, r.row)


def test_the_reference_visits_everybody_once_a_round() -> None:
    iid = cell("apfl-comparison", "cifar10", "iid").experiment
    assert (iid.algorithm, iid.local.epochs, iid.run.cohort_size, iid.data.clients) == ("centralised", 1, 100, 100)
    assert cell("apfl-comparison", "vehicle-like", "iid").experiment.run.cohort_size == 23


def test_printed_numbers_and_those_that_follow() -> None:
    for column, line in (
        ("vehicle-e5", [88.65, 88.69, 88.67, 88.71, 88.59]),
        ("mnist-e20", [84.81, 84.92, 85.16, 85.42, 85.67]),
    ):
        assert [cell("apfl-lambda", column, f"apfl_ni-{lam:g}").accuracy for lam in LAMBDAS] == line
    said = {(r.column, r.row): r.accuracy for r in find("apfl-comparison") if r.accuracy is not None}
    assert said == {
        ("vehicle", "fedavg"): 83.18,
        ("vehicle", "apfl_ni"): 88.59,
        ("mnist", "fedavg"): 79.07,
        ("mnist", "apfl_ni"): 85.08,
    }
    assert cell("apfl-comparison", "mnist", "apfl_ni-literal").accuracy == 85.08
    assert cell("apfl-comparison", "mnist", "apfl_ni-z5").accuracy is None  # printed is z = 2
    rates = {(r.column, r.row) for r in recipes("apfl-rate") if r.target}
    assert rates == set()  # 0.03 is not among those that vary
    for r in everything():
        assert r.target == (r.accuracy is not None)
        assert not (r.target and r.column.startswith(("vehicle-part", "vehicle-like"))), "not comparable"
    assert "not comparable" in str(cell("apfl-comparison", "vehicle-part", "fedavg").caveat)


def test_orders_are_those_of_the_paper() -> None:
    above = {r.column: set(r.above) for r in find("apfl-comparison", (), ["apfl_ni"])}
    assert above["mnist"] == above["letters"] == {"fedavg", "fedprox", "fedcurv_ni", "fedmeta"}
    assert above["vehicle"] == above["cifar10"] == above["mnist"] | {"iid"}
    assert not any(r.above for r in everything() if r.column.startswith(("vehicle-part", "vehicle-like")))
    assert {r.column: r.above for r in find("apfl-comparison", ["mnist", "cifar10"], ["iid"])} == {
        "mnist": ("fedavg",), "cifar10": (),
    }  # fmt: skip
    for table, shown in (("apfl-epochs", {"letters", "cifar10"}), ("apfl-rate", {"mnist", "letters"})):
        for r in find(table, (), ["apfl_ni"]):  # Figure 3 has two of the four baselines
            assert r.above == (("fedavg", "fedprox") if r.column.partition("-")[0] in shown else ()), r.column
    assert "on MNIST ours" in ABOUT["apfl-epochs"]


@pytest.mark.filterwarnings("ignore:.* is FedAvg")
def test_everything_can_be_made() -> None:
    for e in (r.experiment for r in everything()):
        catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))
        catalogue.task(e.task)


@pytest.mark.parametrize(
    ("name", "per_class", "total", "mean", "std", "epochs"),
    [  # printed: 69,035, 69, 106; 18,345, 92, 159; 49,757, 498, 344
        ("mnist", [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 69_042, 69, 119, 1.08),
        ("letters", [5600] * 10, 18_573, 93, 162, 1.05),
        ("letters-overlapping", [5600] * 10, 18_573, 93, 162, 1.05),
        ("cifar10", [5000] * 10, 49_748, 497, 344, 1.01),
    ],
)
def test_sizes_of_clients_are_near_the_printed_ones(
    name: str, per_class: list[int], total: int, mean: int, std: int, epochs: float
) -> None:
    """With the epochs of the pooled examples that their last, short batches make of one: docs/apfl.md has them."""
    d = DataSettings(**DATA[name].data)
    y = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(10), per_class)))
    dataset = Dataset(Examples(torch.zeros(len(y), 1), y, 10), None)
    dataset, made = catalogue.handed_out(d.partition, dataset, d.clients, d.partition_seed or 0)
    assert (made.num_clients, made.sizes.sum(), round(made.sizes.mean()), round(made.sizes.std())) == (
        d.clients, total, mean, std,
    )  # fmt: skip
    held = (made.counts(dataset.train.y, 10) > 0).sum(1)
    assert set(held.tolist()) == {{"mnist": 2, "cifar10": 5}.get(name, 3)}
    assert made.sizes.min() >= 6  # enough for FedMeta's two sets, after a tenth or a fifth is held out
    training = split(made, dataset.train.y, d.test_fraction, seed=d.partition_seed or 0)[0].sizes
    assert round(float((-(-training // 10)).sum() * 10 / training.sum()), 2) == epochs


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("vehicle", (100,), 2, 101),
        ("mnist", (1, 28, 28), 10, 7_850),
        ("letters", (1, 28, 28), 10, 7_850),
        ("cifar10", (1, 32, 32), 10, 1_034_380),
    ],
)
def test_sizes_of_the_networks(name: str, shape: tuple[int, ...], classes: int, size: int) -> None:
    assert Model(lambda: build(DATA[name].model, shape, classes)).num_params == size
