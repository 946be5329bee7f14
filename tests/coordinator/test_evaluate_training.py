"""The loss over the training examples of all clients, against arithmetic by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom import Centralised, FedAvg, FedProx, LocalOnly, RunSettings, Weights
from fedloom.coordinator import FixedList, Job, verify
from fedloom.data import by_lists
from tiny import LOCAL, examples, linear

SIZES = (15, 9, 6, 12, 3, 6)
SETTINGS = RunSettings(rounds=2, cohort_size=3, engine="loop", threads=1, evaluate_training=True)


def federation() -> fl.Federation:
    """Six clients of unequal sizes, each with a third of its examples held out."""
    train, ends = examples(sum(SIZES)), [sum(SIZES[:k]) for k in range(len(SIZES) + 1)]
    lists = [list(range(a, b)) for a, b in itertools.pairwise(ends)]
    return fl.federate(train, by_lists(lists), test=examples(30, seed=1), test_fraction=0.34)


def loss_by_hand(of: Any) -> float:
    """The mean over all training rows of all clients, each by the weights that `of` gives for its client."""
    data = federation()
    losses = list[Tensor]()
    for k in range(data.num_clients):
        rows, weights = data.partition.rows(k).copy(), of(k)
        logits = data.train.x[rows] @ weights.params["weight"].mT + weights.params["bias"]
        losses.append(F.cross_entropy(logits, data.train.y[rows], reduction="none"))
    return float(torch.cat(losses).double().mean())


@pytest.mark.parametrize(
    ("algorithm", "engine"),
    [
        (FedAvg(local=LOCAL), "loop"),
        (FedProx(local=LOCAL, mu=5.0), "stacked"),  # the proximal term is not in it
        (Centralised(local=LOCAL), "loop"),
    ],
    ids=["fedavg", "fedprox", "centralised"],
)
def test_the_global_model_on_every_clients_training_examples(algorithm: Any, engine: Any) -> None:
    found = fl.run(algorithm, federation(), linear, replace(SETTINGS, engine=engine))
    server: Weights = found.server["Linear"]
    assert found.metrics[-1]["personal_train_loss"] == pytest.approx(loss_by_hand(lambda k: server), rel=1e-5)
    assert found.metrics[-1]["personal_train_loss"] != pytest.approx(found.metrics[-1]["train_loss"], rel=1e-3)
    assert "personal_train_loss" in found.metrics[0]


def test_each_client_by_its_own_model_and_large_ones_count_for_more() -> None:
    data = federation()
    sampler = FixedList(((0, 1, 2), (1, 2, 4)))
    found = fl.run(LocalOnly(local=LOCAL), data, linear, SETTINGS, sampler=sampler)
    started = fl.run(FedAvg(local=LOCAL), data, linear, replace(SETTINGS, rounds=1), sampler=FixedList(((),)))
    own, first = dict(found.clients), started.server["Linear"]
    assert sorted(own) == [0, 1, 2, 4]
    by_hand = loss_by_hand(lambda k: own.get(k, first))
    assert found.metrics[-1]["personal_train_loss"] == pytest.approx(by_hand, rel=1e-5)


def test_it_is_measured_when_personal_models_are_and_changes_nothing_else() -> None:
    asked = replace(SETTINGS, rounds=3, eval_every=2)
    plain, more = (
        fl.run(FedAvg(local=LOCAL), federation(), linear, replace(asked, evaluate_training=on)) for on in (False, True)
    )
    assert ["personal_train_loss" in record for record in more.metrics] == [True, False, True, True]
    for without, with_ in zip(plain.metrics, more.metrics, strict=True):
        assert {name: value for name, value in with_.items() if name != "personal_train_loss"} == without


@pytest.mark.slow
def test_a_run_that_began_without_it_goes_on_with_it(tmp_path: Path) -> None:
    job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=SETTINGS)
    replace(job, settings=replace(SETTINGS, rounds=1, evaluate_training=False)).run(tmp_path / "run")
    found = job.run(tmp_path / "run", resume=True)
    assert ["personal_train_loss" in record for record in found.metrics] == [False, False, True]
    assert verify(tmp_path / "run").whole
