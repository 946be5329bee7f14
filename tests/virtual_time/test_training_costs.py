"""What exchanges cost, by a trial, and the work of a training by hand."""

from __future__ import annotations

from typing import Any

import pytest

import fedloom as fl
from fedloom.core.batches import plan
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.virtual_time.training_costs import Cost, Work, costs_of, planned
from tiny import LOCAL, federation, linear, population


def job(algorithm: Any, model: Any = linear, **more: Any) -> fl.Job:
    settings = fl.RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1, **more)
    return fl.Job(algorithm=algorithm, federation=federation(), model=model, settings=settings)


@pytest.mark.parametrize("steps", [None, 1, 4, 7])
@pytest.mark.parametrize("size", [1, 7, 8, 30])
def test_a_plan_has_the_examples_and_steps_of_its_batches(size: int, steps: int | None) -> None:
    _, mask = plan([size], 4, [0], epochs=3, steps=steps)  # type: ignore[arg-type]
    local = fl.Local(epochs=3, batch_size=4, steps=steps, optimiser=LOCAL.optimiser)
    assert planned(size, local) == (mask.sum(), mask.any(2).sum())
    assert planned(120, fl.Local(batch_size=50, epochs=5)) == (600, 15)
    assert planned(120, fl.Local(batch_size=50, steps=4)) == (170, 4)


def test_work_is_of_examples_steps_and_flops() -> None:
    """A product of 4 x 3 takes 24 FLOPs, and its gradient by the weights as many."""
    work = Work(Loop(population(), fl.FedAvg(local=LOCAL)), by_flops=True)
    assert work.of(0, 0, 1.0) == (24.0, 6, 24 * 48.0)
    assert work.of(0, 0, 0.5) == (12.0, 3, 12 * 48.0)
    assert Work(Loop(population(), fl.FedAvg(local=LOCAL)), by_flops=False).of(0, 0, 1.0) == (24.0, 6, 0.0)


@pytest.mark.parametrize(
    ("algorithm", "costs"),
    [
        (fl.FedAvg(local=LOCAL), {"local_update 0 Linear": Cost(60, 60, 1.0)}),
        (fl.LocalOnly(local=LOCAL), {"local_update 0 Linear": Cost(0, 0, 1.0)}),
        (fl.Scaffold(local=LOCAL), {"local_update 0 Linear": Cost(120, 120, 1.0)}),
    ],
)  # fmt: skip
def test_costs_are_bytes_both_ways_and_trainings(algorithm: Any, costs: dict[str, Cost]) -> None:
    assert costs_of(job(algorithm)) == costs


def test_each_architecture_has_costs_of_its_own() -> None:
    nets = {"a": linear, "b": linear}
    assert {*costs_of(job(fl.FedAvg(local=LOCAL), nets))} == {"local_update 0 a", "local_update 0 b"}


class Failing(fl.FedAvg):
    """A method with a mistake."""

    def round(self, server: Any, cohort: Any) -> Any:
        raise KeyError("x")


def test_a_method_that_fails_is_named() -> None:
    with pytest.raises(
        SettingError, match=r"before a run with a clock, .* and Failing fails: .*; mend it, or leave out"
    ):
        costs_of(job(Failing(local=LOCAL)))
