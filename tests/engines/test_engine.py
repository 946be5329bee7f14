"""What a server sees of its cohort, what it draws, and how clients are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedloom.algorithms import LocalOnly
from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client, on_client
from fedloom.core.errors import NobodyAnswered, StackingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.requires import Requires
from fedloom.core.types import Weighted, Weights
from fedloom.data import Federation, by_lists
from fedloom.engines.cohort import AskedCohort
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from small import clients_of, random_data
from tiny import examples, federation, linear, mlp

SEEN: list[dict[str, Any]] = []


@dataclass(frozen=True, kw_only=True)
class Looks(Algorithm[Weights, tuple[()]]):
    """Notes what a round sees: of an exchange that is gathered, then of one that is reduced."""

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        SEEN.append({"N": num_clients})
        return model.init(key)  # type: ignore[no-any-return]

    @on_client
    def size(self, client: Client[tuple[()]]) -> tuple[tuple[()], torch.Tensor]:
        return (), client.num_examples

    @on_client
    def weighted_size(self, client: Client[tuple[()]]) -> tuple[tuple[()], Weighted[torch.Tensor]]:
        return (), Weighted(value=client.num_examples.double(), weight=torch.ones_like(client.num_examples))

    def round(self, server: Weights, cohort: Any) -> Weights:
        gathered, reduced = cohort.gather(self.size), cohort.reduce(self.weighted_size)
        SEEN.append(
            {
                "N": cohort.num_clients,
                "asked": cohort.ids.tolist(),
                "gathered": gathered.cohort.ids.tolist(),
                "sizes": (gathered.cohort.sizes.tolist(), [int(v) for v in gathered.values]),
                "reduced": reduced.cohort.ids.tolist(),
                "mean": float(reduced.mean),
                "failed": [(f.client, f.reason) for f in reduced.failed],
                "keys": (cohort.key("draws"), cohort.key("public")),
            }
        )
        return server

    def global_weights(self, server: Weights) -> Weights:
        return server


def seen(engine: Any, *, rounds: int = 1, seed: int = 0, **settings: Any) -> list[dict[str, Any]]:
    """Six clients, the first and last two with one architecture, the others with another; client 5 is not asked."""
    models = {"linear": Model(linear, name="linear"), "mlp": Model(mlp, name="mlp")}
    population = Population(
        federation(), models, assignment=("linear", "linear", "mlp", "mlp", "linear", "linear"), seed=seed
    )
    run = engine(population, Looks(local=Local(batch_size=4)), Options(**settings))
    SEEN.clear()
    server = run.init()
    assert [s["N"] for s in SEEN] == [4, 2]
    SEEN.clear()
    for t in range(rounds):
        server = run.round(server, (4, 3, 0, 2, 1), t)
    return list(SEEN)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_each_architecture_is_a_federation_of_its_own(engine: Any) -> None:
    first, second = seen(engine)
    assert (first["N"], first["asked"], first["gathered"], first["reduced"]) == (4, [0, 1, 4], [0, 1, 4], [0, 1, 4])
    assert (second["N"], second["asked"], second["gathered"], second["reduced"]) == (2, [2, 3], [2, 3], [2, 3])


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_who_is_lost_is_in_no_reply(engine: Any) -> None:
    first, second = seen(engine, faults=lambda round, exchange, client: "gone" if client in (1, 3) else None)
    assert (first["gathered"], first["reduced"], first["failed"]) == ([0, 4], [0, 4], [(1, "gone")])
    assert (second["gathered"], second["reduced"], second["failed"]) == ([2], [2], [(3, "gone")])
    for one in (first, second):
        sizes, answers = one["sizes"]
        assert sizes == answers == [12] * len(one["gathered"])
        assert one["mean"] == 12.0


def test_the_server_draws_by_seed_round_and_purpose() -> None:
    found = [one["keys"] for seed in (0, 1) for one in seen(Loop, rounds=3, seed=seed)]
    assert len(found) == 12  # two architectures, which see the same keys
    assert found[::2] == found[1::2]
    assert len({key for pair in found for key in pair}) == 2 * 3 * 2


@dataclass(frozen=True, kw_only=True)
class Speaks(Algorithm[torch.Tensor, torch.Tensor]):
    """Two exchanges: 24 bytes go down to all and 8 come up, then 40 to each of its own and 4 come up."""

    def init(self, model: Any, key: int, *, num_clients: int) -> torch.Tensor:
        return torch.zeros(3)

    def init_client(self, initial: Weights, model: Model, key: int) -> torch.Tensor:
        return torch.tensor([key, 0, 0])

    @on_client
    def first(self, client: Client[torch.Tensor], sent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return client.state + torch.stack([0 * client.key, client.key, 0 * client.key]), torch.zeros(2)

    @on_client
    def second(self, client: Client[torch.Tensor], mine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([client.state[0], client.state[1] - client.key, mine[0].long()]), torch.zeros(1)

    def round(self, server: torch.Tensor, cohort: Any) -> torch.Tensor:
        cohort.gather(self.first, server)
        cohort.gather(self.second, scatter=(cohort.ids[:, None].double().expand(-1, 5),))
        return server

    def personal(self, client: Client[torch.Tensor], sent: torch.Tensor) -> Weights:
        raise NotImplementedError


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_exchanges_count_their_bytes_and_each_has_its_own_randomness(engine: Any) -> None:
    models = {"linear": Model(linear, name="linear"), "mlp": Model(mlp, name="mlp")}
    run = engine(Population(federation(), models, dtype=torch.float64), Speaks(local=Local(batch_size=4)))
    server = run.init()
    for t in range(2):
        server = run.round(server, (0, 2, 3, 5), t)
        assert dict(run.traffic.down) == dict.fromkeys((0, 2, 3, 5), 24 + 40)
        assert dict(run.traffic.up) == dict.fromkeys((0, 2, 3, 5), 8 + 4)
    states = [run.states[k].tolist() for k in (0, 2, 3, 5)]
    assert len({first for first, _, _ in states}) == 4  # what a client draws at its first contact
    assert all(difference != 0 for _, difference, _ in states)  # of the keys of two exchanges
    assert [mine for _, _, mine in states] == [0, 2, 3, 5]


@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("held_out", ["test", "val"])
def test_clients_are_judged_on_what_they_hold_out_themselves(held_out: Any, engine: Any) -> None:
    # Unequal numbers, so that a stack pads; client 2 holds nothing out.
    rows = {"train": [[0, 1], [2, 3, 4], [5], [6, 7]], "test": [[8], [*range(10, 17)], [], [20, 21, 22]],
            "val": [[*range(30, 39)], [40], [], [41, 42]]}  # fmt: skip
    data = examples(50)
    parts = {role: by_lists(lists) for role, lists in rows.items()}
    people = Federation(data, parts["train"], local_test=parts["test"], local_val=parts["val"])
    model = Model(linear, name="linear")
    run = engine(Population(people, {"linear": model}, seed=3), LocalOnly(local=Local(batch_size=2)))
    server = run.round(run.init(), (0, 1, 2, 3), 0)
    personal = run.personal(server, range(4), 1)
    evaluated = run.evaluate_counts(server, range(4), 1, held_out)
    for k, own in enumerate(rows[held_out]):
        w = personal[k].params
        right = (data.x[own] @ w["weight"].mT + w["bias"]).argmax(1) == data.y[own]
        assert evaluated[k] == (int(right.sum()), len(own))
    assert sum(right for right, _ in evaluated.values()) > 0


@dataclass(frozen=True, kw_only=True)
class Sends(Algorithm[Weights, torch.Tensor]):
    """Sends each client its number twice over: all at once, or when it is computed."""

    when: str = "at once"

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)  # type: ignore[no-any-return]

    def init_client(self, initial: Weights, model: Model, key: int) -> torch.Tensor:
        return torch.zeros(2)

    @on_client
    def keep(self, client: Client[torch.Tensor], mine: torch.Tensor) -> tuple[torch.Tensor, tuple[()]]:
        return mine, ()

    def of(self, ids: torch.Tensor) -> tuple[Any, ...]:
        SEEN.append({"asked": ids.tolist()})
        wrong = self.when == "too few"
        return (ids[wrong:, None].float().expand(-1, 2),)

    def round(self, server: Weights, cohort: Any) -> Weights:
        cohort.gather(self.keep, scatter=self.of(cohort.ids) if self.when == "at once" else self.of)
        return server

    def global_weights(self, server: Weights) -> Weights:
        return server


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_what_is_scattered_may_be_computed_when_it_is_needed(engine: Any) -> None:
    models = {"linear": Model(linear, name="linear"), "mlp": Model(mlp, name="mlp")}
    people = Population(federation(), models)  # 0, 2, 4 are linear, 1, 3, 5 are not
    kept = []
    for when in ("at once", "later"):
        SEEN.clear()
        run = engine(people, Sends(when=when), Options(chunk=2))
        run.round(run.init(), (0, 2, 4, 5), 0)
        kept.append({k: state.tolist() for k, state in run.states.items()})
        down = run.traffic.down
    assert kept[0] == kept[1] == {k: [k, k] for k in (0, 2, 4, 5)}
    assert down == dict.fromkeys((0, 2, 4, 5), 8)
    chunks = [[0], [2], [4], [5]] if engine is Loop else [[0, 2], [4], [5]]
    assert [one["asked"] for one in SEEN] == chunks  # each once
    run = engine(people, Sends(when="too few"), Options(chunk=2))
    with pytest.raises(StackingError, match=r"scatter has one entry for [12] clients each"):
        run.round(run.init(), (0, 2), 0)


@dataclass(frozen=True, kw_only=True)
class Asks(Algorithm[torch.Tensor, tuple[()]]):
    """Counts the rounds that it finished."""

    at_least: int = 1

    def init(self, model: Any, key: int, *, num_clients: int) -> torch.Tensor:
        return torch.zeros(())

    @on_client
    def answer(self, client: Client[tuple[()]]) -> tuple[tuple[()], Weighted[torch.Tensor]]:
        return (), Weighted(value=client.num_examples.double(), weight=client.num_examples)

    def round(self, server: torch.Tensor, cohort: Any) -> torch.Tensor:
        gathered = cohort.gather(self.answer, at_least=self.at_least)
        assert bool(cohort.reduce(self.answer, at_least=self.at_least)) == bool(gathered.values)
        return server + 1

    def personal(self, client: Client[tuple[()]], sent: tuple[()]) -> Weights:
        raise NotImplementedError


class AsksAll(Asks):
    requires = Requires(mixed=True)


class Reads(AsksAll):
    def round(self, server: torch.Tensor, cohort: Any) -> torch.Tensor:
        replies = cohort.gather(self.answer, at_least=0) if cohort.round else cohort.reduce(self.answer, at_least=0)
        return server + (replies.value if cohort.round > 1 else replies.mean)


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_where_nobody_answers_the_round_of_that_architecture_ends(engine: Any) -> None:
    models = {"linear": Model(linear, name="linear"), "mlp": Model(mlp, name="mlp")}
    people = Population(federation(), models)  # 0, 2, 4 are linear, 1, 3, 5 are not

    def rounds(algorithm: Any, cohort: tuple[int, ...], *lost: int) -> dict[str, float]:
        run = engine(
            people, algorithm, Options(faults=lambda round, exchange, client: "gone" if client in lost else None)
        )
        found = {name: float(state) for name, state in run.round(run.init(), cohort, 0).items()}
        assert [f.client for f in run.traffic.failed[: len(lost)]] == [k for k in lost if k in cohort]
        return found

    assert rounds(Asks(), (0, 2, 3), 0, 2) == {"linear": 0.0, "mlp": 1.0}
    assert rounds(Asks(at_least=0), (0, 2, 3), 0, 2) == {"linear": 1.0, "mlp": 1.0}
    assert rounds(Asks(at_least=2), (0, 2, 3)) == {"linear": 1.0, "mlp": 0.0}
    assert rounds(AsksAll(), ()) == {"": 1.0}  # nobody is asked: no exchange
    assert rounds(AsksAll(), (1, 2), 1, 2) == {"": 0.0}
    run = engine(people, Reads(), Options(faults=lambda round, exchange, client: "gone"))
    for t in range(
        3
    ):  # the mean of a sum, the mean of answers, the answers: who reads what is not there ends the round
        assert float(run.round(run.init(), (1, 2), t)[""]) == 0.0
        with pytest.raises(NobodyAnswered, match="nobody answered: test the replies"):
            run.algorithm.round(torch.zeros(()), AskedCohort(run, (), t))


@pytest.mark.parametrize("kind", [Loop, Stacked])
def test_an_exchange_has_its_clients_losses_by_step(kind: Any) -> None:
    population = clients_of(random_data((5, 12, 7)))
    run = kind(population, LocalOnly(local=Local(epochs=2, batch_size=4)))
    seen: list[Exchange] = []
    run.watch = seen.append
    run.round(run.init(), (2, 0, 1), 0)
    assert sorted(e.client for e in seen) == [0, 1, 2]
    for e in seen:
        (losses,) = e.losses
        assert len(losses) == 2 * -(-int(population.sizes[e.client]) // 4)
        assert run.traffic.losses[e.client] == pytest.approx(float(losses.double().mean()))
