"""Tests of who trains in a run."""

from __future__ import annotations

from typing import Any

import torch

from fedloom import Centralised, FedAvg, LocalOnly, RunSettings, Scale, Unreliable, run
from fedloom.coordinator import FixedList
from fedloom.coordinator.plan import Plan
from fedloom.coordinator.sampler import Uniform
from fedloom.core import tree
from tiny import LOCAL, federation, linear, mlp

SETTINGS = RunSettings(rounds=2, cohort_size=3, engine="loop", aggregator="median", per_client=True)
ASKED: dict[str, Any] = {
    "sampler": FixedList(((5,), (4,))),
    "faults": Unreliable(lost=0.5),
    "attack": Scale(-1, share=0.5),
}


def plan(algorithm: Any, model: Any = mlp, **asked: Any) -> Plan:
    return Plan(algorithm=algorithm, federation=federation(), model=model, settings=SETTINGS, **asked)


def test_clients_train_as_they_were_asked_to() -> None:
    job = plan(FedAvg(local=LOCAL), **ASKED)
    who = job.trainees
    assert who.population(job.population) is job.population
    assert (who.algorithm, who.cohort_size, who.aggregator, who.per_client) == (job.algorithm, 3, "median", True)
    assert {name: getattr(who, name) for name in ASKED} == ASKED
    assert plan(FedAvg(local=LOCAL)).trainees.sampler == Uniform(SETTINGS.seed)
    assert plan(LocalOnly(local=LOCAL, schedule="every_round")).trainees.cohort_size == 6


def test_one_client_in_the_place_of_all_is_asked_in_every_round() -> None:
    job = plan(Centralised(local=LOCAL), {"a": linear, "b": mlp}, **ASKED)
    who = job.trainees
    assert (who.cohort_size, who.aggregator, who.per_client) == (1, "mean", False)
    assert (who.sampler, who.faults, who.attack) == (Uniform(SETTINGS.seed), None, None)
    one = who.population(job.population)
    assert (one.num_clients, [*one.models], one.sizes.tolist()) == (1, ["a"], [job.population.sizes.sum()])
    assert [*one.holders([2, 4])] == [0]
    assert [*one.owners([0])] == [*range(6)]
    assert one.architecture(5) == "a"  # whatever its own would be
    assert (one.travels, job.population.travels) == (False, True)


def test_a_list_of_clients_does_not_reach_one_that_stands_for_all() -> None:
    settings = RunSettings(rounds=2, cohort_size=3, engine="loop")
    one, other = (
        run(Centralised(local=LOCAL), federation(), mlp, settings, sampler=s) for s in (None, ASKED["sampler"])
    )
    assert all(map(torch.equal, *(tree.leaves(history.server) for history in (one, other))))
