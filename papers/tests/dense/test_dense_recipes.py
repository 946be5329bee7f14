"""Recipes of DENSE's tables: the published numbers, the settings, which runs are shared."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import golden

from fedloom.algorithms import DENSE
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.core.optimiser import Adam
from fedloom.data import Dataset, Examples
from fedloom.experiments import catalogue
from fedloom.models import CosineHead, build
from fedloom_papers import find, recipes
from fedloom_papers.dense.published import ABOUT, TABLES, cells
from fedloom_papers.dense.recipes import DATA
from fedloom_papers.reproduction.recipe import Recipe, same
from fedloom_papers.reproduction.running import with_changes

SHAPES = {"mnist": (1, 28, 28), "fmnist": (1, 28, 28), "fmnist10k": (1, 28, 28), "tiny": (3, 64, 64)}
EVERY = [r for table in ABOUT for r in recipes(table)]


def one(table: str, column: str, row: str) -> Recipe:
    (found,) = [r for r in recipes(table) if (r.column, r.row) == (column, row)]
    return found


def test_each_table_has_its_cells_once() -> None:
    sizes = {table: len(recipes(table)) for table in ABOUT}
    assert sizes == {
        "dense-table1": (15 * 2 + 3) * 6,  # with both networks, Tiny-ImageNet with one
        "dense-clients": 8 * 2 * 6,
        "dense-coboosting": 6 * 5,
        "dense-readme": 3,
        "dense-heterogeneous": 3 * 5,
        "dense-ldam": 5 * 3 * 3,  # CIFAR-10 and SVHN with both networks, Fashion-MNIST with one
        "dense-rounds": 6 * 5,
        "dense-ablation": 6 * 4,
        "dense-lambda1": 3 * 4,
    }
    assert set(Counter((r.table, r.column, r.row) for r in EVERY).values()) == {1}
    assert not any(r.missing or r.variant for r in EVERY)


@pytest.mark.parametrize(
    ("table", "column", "row", "accuracy"),
    [
        ("dense-table1", "mnist-a0.1-m5-cnn", "fedavg", 48.24),
        ("dense-table1", "fmnist-a0.3-m5-resnet18", "fedavg", 82.96),
        ("dense-table1", "cifar10-a0.3-m5-cnn", "dense", 59.76),
        ("dense-table1", "svhn-a0.5-m5-cnn", "ensemble", 85.7),
        ("dense-table1", "tiny-a0.5-m5-resnet18", "fed_adi", 30.21),
        ("dense-table1", "cifar100-a0.1-m5-cnn", "feddf", 28.17),
        ("dense-clients", "cifar10-a0.5-m50-cnn", "fed_dafl", 29.41),
        ("dense-clients", "svhn-a0.5-m20-resnet18", "dense", 66.42),
        ("dense-coboosting", "cifar100-a0.3-m10", "fed_dafl", 28.79),
        ("dense-coboosting", "cifar10-a0.05-m10", "dense", 38.37),
        ("dense-readme", "cifar10-a0.5-m5", "ensemble", 71.81),
    ],
)
def test_numbers_are_the_published_ones(table: str, column: str, row: str, accuracy: float) -> None:
    assert one(table, column, row).accuracy == accuracy


def test_a_lost_number_is_none_and_a_note_stands_behind_its_number() -> None:
    found = {(c.row, c.column): c for table in ("dense-readme", "dense-clients") for c in cells(table)}
    assert found["dense", "cifar10-a0.5-m5"][2:] == (62.19, None)
    assert [c.accuracy for c in cells("dense-readme")] == [30.93, None, 71.81]
    assert found["ensemble", "svhn-a0.5-m50"][2:] == (54.96, "b")


def test_what_is_lost_or_contradicted_is_no_target() -> None:
    for r in EVERY:
        lost = r.accuracy is None
        assert not (lost and r.target)
        assert (
            lost
            or r.target
            or r.table == "dense-coboosting"
            or "copy shifted" in str(r.caveat)
            or ("lower than the student" in str(r.caveat))
        )
        assert r.caveat or (r.table, r.row) == ("dense-readme", "fedavg")
    assert sum(len(list(cells(table))) for table in TABLES) == 18 * 6 + 8 * 6 + 6 * 5 + 3
    shifted = [r for r in recipes("dense-clients") if "shifted by a row" in str(r.caveat)]
    assert {(r.column.rpartition("-")[0], r.row) for r in shifted} == {
        ("cifar10-a0.5-m5", "fed_dafl"), ("cifar10-a0.5-m5", "fed_adi"),
    }  # fmt: skip


def test_settings_are_those_of_the_paper() -> None:
    e = one("dense-table1", "cifar10-a0.1-m5-resnet18", "dense").experiment
    assert (e.algorithm, e.model, e.run.rounds, e.run.cohort_size) == ("dense", "resnet18", 201, 5)
    assert (e.data.partition, e.data.partition_seed, e.data.normalise, e.data.augment, e.data.test_fraction) == (
        "dirichlet:0.1", 1, "0/1", "crop:4,flip", 0.0,
    )  # fmt: skip
    sgd = e.local.optimiser
    assert (e.local.epochs, e.local.batch_size, sgd.lr, sgd.momentum, sgd.weight_decay, e.local.decay) == (
        200, 128, 0.01, 0.9, 0.0, 1.0,
    )  # fmt: skip
    made = catalogue.algorithm("dense", e.local, e.settings["dense"])
    assert isinstance(made, DENSE)
    assert (made.T_G, made.lambda1, made.lambda2, made.T, made.schedule, made.nz, made.ngf) == (
        30, 1.0, 0.5, 20.0, "pool", 256, 64,
    )  # fmt: skip
    assert (made.synthesis.batch_size, made.synthesis.optimiser) == (256, Adam(lr=1e-3, betas=(0.5, 0.999)))
    assert (made.distill.batch_size, made.distill.optimiser.lr, made.distill.optimiser.momentum) == (256, 0.01, 0.9)
    for data, augment in {"mnist": "none", "fmnist": "none", "svhn": "none", "tiny": "flip"}.items():
        assert {r.experiment.data.augment for r in find("dense-table1", [data])} == {augment}
    many = one("dense-clients", "svhn-a0.5-m20-cnn", "fedavg").experiment
    assert (many.data.clients, many.run.cohort_size, many.run.rounds) == (20, 20, 1)
    assert many.settings == {"fedavg": {"aggregation": "uniform"}}


def test_settings_of_the_readme_are_its_own() -> None:
    dense = one("dense-readme", "cifar10-a0.5-m5", "dense").experiment
    assert (dense.local.epochs, dense.settings["dense"]["lambda2"], dense.settings["dense"]["distill.lr"]) == (
        400, 1.0, 0.005,
    )  # fmt: skip
    assert one("dense-readme", "cifar10-a0.5-m5", "fedavg").experiment.local == dense.local


def test_settings_give_the_counts_that_the_readme_prints() -> None:
    """The partition of their run, by a recipe's settings and CIFAR-10's labels."""
    e = one("dense-readme", "cifar10-a0.5-m5", "fedavg").experiment
    y = torch.arange(10).repeat_interleave(5000)[torch.randperm(50_000, generator=torch.Generator().manual_seed(0))]
    data = Dataset(Examples(torch.zeros(50_000, 1), y, 10), None)
    made = catalogue.partition(e.data.partition, data, e.data.clients, e.partition_seed)
    np.testing.assert_array_equal(made.counts(y, 10), golden("ktpfl_dense/dense_dirichlet")["readme_counts"])


def test_the_seed_of_a_run_moves_no_partition() -> None:
    assert {r.experiment.changed("run.seed", 5).partition_seed for r in EVERY} == {1}


def shape(r: Recipe) -> tuple[int, ...]:
    return SHAPES.get(r.column.partition("-")[0], (3, 32, 32))


@pytest.mark.slow
def test_everything_can_be_made_and_asks_for_statistics_only_where_there_are_some() -> None:
    classes = {"cifar100": 100, "tiny": 200}
    norms: dict[tuple[str, tuple[int, ...]], bool] = {}
    for r in EVERY:
        e = r.experiment
        algorithm = catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))
        if (e.model, shape(r)) not in norms:
            made = [build(n, shape(r), classes.get(r.column.partition("-")[0], 10)) for n in e.model.split(",")]
            norms[e.model, shape(r)] = any(isinstance(m, torch.nn.BatchNorm2d) for one in made for m in one.modules())
        weight = getattr(algorithm, "lambda1", getattr(algorithm, "alpha_f", None))
        if weight is not None and r.table not in ("dense-ablation", "dense-lambda1"):
            assert (weight > 0) is norms[e.model, shape(r)], (r.table, r.column, r.row)
    assert len(norms) > 8


def test_the_ensemble_is_read_from_the_run_of_dense() -> None:
    for column in {r.column for r in recipes("dense-table1")}:
        ensemble, dense = (one("dense-table1", column, row) for row in ("ensemble", "dense"))
        assert ensemble.place == dense.place
        assert (ensemble.measure, ensemble.rounds, dense.rounds) == ("ensemble_accuracy", 1, 201)
        assert dataclasses.replace(ensemble.experiment, run=dense.experiment.run) == dense.experiment


def test_tables_that_share_a_cell_share_its_runs() -> None:
    for row in ("fedavg", "dense", "fed_adi"):
        place = one("dense-clients", "cifar10-a0.5-m5-cnn", row).place
        assert place == one("dense-table1", "cifar10-a0.5-m5-cnn", row).place
    assert one("dense-ablation", "fmnist-a0.1-m5-cnn", "dense").place.startswith("dense-table1/")
    assert {r.place.rpartition("/")[2] for r in EVERY if r.row == "ensemble"} == {"dense"}  # the run of which it is
    assert one("dense-ldam", "cifar10-a0.1-m5-cnn", "dense").place.startswith("dense-table1/")
    assert len({r.place for r in find("dense-rounds", ["fmnist-a0.1"])}) == 1  # one run that goes on
    rounds = {r.row: r.rounds for r in find("dense-rounds", ["fmnist-a0.1"])}
    assert rounds == {f"dense-r{n}": 201 * n for n in range(1, 6)}
    by_place: dict[str, set[str]] = {}
    for r in EVERY:
        once = dataclasses.replace(r.experiment, run=dataclasses.replace(r.experiment.run, rounds=1))
        by_place.setdefault(r.place, set()).add(same(once))
    assert {len(found) for found in by_place.values()} == {1}


def test_rows_of_the_same_clients_begin_with_the_same_upload() -> None:
    begins = {
        r.row: r.begins and r.begins.place
        for t in ("dense-table1", "dense-ablation")
        for r in find(t, ["fmnist-a0.1-m5-cnn"])
    }
    shared = {"dense", "ensemble", "fed_adi", "dense-without_bn", "dense-without_div", "dense-ce_only"}
    assert {row for row, place in begins.items() if place} == shared
    assert {begins[row] for row in shared} == {"dense-table1/fmnist-a0.1-m5-cnn/uploads"}
    places: dict[str, Recipe] = {}
    for r in EVERY:  # what shares an upload differs in nothing that matters to it
        if r.begins:
            other = places.setdefault(r.begins.place, r)
            a, b, c = r.experiment, other.experiment, r.begins.experiment
            assert (a.model, a.data, a.local, a.task) == (b.model, b.data, b.local, b.task)
            assert (a.model, a.data, a.local, a.task, 1) == (c.model, c.data, c.local, c.task, c.run.rounds)
    assert len(places) > 50


def test_the_weight_of_the_statistics_alone_differs_in_a_column() -> None:
    """Those of a column begin with one upload, whose pool takes as many images an epoch as theirs."""
    for column in dict.fromkeys(r.column for r in recipes("dense-lambda1")):
        found = find("dense-lambda1", [column])
        own = [dict(r.experiment.settings["dense"]) for r in found]
        assert [settings.pop("lambda1") for settings in own] == [0.0, 0.01, 0.1, 1.0]
        assert all(settings == own[0] for settings in own)
        begins = found[0].begins
        assert begins is not None
        assert begins.place == f"dense-lambda1/{column}/uploads"
        assert all(r.begins == begins for r in found)
        assert own[0].items() <= begins.experiment.settings["dense"].items()
    norms = {
        r.column: sum(isinstance(m, torch.nn.BatchNorm2d) for m in build(r.experiment.model, shape(r), 10).modules())
        for r in recipes("dense-lambda1")
    }
    assert norms == {"fmnist10k-a0.1-m5-cnn": 2, "fmnist10k-a0.5-m5-cnn": 2, "fmnist10k-a0.1-m5-deep": 8}


@pytest.mark.slow
def test_margins_need_the_head_of_cosines() -> None:
    for r in recipes("dense-ldam"):
        e = r.experiment
        head = build(e.model, shape(r), 10).classifier
        assert isinstance(head, CosineHead) == isinstance(catalogue.task(e.task), LDAM) == (r.row != "dense")


def test_the_comparison_with_ldam_is_the_published_one_on_cifar10_and_svhn() -> None:
    found = recipes("dense-ldam")
    assert {(r.column, r.row) for r in found if r.above} == {
        (f"{data}-a0.1-m5-{net}", "dense_ldam") for data in ("cifar10", "svhn") for net in ("cnn", "resnet18")
    }
    assert {r.above for r in found if r.above} == {("dense",)}
    for r in found:
        words = str(r.caveat)
        assert ("published at these alphas" in words) == (not r.column.startswith("fmnist"))
        assert ("ours: the published comparison is on" in words) == r.column.startswith("fmnist")
    for r in recipes("dense-heterogeneous"):
        assert "published at these alphas, in words: DENSE is best" in str(r.caveat)


def test_the_ensemble_is_published_above_every_student_with_five_clients_alone() -> None:
    found = [r for r in EVERY if r.row == "ensemble" and r.table != "dense-heterogeneous"]
    for r in found:
        five = r.experiment.data.clients == 5
        assert r.above == (("fedavg", "feddf", "fed_dafl", "fed_adi", "dense") if five else ())
    assert {r.experiment.data.clients for r in found} == {5, 10, 20, 50}
    above = set()  # students that are printed above their ensemble
    for table in TABLES:
        numbers = {(c.column, c.row): c.accuracy or 0.0 for c in cells(table)}
        above |= {(column, row) for (column, row), n in numbers.items() if n > numbers.get((column, "ensemble"), 100.0)}
    assert above == {("svhn-a0.5-m50", "dense"), ("svhn-a0.5-m50", "fed_adi")}


def test_five_architectures_meet_in_one_run() -> None:
    rows = {r.row: r for r in find("dense-heterogeneous", ["cifar10-a0.1"])}
    assert "fedavg" not in rows
    assert {r.experiment.model for r in rows.values()} == {"resnet18,dense_cnn1,dense_cnn2,wrn16_1,wrn40_1"}
    assert rows["dense"].above == ("feddf", "fed_dafl", "fed_adi")
    assert rows["dense"].experiment.settings["dense"]["lambda1"] == 1.0


def test_feddf_learns_from_other_images_and_says_so() -> None:
    for data, images in DATA.items():
        for r in find("dense-table1", [data], ["feddf"]):
            said = r.experiment.data
            assert (said.public_source, said.public) != (None, 0)
            assert (said.public_source is None) == (data == "tiny")
            assert "not free of data" in str(r.caveat)
            assert images.public in ({"data.public_source": said.public_source}, {"data.public": said.public})
    r = one("dense-table1", "fmnist-a0.1-m5-cnn", "feddf").with_data("files", 3)
    assert (r.data.source, r.data.public_source, r.run.seed) == ("fashion_mnist:files", "mnist:files", 3)
    for asked, found in (("svhn", "svhn:files"), ("svhn:elsewhere", "svhn:elsewhere")):  # and not those of the recipe
        (other,) = with_changes([one("dense-table1", "fmnist-a0.1-m5-cnn", "feddf")], {"data.public_source": asked})
        assert other.with_data("files", 3).data.public_source == found
