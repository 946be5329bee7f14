"""Optimisers that clients keep: PyTorch's over all rounds, alike on each engine, a part of the state that counts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.core import tree
from fedloom.core.errors import StackingError
from fedloom.core.fold.execution import Execution, current, executing
from fedloom.data import by_lists
from fedloom.engines.engine_options import Options
from fedloom.engines.kept_optimisers import KeptOptimisers, WithOptimisers
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import examples, federation, mlp, population

MOMENTUM = fl.SGD(lr=0.1, momentum=0.9, weight_decay=0.01)
STEADY = fl.Local(epochs=2, batch_size=4, optimiser=MOMENTUM, keep_optimiser=True)
SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)


def after(kind: Any, algorithm: Any, rounds: int = 3, **more: Any) -> tuple[Any, Any]:
    """Return server and states after some rounds of an engine, the last of which meets a new client."""
    engine = kind(population(mlp), algorithm, Options(**more))
    server = engine.init()
    for round in range(rounds):
        server = engine.round(server, (0, 1, 2) if round < rounds - 1 else (1, 2, 4), round)
    states = engine.all_states() if isinstance(engine, DevicesInProcess) else dict(engine.states)
    engine.close()
    return server, states


def same(one: Any, other: Any) -> bool:
    """Return whether two trees have the same leaves, bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True))


def job(local: fl.Local, engine: Any = "loop", **more: Any) -> fl.Job:
    settings = dataclasses.replace(SETTINGS, engine=engine, **more)
    return fl.Job(algorithm=fl.FedAvg(local=local), federation=federation(), model=mlp, settings=settings)


# ---- what it computes

PAIRS: dict[str, tuple[fl.Optimiser, Any]] = {
    "sgd": (MOMENTUM, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "nesterov": (
        fl.SGD(lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (fl.Adam(lr=0.05), lambda p: torch.optim.Adam(p, lr=0.05)),
    "adamw": (fl.AdamW(lr=0.05, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1)),
    "rmsprop": (fl.RMSprop(lr=0.02, momentum=0.5), lambda p: torch.optim.RMSprop(p, lr=0.02, momentum=0.5)),
    "adagrad": (fl.Adagrad(lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
}


@pytest.mark.parametrize("kind", [Loop, Stacked])
@pytest.mark.parametrize("name", PAIRS)
def test_one_client_takes_the_steps_of_one_optimiser_over_all_rounds(name: str, kind: Any) -> None:
    """Three rounds of two steps on all its examples are six steps of PyTorch's optimiser, which never begins anew."""
    ours, theirs = PAIRS[name]
    local = fl.Local(epochs=2, batch_size=30, optimiser=ours, keep_optimiser=True)
    alone = fl.federate(examples(30), by_lists([[*range(30)]]), test_fraction=0)

    def trained(local: fl.Local, rounds: int) -> dict[str, Tensor]:
        engine = kind(population(mlp, alone, dtype=torch.float64), fl.FedAvg(local=local))
        server = engine.init()
        for round in range(rounds):
            server = engine.round(server, (0,), round)
        return dict(server["net"].params)

    module, data = mlp().double(), alone.train
    module.load_state_dict(trained(local, 0))
    optimiser = theirs(module.parameters())
    for _ in range(6):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(data.x.double()), data.y).backward()
        optimiser.step()
    kept, anew = trained(local, 3), trained(dataclasses.replace(local, keep_optimiser=False), 3)
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(kept[key], value, rtol=1e-6, atol=1e-9)
    assert max(float((anew[key] - kept[key]).abs().max()) for key in kept) > 1e-3


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_an_optimiser_that_keeps_nothing_trains_as_before(engine: Any) -> None:
    plain = fl.Local(epochs=2, batch_size=4, optimiser=fl.SGD(lr=0.1))
    before, now = job(plain, engine).run(), job(dataclasses.replace(plain, keep_optimiser=True), engine).run()
    assert now.metrics == before.metrics
    assert same(now.server, before.server)


def test_a_schedule_of_steps_goes_on() -> None:
    """Of two rounds of two steps, the second has the rates of the third and the fourth: none."""
    rates = fl.SGD(lr=0.1, schedule="cosine:2?by=step")
    local = fl.Local(steps=2, batch_size=4, optimiser=rates, keep_optimiser=True)
    first, second = (job(local, rounds=n, cohort_size=6).run().server for n in (1, 2))
    assert same(first, second)
    assert not same(first, job(dataclasses.replace(local, keep_optimiser=False), rounds=2, cohort_size=6).run().server)


# ---- engines

METHODS: dict[str, Any] = {
    "FedAvg": fl.FedAvg(local=STEADY),
    "adam": fl.FedAvg(local=dataclasses.replace(STEADY, optimiser=fl.Adam(lr=0.01, schedule="cosine:9?by=step"))),
    "FedRep": fl.FedRep(local=STEADY, head_epochs=1, personal_layers="last:1"),
    "Ditto": fl.Ditto(local=STEADY),
    "FML": fl.FML(local=STEADY),
    "FedRoD": fl.FedRoD(local=STEADY),
    "FedProto": fl.FedProto(local=STEADY),
    "APFLDeng": fl.APFLDeng(local=STEADY, alpha_update="every_step"),
    "FedBABU": fl.FedBABU(local=STEADY),
    "pFedSD": fl.PFedSD(local=STEADY),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("name", METHODS)
def test_a_stack_and_devices_keep_what_the_loop_keeps(name: str) -> None:
    expected = after(Loop, METHODS[name])
    assert sorted(expected[1]) == [0, 1, 2, 4]
    assert same(after(DevicesInProcess, METHODS[name]), expected)
    for a, b in zip(tree.leaves(after(Stacked, METHODS[name], chunk=2)), tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_workers_and_messages_keep_what_the_loop_keeps(name: str) -> None:
    expected = after(Loop, METHODS[name])
    for kind in (Messages, Workers):
        assert same(after(kind, METHODS[name]), expected), kind


@pytest.mark.slow
def test_each_model_has_an_optimiser_and_each_part_of_one_its_own_moments() -> None:
    for name in ("Ditto", "FML", "APFLDeng"):
        _, states = after(Loop, METHODS[name])
        w, v = (torch.cat([t.flatten() for t in tree.leaves(each)]) for each in states[1].optimisers)
        assert 0 < float(w.norm()) != float(v.norm()) > 0
    _, states = after(Loop, fl.FedBABU(local=STEADY, personal_layers="last:1"))
    (moments,) = states[1].optimisers
    moved = {name: bool(torch.stack([t.abs().sum() for t in kept]).sum() > 0) for name, kept in moments.of.items()}
    assert moved == {"0.weight": True, "0.bias": True, "2.weight": False, "2.bias": False}


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_run_that_was_killed_goes_on_with_its_optimisers(engine: Any, tmp_path: Path) -> None:
    whole = job(STEADY, engine).run(tmp_path / "whole")

    def stop(history: fl.History) -> None:
        if len(history.metrics) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(STEADY, engine).run(tmp_path / "cut", on_round=stop)
    with pytest.raises(fl.SettingError, match="keep_optimiser"):
        job(dataclasses.replace(STEADY, keep_optimiser=False), engine).run(tmp_path / "cut", resume=True)
    again = job(STEADY, engine).run(tmp_path / "cut", resume=True)
    assert again.metrics == whole.metrics
    assert same(again.server, whole.server)


@pytest.mark.slow
def test_what_is_kept_never_travels_and_is_no_state_of_the_method() -> None:
    kept, anew = job(STEADY).run(), job(dataclasses.replace(STEADY, keep_optimiser=False)).run()
    for name in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(kept.series(name), anew.series(name))
    assert not tree.leaves(dict(kept.clients))
    personal = fl.run(fl.LocalOnly(local=STEADY), federation(), mlp, SETTINGS)
    assert all(isinstance(state, fl.Weights) for state in personal.clients.values())


def test_momentum_is_that_of_answers_that_count() -> None:
    """A client that is lost after it has trained goes on from the answer before."""

    def lost(round: int, exchange: int, client: int) -> str | None:
        return "its answer is lost" if (round, client) == (1, 0) else None

    states = []
    for rounds in (1, 2):
        engine = Loop(population(mlp), fl.FedAvg(local=STEADY), Options(faults=lost))
        server = engine.init()
        for round in range(rounds):
            server = engine.round(server, (0, 1), round)
        states.append([engine.states[k].optimisers for k in (0, 1)])
    assert same(states[0][0], states[1][0])
    assert not same(states[0][1], states[1][1])


def test_a_client_that_is_evaluated_trains_with_a_new_optimiser() -> None:
    """So what is kept neither moves nor helps; each evaluation says the same."""
    engine = Loop(population(mlp), fl.FedAvgFT(local=STEADY))
    server = engine.init()
    server = engine.round(server, (0, 1), 0)
    before = engine.states[0]
    at_rest = Loop(population(mlp), fl.FedAvgFT(local=dataclasses.replace(STEADY, keep_optimiser=False)))
    assert same(engine.personal(server, [0], 0), at_rest.personal(server, [0], 0))
    assert same(engine.states[0], before)


# ---- what is refused


@dataclass(frozen=True, kw_only=True)
class ByHand(fl.FedAvg):
    """Calls minimise in the place of train."""

    trains: str = "by minimise"

    @fl.on_client
    def local_update(self, client: fl.Client[Any], sent: fl.Weights) -> tuple[Any, fl.Weighted[fl.Weights]]:
        if self.trains == "by minimise":
            w = fl.minimise(client.loss, sent, client.train, self.local.optimiser, lr=client.lr)
            return client.state, client.weigh(w, "samples")
        loss, beside = client.loss, sent.params["0.bias"] if self.trains == "a tensor" else sent
        w, _ = self.train_beside(client, sent, beside, loss=lambda w, batch, b: loss(w, batch))
        return client.state, client.weigh(w, "samples")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (fl.PFedMe, "PFedMe takes local steps of its own, got local.keep_optimiser = True: leave it out, or take"),
        (fl.PerFedAvg, "PerFedAvg takes local steps of its own, got local.keep_optimiser = True"),
        (fl.FedMeta, "FedMeta takes local steps of its own"),
        (fl.APFLNi, "APFLNi trains masks and personal parts .* got local.keep_optimiser = True: leave it out, or take"),
        (fl.FedNova, "FedNova reads gradients from what the steps of one .* got local.keep_optimiser = True: leave"),
        (fl.Scaffold, "Scaffold reads gradients from what the steps of one round have moved"),
    ],
)
def test_a_method_without_such_training_is_refused(method: Any, words: str) -> None:
    with pytest.raises(fl.SettingError, match=words):
        method(local=STEADY)
    method(local=dataclasses.replace(STEADY, keep_optimiser=False))


@pytest.mark.parametrize(
    ("trains", "words"),
    [
        ("by minimise", r"keeps the optimiser of `train` .* minimise begins with a new one: call self.train"),
        (
            "a tensor",
            r"keeps 1 optimiser\(s\), .* and trains a tensor \[5\] without a name beside them: train",
        ),
        (
            "two models",
            r"and trains 0.weight beside them: .* requires = fl.Requires\(optimisers=...\) says, or",
        ),
    ],
)
def test_a_training_that_cannot_go_on_is_refused(trains: str, words: str) -> None:
    with pytest.raises(StackingError, match=words):
        fl.run(ByHand(local=STEADY, trains=trains), federation(), mlp, SETTINGS)


def test_a_client_that_fails_leaves_none_of_its_optimisers() -> None:
    """Else whoever calls `minimise` next would be refused, or go on with another client's momentum."""

    @dataclass
    class Known:
        state: WithOptimisers

    def fails(*given: Any) -> Any:
        assert current().optimisers is not None
        raise ValueError("it fails")

    kept = KeptOptimisers(fl.Ditto(local=fl.Local(keep_optimiser=True)))
    known: Any = Known(WithOptimisers(own=None, optimisers=[]))
    with executing(Execution()):
        with pytest.raises(ValueError, match="it fails"):
            kept.computed(fails, "local_update", known)
        assert current().optimisers is None
