"""Past rounds for analyses: the same bits from wherever they are computed, and local training epoch by epoch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedloom import (
    SGD,
    Centralised,
    Ditto,
    Examples,
    FedAvg,
    Federation,
    FedFomo,
    FedNTD,
    FedProx,
    FedRep,
    History,
    KTpFL,
    KTpFLWeights,
    Local,
    Model,
    PFedSD,
    RunSettings,
    Scaffold,
    federate,
)
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.coordinator import Job
from fedloom.coordinator.replay import RoundReplay
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.losses import task_loss
from fedloom.core.types import Weights
from fedloom.data import by_lists
from fedloom.tasks import Classification

LOCAL = Local(epochs=3, batch_size=4, optimiser=SGD(lr=0.05, momentum=0.9))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(80, 3)
    )


def federation(**more: Any) -> Federation:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(66) % 3
    train = Examples(torch.randn(66, 1, 8, 8, generator=g) + y[:, None, None, None], y, 3)
    sizes = [list(range(11 * k, 11 * k + 7 + k % 3)) for k in range(6)]
    parts = {"test": train.select(torch.arange(60, 66)), "public": train.select(torch.arange(5)), **more}
    return federate(train, by_lists(sizes), **parts)


def job(algorithm: Algorithm, **more: object) -> Job:
    settings = RunSettings(**{"rounds": 5, "cohort_size": 3, "keep_every": 100, **more})  # type: ignore[arg-type]
    parts = federation(val_fraction=0.2) if algorithm.requires.validation else federation()
    return Job(algorithm=algorithm, federation=parts, model=Model(network, name="tiny"), settings=settings)


@dataclass(frozen=True, kw_only=True)
class Alone(Algorithm[tuple[()], Weights]):
    """Clients that train alone."""

    def init(self, model: Model, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return model.init(key)

    def carry(self, client: Client[Weights]) -> Any:
        return client.state

    def end(self, carry: Any) -> Weights:
        return carry  # type: ignore[no-any-return]

    def loss(self, client: Client[Weights]) -> Any:
        return task_loss(client.model, client.task)

    @on_client
    def learn(self, client: Client[Weights]) -> tuple[Weights, tuple[()]]:
        trained = minimise(self.loss(client), self.carry(client), client.train, self.local.optimiser, lr=client.lr)
        return self.end(trained), ()

    def round(self, server: tuple[()], cohort: Cohort) -> tuple[()]:
        cohort.gather(self.learn)
        return server

    def personal(self, client: Client[Weights], sent: tuple[()]) -> Weights:
        return client.state


class Twice(Alone):
    def round(self, server: tuple[()], cohort: Cohort) -> tuple[()]:
        return super().round(super().round(server, cohort), cohort)


class BesideAScale(Alone):
    """Trains its network and a number that multiplies its logits."""

    def carry(self, client: Client[Weights]) -> Any:
        return {"scale": torch.ones(()), "net": client.state}

    def end(self, carry: Any) -> Weights:
        return carry["net"]  # type: ignore[no-any-return]

    def loss(self, client: Client[Weights]) -> Any:
        model, task = client.model, client.task

        def loss(carry: Any, batch: Batch) -> Any:
            return task.loss(carry["scale"] * model.train(carry["net"], batch)[0], batch)

        return loss


class Sum(BesideAScale):
    """Trains two networks whose logits add up."""

    def carry(self, client: Client[Weights]) -> Any:
        return {"other": client.state, "net": client.state}

    def loss(self, client: Client[Weights]) -> Any:
        model, task = client.model, client.task

        def loss(carry: Any, batch: Batch) -> Any:
            return task.loss(model.train(carry["net"], batch)[0] + model.train(carry["other"], batch)[0], batch)

        return loss


class Idle(Alone):
    @on_client
    def learn(self, client: Client[Weights]) -> tuple[Weights, tuple[()]]:
        return client.state, ()


@pytest.mark.slow
def test_local_training_ends_before_public_examples_are_learnt(tmp_path: Path) -> None:
    made = job(KTpFL(local=LOCAL, num_public=5), rounds=1)
    made.run(tmp_path)
    replay = made.replay(tmp_path, 1)
    first = {e.client: e.trained for e in replay.exchanges if e.number == 0}
    assert [e.trained for e in replay.exchanges if e.number == 1] == [None] * 3
    assert sorted(replay.trained()) == sorted(replay.clients) == sorted(first)
    for e in replay.exchanges:  # the state after an exchange: local training, then the digest
        trained = replay.trained()[e.client].params["6.weight"]
        assert torch.equal(trained, e.state.params["6.weight"]) == (e.number == 0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_one_model_in_a_carry_is_the_trained_one(engine: Any, tmp_path: Path) -> None:
    made = job(BesideAScale(local=LOCAL), rounds=1, engine=engine)
    history = made.run(tmp_path)
    for k, weights in made.replay(tmp_path, 1).trained().items():
        assert torch.equal(weights.params["0.weight"], history.clients[k].params["0.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Sum, Idle])
def test_training_without_one_model_is_said_to_have_none(kind: type[Alone], tmp_path: Path) -> None:
    made = job(kind(local=LOCAL), rounds=1)
    made.run(tmp_path)
    replay = made.replay(tmp_path, 1)
    with pytest.raises(SettingError, match=r"learn leaves no model of a client's local training.*exactly once"):
        replay.trained()
    with pytest.raises(SettingError, match="leaves no model"):
        RoundReplay(made, tmp_path).by_epoch(1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedNTD(local=LOCAL), Scaffold(local=LOCAL)], ids=lambda a: type(a).__name__)
def test_rounds_are_the_same_bits_from_wherever_they_are_computed(algorithm: Algorithm, tmp_path: Path) -> None:
    """Checkpoints of rounds 4 and 5 only: round 5 is computed from a file, or after rounds in memory, and a round
    before those that were computed already from the start.
    """
    made = job(algorithm)
    made.run(tmp_path)
    past = RoundReplay(made, tmp_path)
    for number in (1, 2, 3, 4, 5, 3, 3):
        there, here = past.replay(number), RoundReplay(made, tmp_path).replay(number)
        assert there.clients == here.clients
        assert there.round == here.round == number
        for a, b in zip(
            tree.leaves((there.after, there.trained())), tree.leaves((here.after, here.trained())), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.slow
def test_rounds_in_rising_order_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = job(FedAvg(local=LOCAL))
    made.run(tmp_path)
    past, computed = RoundReplay(made, tmp_path), []
    whole = past.coordinator.engine.round
    monkeypatch.setattr(past.coordinator.engine, "round", lambda s, c, t: (computed.append(t + 1), whole(s, c, t))[1])
    for number in (1, 3, 5):
        past.replay(number)
    assert computed == [1, 2, 3, 5]  # there is a checkpoint of round 4


# FedFomo and KT-pFL train from what the server keeps of other clients, rows of each; Ditto trains two models
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("kind", [FedNTD, Scaffold, FedFomo, KTpFLWeights, Ditto])
def test_local_training_epoch_by_epoch(kind: type[Algorithm], engine: str, tmp_path: Path) -> None:
    made = job(kind(local=LOCAL), engine=engine)
    made.run(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    past = RoundReplay(made, tmp_path)
    epochs, whole = past.by_epoch(4), RoundReplay(made, tmp_path).replay(4)
    assert len(epochs) == 3
    assert all(list(found) == sorted(whole.clients) for found in epochs)
    for client, trained in whole.trained().items():
        last = epochs[-1][client]
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(trained), tree.leaves(last), strict=True))
        assert float((epochs[0][client].params - epochs[1][client].params).sq_norm()) > 0
    after = past.replay(5).after  # what was tried has left no trace in the states of clients, nor on disk
    expected = RoundReplay(made, tmp_path).replay(5).after
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(after), tree.leaves(expected), strict=True))
    assert {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_whom_others_replaced_does_not_train(tmp_path: Path) -> None:
    """Five are drawn for two places, and the first of them declines."""
    made = job(FedAvg(local=LOCAL), rounds=1, cohort_size=2, spares=3)
    drawn = (coordinator := Coordinator(made)).assembly.schedule.drawn(coordinator.running, 0)
    made = replace(made, faults=lambda round, exchange, client: "declined" if client == drawn[0] else None)
    history = made.run(tmp_path)
    assert sorted(history.metrics[1]["clients"]) == sorted(drawn[1:3])
    epochs = RoundReplay(made, tmp_path).by_epoch(1)
    assert [sorted(found) for found in epochs] == [sorted(RoundReplay(made, tmp_path).replay(1).trained())] * 3


@pytest.mark.slow
def test_the_first_epochs_are_those_of_a_shorter_round(tmp_path: Path) -> None:
    """The first round with one local epoch, run as such."""
    made, shorter = (
        job(FedAvg(local=LOCAL), rounds=1),
        job(FedAvg(local=Local(epochs=1, batch_size=4, optimiser=LOCAL.optimiser)), rounds=1),
    )
    made.run(tmp_path / "a")
    shorter.run(tmp_path / "b")
    first, expected = (
        RoundReplay(made, tmp_path / "a").by_epoch(1)[0],
        RoundReplay(shorter, tmp_path / "b").replay(1).trained(),
    )
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(first), tree.leaves(expected), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_local_training_step_by_step(engine: str, tmp_path: Path) -> None:
    """Every client has two batches an epoch, six a round."""
    made = job(PFedSD(local=LOCAL), engine=engine)
    made.run(tmp_path)
    past = RoundReplay(made, tmp_path)
    second, last = past.by_step(4, [2, 6])
    (plain,) = past.by_step(4, [6], lam=0)
    epochs, whole = past.by_epoch(4), RoundReplay(made, tmp_path).replay(4)
    asked_before = {k for t in range(3) for k in made.run().metrics[t + 1]["clients"]}
    assert asked_before & whole.trained().keys()
    for client, trained in whole.trained().items():
        for found, expected in ((second, epochs[0][client]), (last, trained)):
            assert all(
                torch.equal(a, b) for a, b in zip(tree.leaves(found[client]), tree.leaves(expected), strict=True)
            )
        moved = float((plain[client].params - trained.params).sq_norm())
        assert (moved > 0) == (client in asked_before)  # the term needs a model of an earlier round


@pytest.mark.slow
def test_past_personal_models_are_judged_as_in_the_run(tmp_path: Path) -> None:
    made = job(PFedSD(local=LOCAL))
    history = made.run(tmp_path)
    for round in (1, 3):
        wrote = history.metrics[round]["personal_by_client"]
        asked = {k for m in history.metrics[1 : round + 1] for k in m["clients"]}
        assert RoundReplay(made, tmp_path).accuracies(round) == {k: wrote[str(k)] for k in sorted(asked)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "task", "setting"),
    [
        (FedProx(local=LOCAL, drop_percent=0.5), Classification(), "FedProx with drop_percent = 0.5"),
        (FedRep(local=LOCAL, head_epochs=2), Classification(), "FedRep with head_epochs = 2"),
        (FedAvg(local=LOCAL), LDAM(drw=0.5), "LDAM with drw = 0.5"),
    ],
)
def test_clients_that_know_how_long_a_round_is_are_refused(
    algorithm: Algorithm, task: Any, setting: str, tmp_path: Path
) -> None:
    """A straggler draws one of all epochs, a head takes a share of the steps, weights begin at a share of them."""
    made = replace(job(algorithm, rounds=1), task=task)
    made.run(tmp_path / "with")
    for again in (lambda past: past.by_epoch(1), lambda past: past.by_step(1, [2])):
        with pytest.raises(SettingError, match=f"do not know how long it is, got {setting}: analyse a run without"):
            again(RoundReplay(made, tmp_path / "with"))
    made.replay(tmp_path / "with", 1)
    without = replace(job(FedProx(local=LOCAL), rounds=1), task=LDAM())
    without.run(tmp_path / "without")
    assert len(RoundReplay(without, tmp_path / "without").by_epoch(1)) == LOCAL.epochs


@pytest.mark.slow
def test_what_has_no_epochs_is_refused(tmp_path: Path) -> None:
    made = job(FedAvg(local=Local(steps=3, batch_size=4)), rounds=1)
    made.run(tmp_path / "steps")
    with pytest.raises(SettingError, match=r"clients that train in epochs, got local\.steps = 3"):
        RoundReplay(made, tmp_path / "steps").by_epoch(1)
    made = job(Twice(local=LOCAL), rounds=1)
    history: History = made.run(tmp_path / "twice")
    assert history.metrics[-1]["round"] == 1
    with pytest.raises(SettingError, match="Twice trains its clients more than once a round"):
        RoundReplay(made, tmp_path / "twice").by_epoch(1)
    made = job(Centralised(local=LOCAL), rounds=1)
    made.run(tmp_path / "pooled")
    with pytest.raises(SettingError, match="Centralised has no clients that train on their own"):
        RoundReplay(made, tmp_path / "pooled").by_step(1, [1])
    with pytest.raises(SettingError, match="has the rounds 1 to 1 to replay, got 0"):
        RoundReplay(made, tmp_path / "pooled").replay(0)


class Sleepy(nn.Module):
    """A client with seven examples to train on takes its time in a process of its own, as long as a file is there."""

    def __init__(self, asleep: Path) -> None:
        super().__init__()
        self.net, self.asleep, self.owner = network(), asleep, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) == 7 and os.getpid() != self.owner and self.asleep.exists():
            time.sleep(60)
        return self.net(x)


@pytest.mark.slow
def test_whom_a_run_did_not_wait_for_is_lost_again_in_a_replay(tmp_path: Path) -> None:
    """Clients 2 and 5 were late in round 2; what is computed again, alone, has the bits of the run."""
    asleep, out = tmp_path / "asleep", tmp_path / "run"
    settings = {"engine": "workers", "workers": 4, "deadline": 5.0, "compilation": "none", "checkpoint_every": 4}
    made = job(PFedSD(local=replace(LOCAL, batch_size=32)), **settings, rounds=4, cohort_size=6)
    made = replace(made, model=Model(lambda: Sleepy(asleep), name="sleepy"))

    def wake_or_sleep(history: History) -> None:
        asleep.touch() if len(history.metrics) == 2 else asleep.unlink(missing_ok=True)

    history = made.run(out, on_round=wake_or_sleep)
    late = dict.fromkeys(["2", "5"], "no answer within 5 s")
    assert [m["failed"] for m in history.metrics[1:]] == [{}, late, {}, {}]
    assert sorted(made.replay(out, 2).trained()) == sorted(RoundReplay(made, out).by_epoch(2)[-1]) == [0, 1, 3, 4]
    made.replay(out, 3)  # it is compared with what the run wrote down
    made.replay(out, 4)  # and with its checkpoint
