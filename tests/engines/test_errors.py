"""What goes wrong on a client is said with its name, the round and the batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.algorithms import FedAvg, KTpFL, LocalOnly, PFedSD
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import ClientError, NonFiniteError, SettingError, StackingError
from fedloom.core.optimiser import SGD, Local
from fedloom.core.task import Classification
from fedloom.core.types import Weights
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from small import clients_of

ENGINES = [Loop, Stacked]
SIZES = (5, 12, 7, 9)
LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


@dataclass(frozen=True)
class Marked(Classification):
    """Examples whose first feature is above 1e6 have a loss that is not finite."""

    value: float = float("nan")

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        bad = ((batch.x[:, 0] > 1e6) & batch.mask).any()
        return super().loss(torch.where(batch.x[:, :1] > 1e6, 0.0, logits), batch) + torch.where(bad, self.value, 0.0)


def population(bad: dict[int, int], task: Any = None) -> Any:
    """Clients, of whom some have one marked example: client -> position."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in SIZES]
    for k, position in bad.items():
        data[k][0][position, 0] = 2e6
    return dataclasses.replace(clients_of(data), task=task or Marked())


@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_names_client_round_and_batch(engine: Any, compilation: Any, value: str) -> None:
    run = engine(population({2: 5}, Marked(float(value))), FedAvg(local=LOCAL), compilation=compilation)
    server = run.init()
    with pytest.raises(NonFiniteError, match=rf"client 2, round 4, batch 1: the loss is {value}") as caught:
        run.round(server, (0, 1, 2, 3), 3)
    assert (caught.value.client, caught.value.round, caught.value.batch) == (2, 4, 1)
    assert 2 not in run.states


@pytest.mark.parametrize("engine", ENGINES)
def test_refused_clients_are_reported_and_left_out(engine: Any) -> None:
    settings = {"on_nonfinite": "refuse"}
    run = engine(population({2: 5, 0: 4}), PFedSD(local=LOCAL), **settings)
    server = run.round(run.init(), (0, 1, 2, 3), 0)
    assert [f.client for f in run.traffic.failed] == [0, 2]
    assert [f.reason for f in run.traffic.failed] == ["the loss is nan at batch 1"] * 2
    assert sorted(run.states) == [1, 3]
    assert sorted(run.traffic.up) == sorted(run.traffic.down) == [0, 1, 2, 3]  # what is refused was sent all the same
    others = engine(population({2: 5, 0: 4}), PFedSD(local=LOCAL))
    want = others.round(others.init(), (1, 3), 0)
    for name, value in want["tiny"].params.items():
        np.testing.assert_allclose(server["tiny"].params[name], value, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_refused_client_keeps_its_state(engine: Any) -> None:
    run = engine(population({2: 5}), LocalOnly(local=LOCAL), on_nonfinite="refuse")
    server = run.init()
    kept = run.algorithm.init_client(server["tiny"], run.population.models["tiny"], 0)
    run.states[2] = kept
    run.round(server, (1, 2), 0)
    for name, value in kept.params.items():
        assert torch.equal(run.states[2].params[name], value)
    assert not torch.equal(run.states[1].params["fc2.bias"], kept.params["fc2.bias"])


@pytest.mark.parametrize("engine", ENGINES)
def test_all_refused_leaves_the_server(engine: Any) -> None:
    run = engine(population({2: 5, 0: 4}), FedAvg(local=LOCAL), on_nonfinite="refuse")
    server = run.init()
    assert run.round(server, (0, 2), 0)["tiny"] is server["tiny"]


class Returns(Algorithm[Weights, Weights]):
    """Clients that return what `answer` makes of their state."""

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def init_client(self, server: Weights, model: Any, key: int) -> Weights:
        return server

    def answer(self, client: Client[Weights]) -> Any:
        raise NotImplementedError

    @on_client
    def step(self, client: Client[Weights]) -> Any:
        return self.answer(client)

    def round(self, server: Weights, cohort: Any) -> Weights:
        cohort.gather(self.step)
        return server

    def personal(self, server: Weights, client: Client[Weights]) -> Weights:
        return client.state


class UploadsInfinity(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, torch.where(client.num_examples == 7, float("inf"), 1.0)


class KeepsNaN(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        spoilt = torch.where(client.num_examples == 7, float("nan"), client.state.params["fc2.bias"])
        return Weights(params={**client.state.params, "fc2.bias": spoilt}), ()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "what"), [(UploadsInfinity, "upload"), (KeepsNaN, "state")])
def test_uploads_and_states_that_are_not_finite(engine: Any, kind: Any, what: str) -> None:
    run = engine(population({}), kind())
    with pytest.raises(NonFiniteError, match=f"client 2, round 1: the {what} is not finite"):
        run.round(run.init(), (0, 1, 2), 0)
    run = engine(population({}), kind(), on_nonfinite="refuse")
    run.round(run.init(), (0, 1, 2), 0)
    assert [(f.client, f.reason) for f in run.traffic.failed] == [(2, f"the {what} is not finite")]
    assert sorted(run.states) == [0, 1]


@dataclass(frozen=True)
class Raises(Classification):
    """Fails on the batch that holds the marked example; possible on the loop alone."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if float(batch.x[:, 0].max()) > 1e6:
            raise ZeroDivisionError("the client's own code")
        return super().loss(logits, batch)


def test_an_exception_on_a_client_is_named_by_the_loop() -> None:
    run = Loop(population({2: 5}, Raises()), FedAvg(local=LOCAL))
    with pytest.raises(
        ClientError, match=r"client 2, round 5, batch 1: ZeroDivisionError: the client's own code"
    ) as caught:
        run.round(run.init(), (0, 1, 2, 3), 4)
    assert (caught.value.client, caught.value.round, caught.value.batch) == (2, 5, 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_in_a_stack_names_the_stack() -> None:
    run = Stacked(population({}, Raises()), FedAvg(local=LOCAL))
    with pytest.raises(ClientError, match=r"^a stack of clients, round 5, batch 0: .*in a stack of clients \[1, 2\]"):
        run.round(run.init(), (1, 2), 4)


class ReturnsOne(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_method_returns_state_and_upload(engine: Any) -> None:
    run = engine(population({}), ReturnsOne())
    with pytest.raises(StackingError, match=r"step must return \(new state, upload\)"):
        run.round(run.init(), (0, 1), 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_public_examples_are_asked_for(engine: Any) -> None:
    with pytest.raises(SettingError, match=r"KTpFL needs public examples: federate\(\.\.\., public=examples\)"):
        engine(population({}), KTpFL())


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunk_is_checked(chunk: int) -> None:
    with pytest.raises(SettingError, match=f"chunk must be >= 1 .* got {chunk}"):
        Stacked(population({}), FedAvg(), chunk=chunk)
