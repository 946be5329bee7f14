"""Which methods protect examples: all of the catalogue, tried with one example in each batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError
from fedloom.privacy.by_example import ExampleGradients
from fedloom.privacy.example_trial import trainings
from fedloom.testing import Subject
from small import ONE_SHOT

READ = "read their training examples beside these"
UPLOAD = "upload what depends on their examples"
REFUSED = {
    "apfl_ni": READ, "centralised": "in one place", "fedala": READ, "fedcurv": READ,
    "fedcurv_ni": READ, "fedfomo": UPLOAD, "fedlc": UPLOAD, "fedmeta": READ, "fedproto": READ, "fedrod": UPLOAD,
    "ifca": READ, "per_fedavg": READ, "pfedme": READ, "q_fedavg": READ,
}  # fmt: skip


def tried(name: str, **changes: Any) -> int:
    subject = Subject.of(ONE_SHOT.get(name, ALGORITHMS[name]))
    algorithm = dataclasses.replace(subject.algorithm, **changes)
    size = 1 if algorithm.requires.one_place else 4
    job = fl.Job(
        algorithm=algorithm, federation=subject.population().federation, model=dict(subject.models),
        settings=fl.RunSettings(rounds=3, cohort_size=size),
    )  # fmt: skip
    return trainings(job, ExampleGradients(clip=1.0, noise=1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_method_protects_examples_or_is_refused(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(SettingError, match=REFUSED[name]):
            tried(name)
    else:
        assert tried(name) in (1, 2)


def test_a_share_that_steps_move_is_seen() -> None:
    with pytest.raises(SettingError, match="moves buffers by the examples of its batch"):
        tried("apfl_deng", alpha_update="every_step")


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_trainings_of_a_round_are_counted(name: str) -> None:
    assert tried(name) == 1


def test_every_refused_method_is_there() -> None:
    assert set(ALGORITHMS) > set(REFUSED)
