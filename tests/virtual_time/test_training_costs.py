"""What exchanges cost, by a trial, and the work of a training by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.batches import plan
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.testing import Subject
from fedloom.virtual_time.training_costs import Cost, Work, costs_of, planned
from fedloom.virtual_time.virtual_rounds import OnTime
from small import ONE_SHOT
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
    engine, plain = Loop(population(), fl.FedAvg(local=LOCAL)), Cost(0, 0, gradient=48.0)
    work = Work(engine, by_flops=True)
    assert work.of(0, 0, plain) == (24.0, 6, 24 * 48.0)
    assert work.of(0, 0, dataclasses.replace(plain, trainings=0.5, beside=3.0)) == (15.0, 3, 15 * 48.0)
    assert Work(engine, by_flops=False).of(0, 0, plain) == (24.0, 6, 0.0)


@pytest.mark.parametrize(
    ("algorithm", "costs"),
    [
        (fl.FedAvg(local=LOCAL), {"local_update 0 Linear": Cost(60, 60, gradient=48.0)}),
        (fl.FedAvg(local=dataclasses.replace(LOCAL, steps=4)), {"local_update 0 Linear": Cost(60, 60, gradient=48.0)}),
        (fl.LocalOnly(local=LOCAL), {"local_update 0 Linear": Cost(0, 0, gradient=48.0)}),
        (fl.Scaffold(local=LOCAL), {"local_update 0 Linear": Cost(120, 120, gradient=48.0)}),
        (fl.FedSAM(local=LOCAL), {"local_update 0 Linear": Cost(60, 60, 2.0, gradient=48.0)}),  # two gradients a step
        (fl.PFedMe(local=LOCAL, K=3), {"local_update 0 Linear": Cost(60, 60, 3.0, gradient=48.0)}),
    ],
)  # fmt: skip
def test_costs_are_bytes_both_ways_and_gradients(algorithm: Any, costs: dict[str, Cost]) -> None:
    assert costs_of(job(algorithm)) == costs


class Recurrent(nn.Module):
    """Each example as a sequence of two steps of two numbers, three hidden units, three classes."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.body, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.view(len(x), 2, 2))[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "dtype", "gates", "missing"),
    [
        (nn.LSTM, "float32", 4, 0),  # one operator, which computes all gradients
        (nn.LSTM, "float64", 4, 2 * 24 + 36),  # step by step, without gradients of inputs and of the first state
        (nn.GRU, "float32", 3, 2 * 18 + 27),
    ],
)
def test_flops_of_recurrent_layers_are_those_of_their_products(
    kind: type[nn.LSTM | nn.GRU], dtype: Any, gates: int, missing: int
) -> None:
    """Two steps, with weights [gates x 3, 2] and [gates x 3, 3]: forward, by weights, by inputs and states."""
    (cost,) = costs_of(job(fl.FedAvg(local=LOCAL), lambda: Recurrent(kind), dtype=dtype)).values()
    products = 2 * gates * 3 * (2 + 3)
    assert cost.gradient == 2 * (3 * products - missing) + 3 * 2 * 9
    assert cost.trainings == 1.0


class Public(fl.FedAvg):
    """FedAvg with a product of 4 x 3 for each of five rows that every client has beside its own."""

    @fl.on_client
    def local_update(self, client: fl.Client[Any], w: fl.Weights) -> Any:
        beside = torch.ones(5, 4) @ w.params["weight"].T
        state, upload = super().local_update(client, w)
        (first,) = upload if isinstance(upload, tuple) else (upload,)
        return state, fl.Weighted(first.value, first.weight + 0 * beside.sum())


def test_what_does_not_depend_on_a_clients_examples_is_counted_once() -> None:
    """Five products of 24 FLOPs are 2.5 gradients of 48."""
    (cost,) = costs_of(job(Public(local=LOCAL))).values()
    assert (cost.trainings, cost.beside) == (1.0, 2.5)


def test_bytes_that_change_are_not_steady() -> None:
    """APFL's clients are sent their own models from the second round on."""
    (cost,) = costs_of(job(ALGORITHMS["apfl_ni"](local=LOCAL))).values()
    assert not cost.steady


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "centralised"])
def test_what_is_expected_of_a_method_is_what_it_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedGKD alone sends more in later rounds than the trial sees, and nobody is thought late who is not."""
    told, judged = list[tuple[int, int, dict[int, float]]](), OnTime._judged

    def seen(self: OnTime, number: int, took: dict[int, float]) -> dict[int, str]:
        told.append((self._round, number, took))
        return judged(self, number, took)

    monkeypatch.setattr(OnTime, "_judged", seen)
    subject = Subject.of(ONE_SHOT.get(name, ALGORITHMS[name]))
    fl.run(
        subject.algorithm, subject.population().federation, dict(subject.models),
        fl.RunSettings(
            rounds=3, cohort_size=4, engine="loop", threads=1,
            clock="lognormal:example=0.01,down=0.001,up=0.001,deadline=1000",
        ),
    )  # fmt: skip
    first = dict[tuple[int, int, int], float]()
    for round, number, took in told:
        for k, seconds in took.items():
            expected = first.setdefault((round, number, k), seconds)
            assert expected == pytest.approx(seconds, rel=1e-12) or (name == "fedgkd" and expected < seconds)


class Scaled(nn.Module):
    """A network without a product of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale)[:, :3]


def test_a_network_without_products_trains_all_the_same() -> None:
    assert costs_of(job(fl.FedAvg(local=LOCAL), Scaled)) == {"local_update 0 Scaled": Cost(16, 16)}
    with pytest.raises(
        SettingError, match="counts FLOPs of matrix products and convolutions, and the network has none"
    ):
        job(fl.FedAvg(local=LOCAL), Scaled, clock="lognormal:flops=1e9")


@pytest.mark.slow
def test_a_front_that_is_computed_once_counts_in_full() -> None:
    """The clients of a simulation compute it in each pass, whatever the simulation does."""

    def network() -> nn.Module:
        front = nn.Linear(4, 8).requires_grad_(False)
        return nn.Sequential(front, nn.Tanh(), nn.Linear(8, 3))

    def seconds(front: Any) -> float:
        made = fl.Job(
            algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=network,
            settings=fl.RunSettings(
                rounds=1, cohort_size=3, engine="loop", threads=1, front=front, clock="lognormal:flops=1000,spread=0"
            ),
        )  # fmt: skip
        return made.run().series("virtual_seconds")[-1]

    assert seconds("auto") == seconds("off") == 24 * (2 * 4 * 8 + 2 * 2 * 8 * 3) / 1000


def test_each_architecture_has_costs_of_its_own() -> None:
    nets = {"a": linear, "b": linear}
    assert {*costs_of(job(fl.FedAvg(local=LOCAL), nets))} == {"local_update 0 a", "local_update 0 b"}


class Failing(fl.FedAvg):
    """A method with a mistake."""

    def round(self, server: Any, cohort: Any) -> Any:
        raise KeyError("x")


def test_a_method_that_fails_is_named() -> None:
    with pytest.raises(
        SettingError, match=r"before a run with a clock, .* and Failing fails: .*; mend it, or leave the clock out"
    ):
        costs_of(job(Failing(local=LOCAL)))
