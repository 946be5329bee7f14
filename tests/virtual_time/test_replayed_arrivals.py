"""Simulations by a log of arrivals that are refused, or found to be of another run."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import fedloom as fl
from arriving import Arriving
from fedloom.core.errors import SettingError
from tiny import LOCAL, federation

FEDAVG = fl.FedAvg(local=LOCAL)
OTHER = fl.FedAvg(local=dataclasses.replace(LOCAL, epochs=1))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Arriving:
    made = Arriving(tmp_path_factory.mktemp("devices"), FEDAVG, (3, 1, 0, 2, 4), rounds=3)
    made.run()
    return made


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (
            {"rounds": 4},
            r"arrivals.jsonl has 3 versions of the model, so rounds \(--rounds\) is at most as much, got 4",
        ),
        ({"cohort_size": 2}, r"is not the log of such a run \(3 clients are under way after version 0, in 2 places\)"),
        (
            {"clock": "lognormal:example=0.01"},
            r"who comes is in the log \(arrivals\), got clock = .* too: leave it out",
        ),
        ({"asynchrony": "fedbuff:size=2,arrivals=nowhere"}, r"nowhere/arrivals.jsonl is written by a run of devices"),
    ],
)
def test_what_cannot_follow_a_log_is_refused(more: dict[str, Any], match: str, ours: Arriving) -> None:
    with pytest.raises(SettingError, match=match):
        ours.simulation(**more)


def test_fewer_clients_cannot_follow_a_log(ours: Arriving) -> None:
    few = federation(4)
    with pytest.raises(SettingError, match=r"client 5 is one of 4"):
        dataclasses.replace(ours.simulation(), federation=few)


def test_other_bits_end_the_simulation(ours: Arriving) -> None:
    job = dataclasses.replace(ours.simulation(), algorithm=OTHER)
    with pytest.raises(SettingError, match=r"version 1 of the model has other bits than the log says, \w{8}"):
        job.run()


def test_other_bits_in_the_last_round_are_found_too(ours: Arriving) -> None:
    job = ours.simulation(rounds=1)
    assert len(job.run().metrics) == 2
    with pytest.raises(SettingError, match=r"version 1 of the model has other bits"):
        dataclasses.replace(job, algorithm=OTHER).run()
