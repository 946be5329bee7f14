"""What every algorithm has: local training, a term on top of it, the steps that it amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom import (
    FML,
    SGD,
    Adam,
    APFLDeng,
    FedAvg,
    FedMeta,
    FedNTD,
    FedProx,
    Local,
    NonNegative,
    PerFedAvg,
    PFedMe,
    Scaffold,
)
from fedloom.algorithms.shared.gradient_sums import SumsGradients
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import SettingError
from fedloom.core.types import BatchLoss, Weights
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing import CHECKS, Subject
from small import clients_of

ENGINES = [Loop, Stacked]
LOCAL = Local(epochs=2, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.9))


class Held:
    """The proximal term, on top of whatever it stands before."""

    mu: float

    def term(self, loss: BatchLoss, batch: Batch, start: Weights) -> Tensor:
        return self.mu / 2 * (loss.weights.params - start.params).sq_norm()


@dataclass(frozen=True, kw_only=True)
class HeldFedAvg(Held, FedAvg):
    mu: NonNegative = 0.3


@dataclass(frozen=True, kw_only=True)
class HeldScaffold(Held, Scaffold):
    mu: NonNegative = 0.3


@dataclass(frozen=True, kw_only=True)
class HeldFedNTD(Held, FedNTD):
    mu: NonNegative = 0.3
    neutral: ClassVar[Any] = {"beta": 0, "mu": 0}


@dataclass(frozen=True, kw_only=True)
class HeldMore(Held, FedProx):
    mu: NonNegative = 0.3


@pytest.mark.parametrize("kind", [PFedMe, PerFedAvg, FedMeta])
def test_a_term_that_no_step_would_have_is_refused(kind: Any) -> None:
    held = dataclass(frozen=True, kw_only=True)(type("Holding", (Held, kind), {"__annotations__": {"mu": float}}))
    with pytest.raises(SettingError, match="Holding takes local steps of its own, which it would not reach: write"):
        held(mu=0.3)
    kind()


def after(engine: Any, algorithm: Any, **settings: Any) -> Any:
    rng = np.random.default_rng(0)
    population = clients_of([(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (5, 12, 7)])
    run = engine(population, algorithm, Options(**settings))
    server = run.init()
    for t in range(2):
        server = run.round(server, (0, 1, 2), t)
    return server["tiny"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_on_top_of_fedavg_is_fedprox(engine: Any) -> None:
    held, prox = (after(engine, kind(mu=0.3, local=LOCAL)) for kind in (HeldFedAvg, FedProx))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(held), tree.leaves(prox), strict=True))
    more, twice = after(engine, HeldMore(mu=0.3, local=LOCAL)), after(engine, FedProx(mu=0.6, local=LOCAL))
    for a, b in zip(tree.leaves(more), tree.leaves(twice), strict=True):  # the same term once more
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HeldScaffold, HeldFedNTD])
def test_a_term_keeps_what_the_algorithm_passes_to_its_own_loss(kind: Any) -> None:
    for name in ("engines_agree", "tracing_agrees", "payloads_travel", "saved_runs_continue"):  # the others see no loss
        assert CHECKS[name](Subject.of(kind(mu=0.3))) is None
    base = kind.__mro__[2]
    for engine in ENGINES:
        plain, none, some = (
            after(engine, a) for a in (base(local=LOCAL), kind(mu=0.0, local=LOCAL), kind(local=LOCAL))
        )
        pairs = list(zip(tree.leaves(plain), tree.leaves(none), tree.leaves(some), strict=True))
        assert all(torch.equal(a, b) for a, b, _ in pairs)
        assert not all(torch.equal(a, c) for a, _, c in pairs)


@dataclass(frozen=True, kw_only=True)
class HeldAPFL(Held, APFLDeng):
    mu: NonNegative = 0.3
    neutral: ClassVar[Any] = {}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_is_added_where_something_is_trained_beside_the_model(engine: Any) -> None:
    """With alpha 0 the global model of APFL is that of FedAvg, and with the term that of FedProx."""
    held = after(engine, HeldAPFL(alpha_init=0.0, local=LOCAL))
    prox = after(engine, FedProx(mu=0.3, aggregation="uniform", local=LOCAL))
    for a, b in zip(tree.leaves(held), tree.leaves(prox), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [APFLDeng, FML])
def test_what_is_beside_the_model_is_not_the_model_of_this_training(kind: Any, engine: Any) -> None:
    """A second model of the same network is trained beside the one that is sent."""
    rng = np.random.default_rng(0)
    run = engine(clients_of([(rng.normal(size=(n, 6)), rng.integers(4, size=n)) for n in (5, 7)]), kind(local=LOCAL))
    seen: list[Any] = []
    run.watch = seen.append
    run.round(run.init(), (0, 1), 0)
    for exchange in seen:
        assert not exchange.unclear
        for a, b in zip(tree.leaves(exchange.trained), tree.leaves(exchange.upload.value), strict=True):
            assert torch.equal(a, b)


class Counts(SumsGradients[Any, tuple[()]]):
    def init(self, model: Any, key: int, *, num_clients: int) -> Any:
        return torch.zeros(3, 2)

    @on_client
    def count(self, client: Client[tuple[()]]) -> tuple[tuple[()], Tensor]:
        return (), torch.stack([self.plain_steps(client), self.plain_steps(client, "steps")])

    def round(self, server: Any, cohort: Any) -> Any:
        replies = cohort.gather(self.count)
        assert replies.share == len(replies.values) / 3
        return replies.value

    def global_weights(self, server: Any) -> Any:
        return server


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_with_momentum_amount_to_more_plain_ones(engine: Any) -> None:
    found = after(engine, Counts(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1, momentum=0.5))))
    assert found[:, 1].tolist() == [2.0, 3.0, 2.0]
    np.testing.assert_allclose(found[:, 0], [1 + 1.5, 1 + 1.5 + 1.75, 1 + 1.5], rtol=1e-12)
    with pytest.raises(SettingError, match=r"steps of Adam amount to no number of plain SGD steps.*: use SGD"):
        Counts(local=Local(optimiser=Adam()))


class Undecorated(FedAvg):
    lam: float = 1.0
    note: ClassVar[str] = "no setting"
    _own: int = 0


class BelowUndecorated(Undecorated):
    pass


class Documented(FedAvg):
    note: ClassVar[str] = "no setting"
    _own: int = 0


def test_a_setting_that_no_dataclass_has_is_refused() -> None:
    message = (
        r"Undecorated has 'lam' without being one: decorate Undecorated with @dataclass\(frozen=True, kw_only=True\)"
    )
    for make in (Undecorated, lambda: Undecorated(lam=2.0), BelowUndecorated):  # type: ignore[call-arg]
        with pytest.raises(SettingError, match=message):
            make()
    assert Documented() == Documented()
