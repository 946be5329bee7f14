"""Which methods local privacy is for: all of the catalogue, tried with zeros in the place of what has noise."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.errors import SettingError
from fedloom.privacy.local_trial import uploads_of
from fedloom.testing import Subject
from small import ONE_SHOT

BESIDE = "upload what depends on their examples beside these"
NONE = "uploads none by the annotations"
OTHER = "in whose place no model or one of several was sent"
REFUSED = {
    "apfl_ni": BESIDE, "centralised": "in one place", "fedexp": BESIDE, "fedfomo": OTHER, "fedmd": NONE,
    "fedmd_kt": NONE, "fedproto": NONE, "ifca": OTHER, "kt_pfl": NONE, "local_only": NONE, "q_fedavg": BESIDE,
    "sim_pfl": NONE, "topk_pfl": NONE,
}  # fmt: skip
SEVERAL = {"fedcurv": 3, "fedcurv_ni": 2, "scaffold": 2}  # sets of named tensors in a round


def tried(name: str, **changes: Any) -> int:
    subject = Subject.of(ONE_SHOT.get(name, ALGORITHMS[name]))
    algorithm = dataclasses.replace(subject.algorithm, **changes)
    size = 1 if algorithm.requires.one_place else 4
    job = fl.Job(
        algorithm=algorithm, federation=subject.population().federation, model=dict(subject.models),
        settings=fl.RunSettings(rounds=3, cohort_size=size),
    )  # fmt: skip
    return uploads_of(job)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_method_sends_noise_alone_or_is_refused(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(SettingError, match=REFUSED[name]):
            tried(name)
    else:
        assert tried(name) == SEVERAL.get(name, 1)


@pytest.mark.parametrize("name", ["fedavg", "feddf", "scaffold"])
def test_uploads_of_a_round_are_counted(name: str) -> None:
    assert tried(name) == SEVERAL.get(name, 1)


def test_every_method_that_is_named_is_there() -> None:
    assert {*ALGORITHMS} > {*REFUSED, *SEVERAL}
