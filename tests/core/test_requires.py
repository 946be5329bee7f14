"""Tests of what algorithms need, and of the one place where runs without it are refused."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError
from fedloom.core.requires import Requires
from fedloom.data import by_lists
from tiny import LOCAL, federation, mlp

FACE = {
    "local", "requires", "neutral", "bind", "init", "init_client", "init_rows", "round", "training", "train",
    "train_beside", "term", "with_context", "personal", "personalises", "has_personal", "evaluation_payload",
    "evaluation_training", "global_weights", "global_models",
}  # fmt: skip


def test_an_algorithm_has_twenty_members() -> None:
    names = {*dir(fl.Algorithm), *(f.name for f in fields(fl.Algorithm))}
    assert {name for name in names if not name.startswith("_")} == FACE
    assert len(FACE) == 20


def test_needs_of_several_classes_add_up() -> None:
    nothing = Requires()
    every = Requires(
        public=True, validation=True, targets=("classes",), logits=3, sums=True, everyone=True, mixed=True,
        one_place=True, server_training=True, front=True,
    )  # fmt: skip
    assert nothing | every == every | nothing == every | every == every
    assert nothing | nothing == nothing
    two = Requires(targets=("classes", "labels"), logits=2)
    assert (two | Requires(targets=("tokens", "labels"), logits=3)) == Requires(targets=("labels",), logits=3)
    fronts = {
        (a, b): (Requires(front=a) | Requires(front=b)).front for a in (None, False, True) for b in (None, False, True)
    }
    assert {pair for pair, front in fronts.items() if front} == {pair for pair in fronts if True in pair}
    assert [pair for pair, front in fronts.items() if front is None] == [(None, None)]


def test_a_class_that_adds_to_its_parents_keeps_what_these_need() -> None:
    taught = fl.self_distilled(fl.FedNTD)()
    assert taught.requires == Requires(targets=("classes",), logits=3)
    assert fl.self_distilled(fl.FedProx)(transfer="weights").requires.logits == 1
    assert fl.FedProto().requires == Requires(targets=("classes",), front=True, mixed=True)
    assert fl.FedRoD().requires == Requires(targets=("classes",), front=True, logits=2, optimisers=2)
    assert (fl.KDNTD(lam=0.5).requires.logits, fl.KDNTD(lam=0.0).requires.logits) == (3, 2)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam", "pfedme"])
def test_most_need_nothing(name: str) -> None:
    assert ALGORITHMS[name]().requires == Requires()


def refused(algorithm: Any, parts: Any, task: Any = None, **settings: Any) -> str:
    with pytest.raises(SettingError) as caught:
        fl.Job(
            algorithm=algorithm, federation=parts, model=mlp, task=task or fl.Classification(),
            settings=fl.RunSettings(cohort_size=3, **settings),
        )  # fmt: skip
    return str(caught.value)


def test_a_run_that_lacks_what_is_needed_is_refused_before_there_is_an_engine() -> None:
    parts = federation()
    public = "FedBE needs public examples, got none: take some out with data.public"
    assert refused(fl.FedBE(local=LOCAL), parts).startswith(public)
    validation = r"FedFomo needs validation examples on its clients, got none: hold some out with .*val_fraction=0\.2"
    assert re.match(validation, refused(fl.FedFomo(), parts))
    nobody = fl.replace(parts, local_val=by_lists([[]] * parts.num_clients))
    assert re.match(validation, refused(fl.FedFomo(), nobody))
    sums = "FedCurv adds up what clients report, and aggregator = 'median' gives no sum"
    assert refused(fl.FedCurv(), parts, aggregator="median").startswith(sums)


def test_logits_are_counted() -> None:
    Requires(logits=3).check_logits("Mine", "net", 3)
    with pytest.raises(SettingError, match=r"Mine compares .* at least 3 logits, and model net has 2: with fewer"):
        Requires(logits=3).check_logits("Mine", "net", 2)


def test_settings_that_are_fedavgs_for_the_global_model_alone_are_a_mapping() -> None:
    settings = fl.GlobalOnly(lam=0)
    assert ({**settings}, isinstance(settings, dict)) == ({"lam": 0}, True)
    with pytest.warns(UserWarning, match="PFedSD with lam = 0 is FedAvg but for the models by which clients are"):
        fl.PFedSD(lam=0)
