"""Personal models are evaluated after their round, with randomness of their own, on rows that they have not seen."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.algorithms import FedAvg, FedDF, FedNTD, KTpFL, LocalOnly, PFedSD, Scaffold
from fedloom.coordinator import RunSettings
from fedloom.coordinator.job import Job
from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batch import Batch
from fedloom.core.client import Client, NotPlanned, on_client
from fedloom.core.errors import SettingError, StackingError
from fedloom.core.fold import fold, minimise
from fedloom.core.local_training import Local
from fedloom.core.losses import task_loss
from fedloom.core.model import Model
from fedloom.core.types import Weighted, Weights
from fedloom.data import by_lists, federate, from_arrays
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATION
from fedloom.engines.population import Population
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.tasks import Classification
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from small import batches_of
from tiny import LOCAL, federation, mlp, population

ENGINES = [Loop, Stacked]


@dataclass(frozen=True, kw_only=True)
class FineTuned(Algorithm[Weights, tuple[()]]):
    """FedAvg, whose clients are evaluated by the global model after local training."""

    @property
    def evaluation_training(self) -> Local | None:
        return self.local

    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def tuned(self, w: Weights, client: Client[tuple[()]]) -> Weights:
        return minimise(task_loss(client.model, client.task), w, client.train, self.local.optimiser, lr=client.lr)

    @on_client
    def local_update(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        return (), Weighted(value=self.tuned(w, client), weight=client.num_examples)

    def round(self, server: Weights, cohort: Any) -> Weights:
        return cohort.reduce(self.local_update, server).mean

    def global_weights(self, server: Weights) -> Weights:
        return server

    def personal(self, client: Client[tuple[()]], sent: Weights) -> Weights:
        return self.tuned(sent, client)


DECAYING = FineTuned(local=type(LOCAL)(epochs=2, batch_size=4, optimiser=LOCAL.optimiser, decay=0.5))


def evaluated() -> Population:
    """Clients with examples to be evaluated by, and others to choose by."""
    return population({"mlp": mlp}, federation(test_fraction=0.2, val_fraction=0.2), dtype=torch.float64)


def by_hand(p: Population, w: Weights, client: int, round: int, rate: float, exchange: Any) -> Weights:
    """Plain SGD over the batches that the client would see."""
    batches, module = batches_of(p, [client], DECAYING.local, round, exchange), mlp().double()
    module.load_state_dict({n: t.clone() for n, t in w.params.items()})
    x, y = p.federation.train.x.double(), p.federation.train.y
    for order, mask in zip(batches.order[0], batches.mask[0], strict=True):
        rows = batches.examples[0][order[mask]]
        loss = torch.nn.functional.cross_entropy(module(x[rows]), y[rows])
        for parameter, g in zip(module.parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True):
            parameter.data -= rate * g
    return Weights(params={n: t.detach() for n, t in module.named_parameters()})


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("round", [0, 2])
def test_a_personal_that_trains_has_the_rate_of_its_round_and_batches_of_its_own(engine: Any, round: int) -> None:
    run = engine(evaluated(), DECAYING)
    server = run.round(run.init(), (0, 1, 2), round)
    found, w = run.personal(server, [1, 4], round), server["mlp"]
    for client in (1, 4):
        rate = 0.1 * 0.5**round
        want = by_hand(run.population, w, client, round, rate, "evaluate")
        for n, t in found[client].params.items():
            np.testing.assert_allclose(t, want.params[n], rtol=0, atol=1e-12)
        training = by_hand(run.population, w, client, round, rate, 0)
        assert not np.allclose(found[client].params["0.weight"], training.params["0.weight"], rtol=0, atol=1e-6)


class Unsaid(FineTuned):
    """Trains in `personal` and does not say so."""

    @property
    def evaluation_training(self) -> None:
        return None


class Simple(Unsaid):
    """Does not train in `personal`."""

    def personal(self, client: Client[tuple[()]], sent: Weights) -> Weights:
        return sent


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_planned_for_judging_only_where_the_algorithm_says_so(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []
    plan = Population.train_batches
    monkeypatch.setattr(
        Population,
        "train_batches",
        lambda self, request, local: (planned.append(request.call.exchange), plan(self, request, local))[1],
    )
    unsaid = engine(evaluated(), Unsaid(local=LOCAL))
    with pytest.raises(
        StackingError, match=r"personal of Unsaid reads client\.train, .*define the property evaluation_training"
    ):
        unsaid.evaluate_counts(unsaid.init(), range(6), 0)
    for algorithm, want in ((Simple(local=LOCAL), set()), (DECAYING, {"evaluate"})):
        run = engine(evaluated(), algorithm)
        run.evaluate_counts(run.init(), range(6), 0)
        run.personal(run.init(), range(6), 0)
        assert set(planned) == want


def test_what_is_not_planned_has_no_attribute_and_can_be_copied() -> None:
    nothing = copy.deepcopy(NotPlanned(algorithm="Mine"))
    assert not tree.leaves(nothing)
    assert nothing.algorithm == "Mine"
    with pytest.raises(StackingError, match="personal of Mine reads"):
        nothing.x  # noqa: B018


class Averaged(FineTuned):
    """Evaluated by what its server sends, which is not the global model."""

    def evaluation_payload(self, server: Weights, model: Model) -> Weights:
        return 2.0 * server

    def personal(self, client: Client[tuple[()]], sent: Weights) -> Weights:
        return sent


@pytest.mark.parametrize("engine", ENGINES)
def test_clients_are_judged_with_what_the_algorithm_sends(engine: Any) -> None:
    run = engine(evaluated(), Averaged(local=LOCAL))
    server = run.init()
    for weights in run.personal(server, range(6), 0).values():
        assert all(torch.equal(t, 2.0 * server["mlp"].params[n]) for n, t in weights.params.items())


class Plain(Algorithm[Weights, tuple[()]]):
    def init(self, model: Any, key: int, *, num_clients: int) -> Weights:
        return model.init(key)

    def round(self, server: Weights, cohort: Any) -> Weights:
        return server


class Global(Plain):
    def global_weights(self, server: Weights) -> Weights:
        return server


class SendsAnother(Global):
    def evaluation_payload(self, server: Weights, model: Model) -> Weights:
        return server


class HasItsOwn(Global):
    def personal(self, client: Client[tuple[()]], sent: Weights) -> Weights:
        return sent


class Composed(FedAvg):
    def personal(self, client: Any, sent: Weights) -> Weights:
        return sent


def test_whether_clients_have_models_of_their_own_is_what_the_class_defines() -> None:
    with pytest.raises(SettingError, match=r"Plain says no model to evaluate clients by: define global_weights"):
        Plain()
    assert not any(one.personalises for one in (Global(), FedAvg(), FedNTD(), FedDF(), Scaffold()))
    personal = [SendsAnother(), HasItsOwn(), Composed(), PFedSD(), KTpFL(), LocalOnly()]
    assert all(one.personalises for one in (*personal, FedAvg(shared="* !head.*"), FedAvg(buffers="local")))


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_looking_at_clients_has_no_consequences(engine: Any) -> None:
    run, calm = (engine(evaluated(), DECAYING) for _ in range(2))
    server = run.round(run.init(), (0, 1, 2), 0)
    run.evaluate_counts(server, range(6), 0)
    again, undisturbed = run.round(server, (1, 3), 1), calm.round(calm.round(calm.init(), (0, 1, 2), 0), (1, 3), 1)
    for n, t in again["mlp"].params.items():
        assert torch.equal(t, undisturbed["mlp"].params[n])


class OnValidation(FineTuned):
    """Evaluated by the global model times the share of validation labels that are 0."""

    def personal(self, client: Client[tuple[()]], sent: Weights) -> Weights:
        def count(total: Tensor, batch: Batch) -> Tensor:
            return total + ((batch.y == 0) & batch.mask).sum()

        zeros = fold(count, torch.zeros((), dtype=torch.int64), client.val)
        return Weights(params={n: t * (1 + zeros) for n, t in sent.params.items()})


@pytest.mark.parametrize("engine", ENGINES)
def test_val_holds_validation_rows_whatever_clients_are_judged_on(engine: Any) -> None:
    run = engine(evaluated(), OnValidation(local=LOCAL))
    server, p = run.init(), run.population
    y, found = p.federation.train.y, run.personal(server, range(6), 0)
    zeros = [int((y[p.federation.local_val.rows(k).copy()] == 0).sum()) for k in range(6)]
    assert zeros != [int((y[p.federation.local_test.rows(k).copy()] == 0).sum()) for k in range(6)]
    for k in range(6):
        assert torch.equal(found[k].params["0.weight"], server["mlp"].params["0.weight"] * (1 + zeros[k]))
    for kind, part in (("test", p.federation.local_test), ("val", p.federation.local_val)):
        for k, (right, total) in run.evaluate_counts(server, range(6), 0, kind).items():
            x = p.federation.train.x[part.rows(k).copy()].double()
            logits = p.models["mlp"](found[k], x)
            assert (right, total) == (int((logits.argmax(1) == y[part.rows(k).copy()]).sum()), len(x))


@pytest.mark.slow
def test_the_run_judges_after_its_round(tmp_path: Any) -> None:
    settings = RunSettings(rounds=3, cohort_size=3, dtype="float64", engine="loop")
    job = Job(algorithm=DECAYING, federation=federation(test_fraction=0.2), model=mlp, settings=settings)
    history = job.run(tmp_path / "run")
    restored = job.restore(tmp_path / "run")
    w, part = restored.personal_weights(2), job.federation.local_test
    want = by_hand(job.population, next(iter(history.server.values())), 2, 2, 0.1 * 0.25, "evaluate")
    np.testing.assert_allclose(w.params["0.weight"], want.params["0.weight"], rtol=0, atol=1e-12)
    assert part is not None
    rows = part.rows(2).copy()
    logits = next(iter(job.population.models.values()))(w, job.federation.train.x[rows].double())
    right = float((logits.argmax(1) == job.federation.train.y[rows]).double().mean())
    assert history.metrics[-1]["personal_by_client"]["2"] == pytest.approx(right, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(local=LOCAL), PFedSD(local=LOCAL), LocalOnly(local=LOCAL)])
@pytest.mark.parametrize("engine", [Loop, Stacked, Workers, Messages, DevicesInProcess])
def test_what_a_client_has_trained_is_judged_where_it_was_trained(engine: Any, algorithm: Any) -> None:
    p = evaluated()
    run, watched = engine(p, algorithm, Options(works=(EVALUATION,))), Loop(p, algorithm)
    seen: list[Exchange] = []
    watched.watch = seen.append
    server, same = run.init(), watched.init()
    for round, cohort in enumerate(((0, 1, 2), (1, 3))):
        seen.clear()
        server, same = run.round(server, cohort, round), watched.round(same, cohort, round)
        assert sorted(run.traffic.after[EVALUATION]) == list(cohort)
        for e in seen:
            after, trained = run.traffic.after[EVALUATION][e.client], e.trained
            assert trained is not None
            for name, part in (("", p.federation.local_test), ("train", p.federation.partition)):
                rows = part.rows(e.client).copy()
                logits, y = p.models["mlp"](trained, p.federation.train.x[rows].double()), p.federation.train.y[rows]
                loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
                np.testing.assert_allclose(after.train_loss if name else after.loss, loss.detach(), rtol=1e-9)
                assert (after.trained if name else after.examples) == len(y)
                if not name:
                    assert after.sums["accuracy"] == (logits.argmax(1) == y).sum()
    assert not watched.traffic.after
    run.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [Loop, Stacked, Messages])
def test_a_given_model_is_judged_on_the_rows_of_each_client(engine: Any) -> None:
    p = evaluated()
    run = engine(p, PFedSD(local=LOCAL))
    server = run.round(run.init(), (0, 1, 2), 0)
    given = run.evaluate_models(server, range(6), 0, "all")
    for k, found in given.items():
        rows = p.federation.local_test.rows(k).copy()  # type: ignore[union-attr]
        logits = p.models["mlp"](server["mlp"], p.federation.train.x[rows].double())
        assert found.sums["accuracy"] == (logits.argmax(1) == p.federation.train.y[rows]).sum()
    own = run.evaluate(server, range(6), 0, "all")
    apart = [abs(float(own[k].loss - given[k].loss)) > 1e-9 for k in range(6)]
    assert apart == [True] * 3 + [False] * 3
    run.close()


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_a_loss_with_class_weights_is_the_mean_over_all_rows_of_a_client(engine: Any) -> None:
    y = np.arange(1200) % 600 >= 500  # of each client the rare class comes last
    x = np.random.default_rng(0).normal(size=(1200, 4)).astype(np.float32)
    lists = np.array_split(np.arange(1200), 2)
    data = federate(from_arrays(x, y.astype(np.int64)), by_lists(lists), test_fraction=0.5)
    p = Population(data, {"mlp": Model(mlp, name="mlp")}, task=Classification(class_weights=(1.0, 9.0, 1.0)))
    run = engine(p, FedAvg(local=LOCAL))
    server = run.init()
    for k, found in run.evaluate(server, (0, 1), 0, "all").items():
        for part, loss, count in (
            (data.local_test, found.loss, found.examples),
            (data.partition, found.train_loss, found.trained),
        ):
            rows = part.rows(k).copy()  # type: ignore[union-attr]
            logits = p.models["mlp"](server["mlp"], data.train.x[rows])
            weight = torch.tensor([1.0, 9.0, 1.0])
            expected = torch.nn.functional.cross_entropy(logits, data.train.y[rows], weight=weight)
            assert float(loss) / int(count) == pytest.approx(expected.item(), abs=1e-6)
    run.close()
