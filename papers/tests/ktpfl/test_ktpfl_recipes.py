"""Recipes of KT-pFL's experiments: data, settings, networks and methods."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from fedloom.core.optimiser import SGD
from fedloom.data import Dataset, Examples
from fedloom.experiments import catalogue
from fedloom.models import build
from fedloom_papers import find, recipes
from fedloom_papers.ktpfl.recipes import ABOUT, ALONE, CLIENTS, DATA, PAPER, PARTITION_SEED

EVERY = [r for table in ABOUT for r in recipes(table)]
ROWS = ["kt_pfl", "fedmd_kt", "fedmd", "feddf", "pfeddf", "sim_pfl", "topk_pfl", "local_only"]


def test_each_table_has_its_cells_once() -> None:
    assert {table: len(recipes(table)) for table in ABOUT} == {
        "ktpfl-mixed": 3 * 2 * 8,
        "ktpfl-same": 3 * 2 * 11,
        "ktpfl-small": 3 * 2 * 8,
        "ktpfl-groups": 2 * 3,
        "ktpfl-alone": 2,
        "ktpfl-useful": 2 * 3,
        "ktpfl-networks": 2 * 8,
        "ktpfl-sweeps": 2 * (9 + 8 + 5 + 6),
    }
    assert set(Counter((r.table, r.column, r.row) for r in EVERY).values()) == {1}
    assert len({r.place for r in EVERY}) == len(EVERY)
    assert not any(r.missing or r.variant or r.target for r in EVERY)
    assert {r.reading for r in EVERY} == {"last"}
    assert {r.measure for r in EVERY} == {"personal_accuracy"}
    assert all(r.experiment.run.per_client for r in EVERY)  # for accuracies before distillation


def test_settings_of_the_paper() -> None:
    (recipe,) = find("ktpfl-mixed", ["cifar10-two"], ["kt_pfl"])
    e = recipe.experiment
    assert (e.model, e.data.partition, e.data.clients, e.data.merge, e.data.test_fraction, e.data.public_source) == (
        PAPER, "label_blocks:2", 20, True, 0.25, "cifar100",
    )  # fmt: skip
    assert (e.run.rounds, e.run.cohort_size, e.local.epochs, e.local.batch_size) == (30, 20, 20, 128)
    assert e.local.optimiser == SGD(lr=0.02, momentum=0.0)
    own = e.settings["kt_pfl"]
    assert (own["num_public"], own["distill.batch_size"], own["distill.lr"], own["rho"], own["tau"]) == (
        3000, 256, 0.02, 0.7, 1.0,
    )  # fmt: skip
    letters = find("ktpfl-mixed", ["emnist_aj-all"], ["kt_pfl"])[0].experiment
    assert (letters.data.source, letters.data.classes, letters.data.partition) == (
        "emnist_letters", 10, "label_blocks:10",
    )  # fmt: skip
    assert (letters.data.public_source, letters.local.optimiser.lr) == ("mnist", 0.01)


def test_clients_are_the_same_with_every_seed_and_the_server_takes_ten_thousand_steps() -> None:
    assert {r.experiment.data.partition_seed for r in EVERY} == {1}
    for row in ("feddf", "pfeddf"):
        (recipe,) = find("ktpfl-mixed", ["cifar10-two"], [row])
        assert recipe.experiment.settings[row]["steps"] == 10_000


def test_settings_of_our_own_protocol() -> None:
    letters = find("ktpfl-small", ["emnist20k-two"], ["kt_pfl"])[0].experiment.data
    assert (letters.source, letters.classes, letters.examples) == ("emnist_letters", 10, 20_000)
    for recipe in find("ktpfl-small", ["fmnist20k-two", "emnist20k-two"]):
        e = recipe.experiment
        assert (e.model, e.local.epochs, e.run.rounds) == ("lenet,dense_cnn1,wrn16_1,mlp", 2, 20)
        assert e.settings.get(e.algorithm, {}).get("num_public", 1000) == 1000
        if recipe.row == "fedmd":  # as many examples for the clients, once the labelled ones are taken out
            assert (e.data.examples, e.data.public, e.data.public_source, e.data.public_labels) == (
                22_000, 2000, None, True,
            )  # fmt: skip
        else:
            assert (e.data.examples, e.data.public, e.data.public_source) == (20_000, 2000, "mnist")
            assert not e.data.public_labels


def test_methods_of_a_column_differ_in_nothing_else() -> None:
    column = {r.row: r.experiment for r in find("ktpfl-mixed", ["fmnist-all"])}
    assert list(column) == ROWS
    plain = column["kt_pfl"]
    labelled = dataclasses.replace(plain.data, public_source=None, public=5000, public_labels=True)
    assert column["fedmd"].data == labelled
    for row in ROWS:
        e = column[row]
        assert (e.local, e.run, e.model) == (plain.local, plain.run, plain.model)
        assert e.data == plain.data or row == "fedmd"


def test_claimed_orders() -> None:
    above = {r.row: r.above for r in find("ktpfl-small", ["cifar20k-two"])}
    assert above["kt_pfl"] == ("fedmd_kt", "feddf", "pfeddf", "sim_pfl", "topk_pfl", "local_only")
    assert above["sim_pfl"] == above["topk_pfl"] == ("fedmd_kt",)
    assert not any(above[row] for row in set(above) - {"kt_pfl", "sim_pfl", "topk_pfl"})
    useful = {r.row: r.above for r in find("ktpfl-useful", ["cifar20k"])}
    assert useful == {"kt_pfl": ("fedmd_kt", "local_only"), "fedmd_kt": (), "local_only": ()}
    assert "local_only" not in find("ktpfl-mixed", ["cifar10-two"], ["kt_pfl"])[0].above  # which the paper does not say


def test_what_is_useful_is_asked_of_the_clients_of_the_groups() -> None:
    for name in ("fmnist20k-groups", "cifar20k-groups"):
        (groups,) = find("ktpfl-groups", [name], ["kt_pfl-rho0.1"])
        rows = {r.row: r.experiment for r in find("ktpfl-useful", [name])}
        same = groups.experiment
        assert rows["kt_pfl"] == same
        assert all((e.data, e.local, e.run, e.model) == (same.data, same.local, same.run, same.model)
                   for e in rows.values())  # fmt: skip


def test_clients_that_are_alone_share_no_class() -> None:
    for found in (find("ktpfl-alone"), find("ktpfl-groups", [], ["kt_pfl-rho0"])):
        assert [r.column.partition("-")[0] for r in found] == ["fmnist20k", "cifar20k"]
        assert {r.experiment.settings["kt_pfl"]["rho"] for r in found} == {0.0}
    for e in (r.experiment for r in find("ktpfl-alone")):
        assert (e.data.partition, e.data.clients, e.run.cohort_size) == ("label_blocks:2", 5, 5)


def test_sweeps_change_one_setting() -> None:
    rows = {r.row: r.experiment for r in find("ktpfl-sweeps", ["cifar10-all"])}
    assert rows["kt_pfl-E3"].local.epochs == 3
    assert rows["kt_pfl-R4"].settings["kt_pfl"]["distill.epochs"] == 4
    assert rows["kt_pfl-P500"].settings["kt_pfl"]["num_public"] == 500
    assert rows["kt_pfl-rho2.5"].settings["kt_pfl"]["rho"] == 2.5
    assert {e.data.clients for e in rows.values()} == {e.run.cohort_size for e in rows.values()} == {10}
    assert rows["kt_pfl-rho0.7"].settings == rows["kt_pfl-E20"].settings


@pytest.mark.parametrize(("name", "per_class"), [("emnist", 5600), ("fmnist", 6000), ("cifar", 5000)])
def test_every_recipe_finds_enough_examples_of_each_class(name: str, per_class: int) -> None:
    """Also that of FedMD, whose public examples are drawn from those of the clients without regard to class."""
    mine = {r.experiment.data: r for r in EVERY if r.column.startswith(name)}
    assert mine
    for d in mine:
        y = torch.arange(10).repeat_interleave(per_class + 1000 * (d.merge and name != "emnist"))
        found = Dataset(Examples(torch.zeros(len(y), 1), y, 10), None)
        found = catalogue.cut(found, d.examples, PARTITION_SEED) if d.examples else found
        if d.public_source is None:
            found, _ = catalogue.take_out(found, d.public, PARTITION_SEED)
        _, made = catalogue.handed_out(d.partition, found, d.clients, PARTITION_SEED)
        counts = made.counts(found.train.y, 10)
        assert counts[counts > 0].min() >= 10
        if d.clients > ALONE:  # else each has all examples of its classes
            assert len(set(made.sizes.tolist())) > d.clients // 2, "in unequal numbers"


def test_everything_can_be_made() -> None:
    for e in (r.experiment for r in EVERY):
        catalogue.algorithm(e.algorithm, e.local, e.settings.get(e.algorithm, {}))


@pytest.mark.parametrize("setting", ["label_blocks:2", "label_blocks:10", "label_blocks:5"])
def test_each_group_of_like_clients_has_each_architecture(setting: str) -> None:
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(10), 2000)))
    dataset = Dataset(Examples(torch.zeros(len(labels), 1), labels, 10), None)
    made = catalogue.partition(setting, dataset, CLIENTS, 1)
    held = made.counts(labels, 10) > 0
    models = 3 if setting == "label_blocks:5" else 4
    for group in {tuple(row) for row in held}:
        members = [k for k in range(CLIENTS) if tuple(held[k]) == group]
        assert {k % models for k in members} == set(range(models))


@pytest.mark.parametrize("name", DATA)
def test_the_networks_of_each_data_set_can_be_built(name: str) -> None:
    shape = (3, 32, 32) if name.startswith("cifar") else (1, 28, 28)
    asked = {m for r in EVERY if r.column.startswith(f"{name}-") for m in r.experiment.model.split(",")}
    for model in asked - {"ktpfl_alexnet", "ktpfl_resnet18"}:  # large, and built elsewhere
        assert build(model, shape, 10)(torch.zeros(2, *shape)).shape == (2, 10)
    assert asked
