"""What goes wrong on a client is said with its name, the round and the batch."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.algorithms import ALGORITHMS, FedAvg, FedBE, FedDF, LocalOnly, PFedSD, Scaffold
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.client import Client, on_client
from fedloom.core.errors import ClientError, NonFiniteError, SettingError, StackingError
from fedloom.core.fold import minimise
from fedloom.core.local_training import Distill, Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.core.requires import Requires
from fedloom.core.types import Weighted, Weights
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.engines.upload_bounds import Bound, Measured
from fedloom.tasks import Classification
from fedloom.testing.small_networks import MLP
from fedloom.testing.subject import federation
from small import ONE_SHOT, clients_of, random_data

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


def with_marked(bad: dict[int, int], task: Any = None) -> Any:
    """Clients, of whom some have one marked example: client -> position."""
    data = random_data(SIZES)
    for k, position in bad.items():
        data[k][0][position, 0] = 2e6
    return dataclasses.replace(clients_of(data), task=task or Marked())


@pytest.mark.some(1)
@pytest.mark.parametrize("compilation", ["none", "trace"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_names_client_round_and_batch(engine: Any, compilation: Any, value: str) -> None:
    run = engine(with_marked({2: 5}, Marked(float(value))), FedAvg(local=LOCAL), Options(compilation=compilation))
    server = run.init()
    with pytest.raises(NonFiniteError, match=rf"client 2, round 4, batch 1: the loss is {value}") as caught:
        run.round(server, (0, 1, 2, 3), 3)
    assert (caught.value.client, caught.value.round, caught.value.batch) == (2, 4, 1)
    assert 2 not in run.states


@pytest.mark.parametrize("engine", ENGINES)
def test_refused_clients_are_reported_and_left_out(engine: Any) -> None:
    settings = {"on_nonfinite": "refuse"}
    run = engine(with_marked({2: 5, 0: 4}), PFedSD(local=LOCAL), Options(**settings))
    server = run.round(run.init(), (0, 1, 2, 3), 0)
    assert [f.client for f in run.traffic.failed] == [0, 2]
    assert [f.reason for f in run.traffic.failed] == ["the loss is nan at batch 1"] * 2
    assert sorted(run.states) == [1, 3]
    assert sorted(run.traffic.up) == sorted(run.traffic.down) == [0, 1, 2, 3]  # what is refused was sent all the same
    others = engine(with_marked({2: 5, 0: 4}), PFedSD(local=LOCAL))
    want = others.round(others.init(), (1, 3), 0)
    for name, value in want["tiny"].params.items():
        np.testing.assert_allclose(server["tiny"].params[name], value, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_refused_client_keeps_its_state(engine: Any) -> None:
    run = engine(with_marked({2: 5}), LocalOnly(local=LOCAL), Options(on_nonfinite="refuse"))
    server = run.init()
    kept = run.runtime.fresh(2)
    run.states[2] = kept
    run.round(server, (1, 2), 0)
    for name, value in kept.params.items():
        assert torch.equal(run.states[2].params[name], value)
    assert not torch.equal(run.states[1].params["fc2.bias"], kept.params["fc2.bias"])


@pytest.mark.parametrize("engine", ENGINES)
def test_all_refused_leaves_the_server(engine: Any) -> None:
    run = engine(with_marked({2: 5, 0: 4}), FedAvg(local=LOCAL), Options(on_nonfinite="refuse"))
    server = run.init()
    assert run.round(server, (0, 2), 0)["tiny"] is server["tiny"]


class FedAvgLike(Algorithm[Weights, tuple[()]]):
    """The least that trains."""

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    @on_client
    def local_update(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        loss = task_loss(client.model, client.task)
        return (), Weighted(
            value=minimise(loss, w, client.train, self.local.optimiser, lr=client.lr), weight=client.num_examples
        )

    def round(self, server: Weights, cohort: Any) -> Weights:
        return cohort.reduce(self.local_update, server).mean

    def global_weights(self, server: Weights) -> Weights:
        return server


class Diverges(Classification):
    """A task whose loss is NaN for everybody."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return super().loss(logits, batch) * float("nan")


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_refused_leaves_every_server(engine: Any, name: str) -> None:
    people = federation().pooled() if ALGORITHMS[name]().requires.one_place else federation()
    everybody = Population(people, {"mlp": Model(MLP, name="mlp")}, task=Diverges())
    algorithm = dataclasses.replace(ONE_SHOT.get(name) or ALGORITHMS[name](), local=LOCAL)
    run = engine(everybody, algorithm, Options(on_nonfinite="refuse"))
    server = run.init()
    cohort = range(people.num_clients)
    found = run.round(server, cohort, 0)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found), tree.leaves(server), strict=True))
    assert not run.states
    assert {f.client for f in run.traffic.failed} == set(cohort)
    assert not run.traffic.server_refused


DIVERGING = Distill(batch_size=4, optimiser=SGD(lr=1e30, weight_decay=1.0))
SERVERS = {
    "feddf": (
        FedDF(local=LOCAL, steps=9, distill=DIVERGING),
        r"the loss is (nan|inf) in its own training",
        r" at batch \d+",
    ),
    "fedbe": (FedBE(local=LOCAL, steps=9, num_sampled=1, distill=DIVERGING), "its own state is not finite", ""),
    "scaffold": (Scaffold(local=LOCAL, server_lr=1e300), "its own state is not finite", ""),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_diverges_is_named_or_stays(engine: Any, name: str) -> None:
    algorithm, what, where = SERVERS[name]
    everybody = Population(federation(), {"mlp": Model(MLP, name="mlp")})
    run = engine(everybody, algorithm)
    server = run.init()
    with pytest.raises(NonFiniteError, match=f"^the server, round 3(, batch .*)?: {what}; a lower rate") as caught:
        run.round(server, (0, 1, 2), 2)
    assert caught.value.client is None
    assert (caught.value.batch is None) == (not where)
    run = engine(everybody, algorithm, Options(on_nonfinite="refuse"))
    found = run.round(server, (0, 1, 2), 2)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found), tree.leaves(server), strict=True))
    (reason,) = run.traffic.server_refused.values()
    assert re.fullmatch(what + where, reason)
    assert not run.traffic.failed


class OneOfTwo(FedAvgLike):
    """The server of the wide network spoils its state."""

    def round(self, server: Weights, cohort: Any) -> Weights:
        moved = super().round(server, cohort)
        return moved if cohort.model.name == "narrow" else float("inf") * moved


def test_one_architecture_that_diverges_costs_no_other() -> None:
    two = {n: Model(m, name=n) for n, m in {"narrow": MLP, "wide": lambda: MLP(16)}.items()}
    run = Loop(Population(federation(), two), OneOfTwo(local=LOCAL), Options(on_nonfinite="refuse"))
    server = run.init()
    found = run.round(server, (0, 1, 2, 3), 0)
    assert list(run.traffic.server_refused) == ["wide"]
    assert found["wide"] is server["wide"]
    assert not torch.equal(found["narrow"].params["head.bias"], server["narrow"].params["head.bias"])


class SpoilsBetween(FedAvgLike):
    """A second exchange of the round, to which the server sends NaN."""

    scattered: ClassVar[bool] = False

    @on_client
    def again(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        return self.local_update(client, w)

    def round(self, server: Weights, cohort: Any) -> Weights:
        spoilt = float("nan") * super().round(server, cohort)
        if self.scattered:
            stacked = tree.stack([spoilt] * len(cohort.ids))
            return super().round(server, cohort.gather(self.again, scatter=(stacked,)).cohort)
        return cohort.reduce(self.again, spoilt).mean


class SpoilsOneByOne(SpoilsBetween):
    scattered = True


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [SpoilsBetween, SpoilsOneByOne])
def test_what_the_server_spoils_is_no_clients_fault(engine: Any, kind: Any) -> None:
    run = engine(with_marked({}), kind(local=LOCAL))
    with pytest.raises(NonFiniteError, match=r"^the server, round 2: what it sends to .*again is not finite"):
        run.round(run.init(), (0, 1), 1)
    run = engine(with_marked({}), kind(local=LOCAL), Options(on_nonfinite="refuse"))
    run.round(run.init(), (0, 1), 1)
    assert [(f.client, f.reason) for f in run.traffic.failed] == [
        (k, "what the server sent is not finite") for k in (0, 1)
    ]


# ---- exchanges


class SumsLogits(FedAvgLike):
    """One mean over all architectures, of what has one shape in all of them, or of whole models, which have not."""

    requires = Requires(mixed=True)
    whole: ClassVar[bool] = False

    def init(self, model: Any, key: int, *, num_clients: int) -> Any:
        return torch.zeros(3)

    def init_client(self, initial: Weights, model: Model, key: int) -> Any:
        return model.init(key)

    @on_client
    def learn(self, client: Client[Weights]) -> tuple[Weights, Any]:
        trained = self.train(client, client.state)
        return trained, Weighted(
            value=trained if self.whole else trained.params["head.bias"], weight=client.num_examples
        )

    def round(self, server: Any, cohort: Any) -> Any:
        return cohort.reduce(self.learn).mean

    def personal(self, client: Client[Weights], sent: Any) -> Weights:
        return client.state


class SumsModels(SumsLogits):
    whole = True


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mean_over_architectures_needs_one_shape(engine: Any) -> None:
    two = {n: Model(m, name=n) for n, m in {"narrow": MLP, "wide": lambda: MLP(16)}.items()}
    run = engine(Population(federation(), two), SumsLogits(local=LOCAL))
    found = run.round(run.init(), (0, 1, 2, 3), 0)[""]
    sizes = [5, 9, 6, 11]
    want = sum(n * run.states[k].params["head.bias"].double() for k, n in enumerate(sizes)) / sum(sizes)
    np.testing.assert_allclose(found, want, rtol=1e-6)
    run = engine(Population(federation(), two), SumsModels(local=LOCAL))
    with pytest.raises(StackingError, match=r"no mean\. Take that of each on its own: for group in cohort\.groups"):
        run.round(run.init(), (0, 1, 2, 3), 0)
    assert not run.states  # refused before any state moved


class Borrows(FedAvgLike):
    def round(self, server: Weights, cohort: Any) -> Weights:
        return FedAvg(local=self.local).round(server, cohort)


def test_clients_run_methods_of_the_algorithm_alone() -> None:
    run = Loop(with_marked({}), Borrows(local=LOCAL))
    with pytest.raises(StackingError, match=r"methods of the run's own Borrows.*FedAvg\.local_update is not one"):
        run.round(run.init(), (0, 1), 0)


class Returns(Algorithm[Weights, Weights]):
    """Clients that return what `answer` makes of their state."""

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def init_client(self, initial: Weights, model: Any, key: int) -> Weights:
        return initial

    def answer(self, client: Client[Weights]) -> Any:
        raise NotImplementedError

    @on_client
    def step(self, client: Client[Weights]) -> Any:
        return self.answer(client)

    def round(self, server: Weights, cohort: Any) -> Weights:
        cohort.gather(self.step)
        return server

    def personal(self, client: Client[Weights], sent: Weights) -> Weights:
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
    run = engine(with_marked({}), kind())
    with pytest.raises(NonFiniteError, match=f"client 2, round 1: the {what} is not finite"):
        run.round(run.init(), (0, 1, 2), 0)
    run = engine(with_marked({}), kind(), Options(on_nonfinite="refuse"))
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
    run = Loop(with_marked({2: 5}, Raises()), FedAvg(local=LOCAL))
    with pytest.raises(
        ClientError, match=r"client 2, round 5, batch 1: ZeroDivisionError: the client's own code"
    ) as caught:
        run.round(run.init(), (0, 1, 2, 3), 4)
    assert (caught.value.client, caught.value.round, caught.value.batch) == (2, 5, 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_in_a_stack_names_the_stack() -> None:
    run = Stacked(with_marked({}, Raises()), FedAvg(local=LOCAL))
    with pytest.raises(ClientError, match=r"^a stack of clients, round 5, batch 0: .*in a stack of clients \[1, 2\]"):
        run.round(run.init(), (1, 2), 4)


class ReturnsOne(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_method_returns_state_and_upload(engine: Any) -> None:
    run = engine(with_marked({}), ReturnsOne())
    with pytest.raises(StackingError, match=r"step must return \(new state, upload\)"):
        run.round(run.init(), (0, 1), 0)


@pytest.mark.parametrize("chunk", [0, -1])
def test_chunk_is_checked(chunk: int) -> None:
    with pytest.raises(SettingError, match=f"chunk must be >= 1 .* got {chunk}"):
        Stacked(with_marked({}), FedAvg(), Options(chunk=chunk))


# ---- finite, and beyond reason


@dataclass(frozen=True, kw_only=True)
class Boastful(FedAvg):
    """The client with 12 examples uploads what it has learnt a million times."""

    @on_client
    def local_update(self, client: Client[Any], sent: Weights) -> tuple[Any, Weighted[Weights]]:
        state, upload = super().local_update(client, sent)
        times = torch.where(client.num_examples == 12, 1e6, 1.0)
        return state, dataclasses.replace(upload, value=tree.map_tree(lambda t: (t * times).to(t.dtype), upload.value))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_upload_beyond_the_bound_is_lost_and_named(engine: Any) -> None:
    everybody = with_marked({})
    for bound in ("none", "refuse:sent:10"):
        run = engine(everybody, Boastful(local=LOCAL), Options(bound=bound))
        before = run.init()
        server = run.round(before, range(4), 0)
        lost = {} if bound == "none" else {1: "lost"}
        loop = engine(everybody, Boastful(local=LOCAL), Options(faults=lambda t, e, k, lost=lost: lost.get(k)))
        for a, b in zip(tree.leaves(loop.round(before, range(4), 0)), tree.leaves(server), strict=True):
            assert torch.equal(a, b)
        assert [f.client for f in run.traffic.failed] == [*lost]
    (failure,) = run.traffic.failed
    words = (
        r"the upload has a norm of \d\S+ beside what was sent, and at most 10 times the norm of what was sent, \d\S+, "
        "is taken: raise run.bound"
    )
    assert re.match(words, failure.reason)
    assert 1 in run.traffic.up  # it was sent all the same


def test_a_norm_is_compared_with_that_of_what_was_sent() -> None:
    """Of clients 7 and 8: norms of what they are sent 5 and 13, of uploads 10 and 26.1."""
    sent, each = torch.tensor([3.0, 4.0]), torch.tensor([[0.0], [12.0]])
    uploads = Weighted(value=torch.tensor([[10.0, 0.0], [26.1, 0.0]]), weight=torch.full((2,), 1e9))
    request = Request.to(Call("local_update", (sent,), 0, 0, 0.1), [7, 8], 0, scatter=(each,))
    beside = torch.ones(2, dtype=torch.int64), torch.zeros(2, 0)  # whole numbers, and nothing at all

    def refused(request: Request, upload: Any, times: float) -> list[int]:
        found = Measured.of(request, Answer(upload, (), ()), PayloadSize(FedAvg.local_update))
        return [*found.beyond(request, Bound(False, "sent", times))]

    assert refused(request, (uploads, *beside), 2.0) == [8]
    assert refused(request, (uploads, torch.tensor([0.0, 1e3])), 20.0) == [8]
    assert not refused(request, uploads, 3.0)
    little = Request.to(Call("local_update", (), 0, 0, 0.1), [7, 8], 0)
    assert refused(little, uploads, 20.0) == [8]  # sent nothing: 1
    for value in (float("inf"), float("nan"), 1e300):
        huge = Weighted(value=torch.full((2, 2), value, dtype=torch.float64), weight=torch.ones(2))
        assert sorted(refused(request, huge, 1e9)) == [7, 8]


class ReturnsNothing(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, None


class ReturnsDoubles(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return tree.cast(client.state, dtype=torch.float32), ()


class ReturnsLess(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state.select(lambda name: name != "fc2.bias"), ()


class ReturnsUnannounced(Returns):
    """Keeps a model, of which no `init_client` speaks."""

    init_client = Algorithm.init_client

    def answer(self, client: Client[Weights]) -> Any:
        return Weights(params={"w": torch.ones(2)}), ()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ReturnsNothing, r"tensors, as \(new state, upload\), got NoneType"),
        (
            ReturnsDoubles,
            r"got float32 \[\d+, \d+\] in the place of float64 \[\d+, \d+\] at .params\['fc1.weight'\]: keep",
        ),
        (ReturnsLess, r"got nothing in the place of float64 \[\d+\] at .params\['fc2.bias'\]: keep structure"),
        (ReturnsUnannounced, r"got Weights in the place of tuple: write init_client"),
    ],
)
def test_a_client_keeps_a_state_of_one_kind(engine: Any, kind: Any, said: str) -> None:
    run = engine(with_marked({}), kind())
    with pytest.raises(StackingError, match=rf"^{kind.__name__}\.step must return .*{said}"):
        run.round(run.init(), (0, 1), 0)


class MovesServer(Returns):
    """A server whose state after a round is what `after` makes of it."""

    def round(self, server: Weights, cohort: Any) -> Any:
        return self.after(server)

    def after(self, server: Weights) -> Any:
        return None


class StacksServer(MovesServer):
    def after(self, server: Weights) -> Any:
        return tree.stack([server])


class ServesParams(MovesServer):
    def after(self, server: Weights) -> Any:
        return server.params


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (MovesServer, "NoneType in the place of Weights"),
        (ServesParams, "Params in the place of Weights"),
        (StacksServer, r"float64 \[1, .* at .params\['fc1.weight'\]"),
    ],
)
def test_a_round_returns_a_server_state_of_one_kind(kind: Any, said: str) -> None:
    run = Loop(with_marked({}), kind())
    with pytest.raises(
        StackingError, match=rf"round of {kind.__name__} must return a server state like .*, got {said}"
    ):
        run.round(run.init(), (0, 1), 0)


class TakesNoNumber(Returns):
    def init(self, model: Any, key: int) -> Weights:  # type: ignore[override]
        return model.init(key)


class MakesNothing(Returns):
    def init(self, model: Any, key: int, *, num_clients: int) -> Any:
        return {"w": model.init(key), "c": None}


def test_a_server_state_is_made_of_tensors_by_three_arguments() -> None:
    rule = (
        r"init of TakesNoNumber .*takes init\(.* \(got an unexpected keyword argument 'num_clients'\): write def init"
    )
    with pytest.raises(SettingError, match=rule):
        Loop(with_marked({}), TakesNoNumber()).init()
    with pytest.raises(
        StackingError, match=r"init of MakesNothing must return .* made of tensors, got one with NoneType"
    ):
        Loop(with_marked({}), MakesNothing()).init()


class Halves(Returns):
    """Halves in place what it is sent, what it is sent alone, or what it keeps."""

    what: ClassVar[str] = "sent"

    @on_client
    def step(self, client: Client[Weights], sent: Weights, mine: Weights) -> Any:  # type: ignore[override]
        {"sent": sent, "mine": mine, "kept": client.state}[self.what].params["fc2.bias"].mul_(0.5)
        return client.state, ()

    def round(self, server: Weights, cohort: Any) -> Weights:
        cohort.gather(self.step, server, scatter=(tree.stack([server] * len(cohort.ids)),))
        return server


class HalvesItsOwn(Halves):
    what = "mine"


class HalvesWhatItKeeps(Halves):
    what = "kept"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Halves, HalvesItsOwn, HalvesWhatItKeeps])
def test_what_a_client_is_sent_is_not_changed_in_place(engine: Any, kind: Any) -> None:
    run = engine(with_marked({}), kind())
    with pytest.raises(ClientError, match=rf"round 1: {kind.__name__}\.step changes in place .*p \* 0\.5") as caught:
        run.round(run.init(), (0, 1), 0)
    assert caught.value.client == (0 if engine is Loop else -1)


class WeighsAnyhow(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, client.weigh(client.state, "sample")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_misspelt_weight_is_no_uniform_one(engine: Any) -> None:
    run = engine(with_marked({}), WeighsAnyhow())
    with pytest.raises(SettingError, match=r"by 'samples' or 'uniform', got 'sample' \(did you mean 'samples'\?\)"):
        run.round(run.init(), (0, 1), 0)


class WeighsByTensor(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, client.weigh(client.state, client.num_examples**0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_who_has_weights_of_its_own_is_told_how_they_are_given(engine: Any) -> None:
    run = engine(with_marked({}), WeighsByTensor())
    with pytest.raises(SettingError, match=r"got \w*Tensor: another weight is fedloom.Weighted\(value=..., weight=..."):
        run.round(run.init(), (0, 1), 0)


class BranchesOnSize(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, (torch.ones(1) if client.num_examples > 8 else torch.zeros(1))


class DrawsUnseen(Returns):
    def answer(self, client: Client[Weights]) -> Any:
        return client.state, torch.randn(2)


@pytest.mark.parametrize("kind", [BranchesOnSize, DrawsUnseen])
def test_what_a_stack_cannot_do_is_said_with_what_can_be_done(kind: Any) -> None:
    run = Stacked(with_marked({}), kind())
    with pytest.raises(ClientError, match=r"vmap: .*torch\.where.*client\.key.*engine = 'loop'") as caught:
        run.round(run.init(), (0, 1), 0)
    assert "github.com/pytorch" not in str(caught.value)
    run = Loop(with_marked({}), kind())
    run.round(run.init(), (0, 1), 0)
