"""Clients that are held out from training, or join late, and how they are evaluated in the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom import (
    APFLNi,
    Centralised,
    FedAvg,
    KTpFL,
    KTpFLWeights,
    LocalOnly,
    NewClients,
    PFedSD,
    RunSettings,
    Unreliable,
)
from fedloom.coordinator import Arriving, Available, BySize, FixedList, History, Job, SeededByRound, Uniform
from fedloom.coordinator.newcomers import WAYS
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.model import Model
from fedloom.data import by_lists
from fedloom.engines.population import Population
from fedloom.evaluate import rows_right
from fedloom.tasks import Classification
from small import batches_of
from tiny import LOCAL, examples, federation, linear, mlp

SETTINGS = RunSettings(rounds=3, cohort_size=2, engine="loop", threads=1)
NEW = NewClients(2)  # clients 4 and 5 of six


def asked(history: History) -> list[set[int]]:
    return [set(m["clients"]) for m in history.metrics[1:]]


def rate(weights: Any, client: int) -> float:
    data = federation()
    held_out = data.train.select(data.local_test.rows(client))  # type: ignore[union-attr]
    return float(rows_right(Model(linear, name="Linear"), weights, Classification(), held_out).mean())


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [None, BySize(seed=1), Available(share=0.9, period=3)])
def test_who_is_new_is_never_asked_before_it_joins(sampler: Any) -> None:
    settings = replace(SETTINGS, rounds=12)
    for new, when in ((NewClients((0, 3)), None), (NewClients((0, 3), joins=6), 6)):
        found = asked(fl.run(LocalOnly(local=LOCAL), federation(), linear, settings, sampler=sampler, new=new))
        assert not set.union(*found[: 5 if when else 12]) & {0, 3}
        assert bool(set.union(*found[5:]) & {0, 3}) == (when is not None)


def cohorts(sampler: Any, new: NewClients, rounds: int = 8, cohort_size: int = 2) -> list[list[int]]:
    settings = replace(SETTINGS, rounds=rounds, cohort_size=cohort_size)
    coordinator = Coordinator(
        Job(
            algorithm=LocalOnly(local=LOCAL),
            federation=federation(),
            model=linear,
            settings=settings,
            sampler=sampler,
            new=new,
        )
    )
    return [coordinator.asked(t)[0] for t in range(rounds)]


@dataclass(frozen=True)
class Named:
    """Name the same clients whatever the cohort size."""

    clients: tuple[int, ...]

    def __call__(self, round: int, sizes: Any, cohort_size: int) -> list[int]:
        assert len(sizes) == 6
        return [*self.clients]


def test_samplers_name_clients_by_their_numbers_whoever_is_new() -> None:
    assert cohorts(Named((3, 4)), NewClients((0,), joins=2), rounds=2) == [[3, 4]] * 2
    assert cohorts(Named((5, 3, 4)), NewClients((0,)), rounds=1) == [[5, 3, 4]]  # more than the cohort
    assert cohorts(Named((3, 0)), NewClients((0,)), rounds=1) == [[3]]
    assert cohorts(FixedList(((5, 3, 4), (), (2, 1))), NewClients((0,)), rounds=3) == [[5, 3, 4], [], [2, 1]]
    assert cohorts(Arriving(FixedList(((3, 5),)), 6, 0), NewClients((0,)), rounds=1) == [[3, 5]]
    assert cohorts(Arriving(Uniform(), 2, 1), NewClients((0, 1)), rounds=3, cohort_size=1)[:2] == [[], [2]]
    with pytest.raises(ValueError, match=r"distinct clients of 0\.\.5"):
        cohorts(Named((3, 3)), NewClients((0,)), rounds=1)


def test_nobody_is_asked_who_is_not_up() -> None:
    up = Available(share=0.5, period=4, seed=1)
    for t, clients in enumerate(cohorts(up, NewClients((0,)), rounds=12)):
        there = set(np.flatnonzero(up.up(np.arange(6), t))) - {0}
        assert set(clients) <= there
        assert len(clients) == min(2, len(there))


@pytest.mark.parametrize("sampler", [Uniform(), SeededByRound(), BySize()])
def test_of_those_who_are_not_new_a_sampler_draws_as_of_all(sampler: Any) -> None:
    """Where numbers mean nothing, they are drawn as if there were no others."""
    others = np.array([1, 2, 4, 5])
    sizes = federation().partition.sizes[others]
    assert cohorts(sampler, NewClients((0, 3))) == [[int(others[k]) for k in sampler(t, sizes, 2)] for t in range(8)]


def test_the_panel_is_as_large_as_asked_whoever_is_new() -> None:
    for seed in range(5):
        settings = replace(SETTINGS, panel=3, seed=seed)
        job = Job(algorithm=FedAvg(local=LOCAL), federation=federation(), model=linear, settings=settings, new=NEW)
        panel = Coordinator(job).running.evaluation.panel
        assert len(panel) == 3
        assert not {4, 5} & {*panel}


def test_everybody_are_those_who_have_joined() -> None:
    algorithm = LocalOnly(local=LOCAL, schedule="every_round")
    found = asked(fl.run(algorithm, federation(), linear, SETTINGS, new=NewClients((0, 3), joins=3)))
    assert found == [{1, 2, 4, 5}, {1, 2, 4, 5}, {0, 1, 2, 3, 4, 5}]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked", "workers"])
def test_each_way_is_the_model_that_it_names(engine: Any) -> None:
    found = fl.run(PFedSD(local=LOCAL), federation(), linear, replace(SETTINGS, engine=engine), new=NEW)
    last, server = found.metrics[-1], found.server["Linear"]
    assert all("new_by_client" not in m for m in found.metrics[:-1])
    assert set(last["new_by_client"]) == {"global", "fine_tuned", "personalised"}
    assert last["new_by_client"]["global"] == {str(k): rate(server, k) for k in (4, 5)}
    assert set(last["personal_by_client"]) == set("0123")  # the panel is of the others
    # By hand: plain SGD from the newest global model. A first participation of pFedSD is the same on other batches.
    p = Population(federation(), {"Linear": Model(linear, name="Linear")})
    for way, exchange in (("fine_tuned", "evaluate"), ("personalised", 0)):
        for k in (4, 5):
            module = torch.nn.Linear(4, 3)
            module.load_state_dict({n: t.clone() for n, t in server.params.items()})
            batches = batches_of(p, [k], LOCAL, 2, exchange)
            for order, mask in zip(batches.order[0], batches.mask[0], strict=True):
                rows = batches.examples[0][order[mask]]
                loss = torch.nn.functional.cross_entropy(module(p.federation.train.x[rows]), p.federation.train.y[rows])
                for t, g in zip(module.parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True):
                    t.data -= 0.1 * g
            weights = fl.Weights(params={n: t.detach() for n, t in module.named_parameters()})
            assert last["new_by_client"][way][str(k)] == rate(weights, k)
    for way, by_client in last["new_by_client"].items():
        assert last[f"new_{way}_accuracy"] == last[f"new_{way}_accuracy_by_samples"] == np.mean([*by_client.values()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [PFedSD(local=LOCAL), FedAvg(local=LOCAL, shared="* !bias"), LocalOnly(local=LOCAL)]
)
def test_nothing_stays_of_judging_them(algorithm: Any, tmp_path: Path) -> None:
    new = NewClients(2, judged_by=("global", "personalised"))
    run = fl.run(algorithm, federation(), linear, SETTINGS, new=new, directory=tmp_path / "a")
    again = fl.run(algorithm, federation(), linear, SETTINGS, new=NewClients(2, judged_by=("global",)))
    assert {k for k in run.clients if k > 3} == set()
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(run.server), tree.leaves(again.server), strict=True))
    assert run.metrics[-1]["bytes_down"] == again.metrics[-1]["bytes_down"]
    assert fl.verify(tmp_path / "a").whole
    # A run goes on from there as one that was longer from the start.
    longer = replace(SETTINGS, rounds=5)
    job = Job(
        algorithm=algorithm,
        federation=federation(),
        model=linear,
        settings=longer,
        new=new,
    )
    assert job.run(tmp_path / "a", resume=True).metrics[-1] == job.run().metrics[-1]


def watching_everyone(rounds: int, joins: int | None = None) -> Job:
    algorithm = APFLNi(local=LOCAL, z=0, mu=0.01, window_loss="global_all_clients", forced_rounds=(0,))
    settings = replace(SETTINGS, rounds=rounds)
    new = NewClients(2, joins=joins, judged_by=("personalised",))
    return Job(algorithm=algorithm, federation=federation(), model=linear, settings=settings, new=new)


@pytest.mark.slow
def test_nothing_is_asked_of_new_clients_where_everyone_is_asked(tmp_path: Path) -> None:
    run = watching_everyone(2).run(tmp_path / "a")
    assert set(run.clients) == {0, 1, 2, 3}
    assert set(watching_everyone(2, joins=2).run().clients) == set(range(6))
    whole = watching_everyone(3).run()
    longer = watching_everyone(3).run(tmp_path / "a", resume=True)
    assert longer.metrics[-1] == whole.metrics[-1]
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(longer.server), tree.leaves(whole.server), strict=True))


def test_new_clients_are_among_everyone_where_they_take_part_once() -> None:
    """KT-pFL on weights looks for who is asked among everyone."""
    new = NewClients(2, judged_by=("personalised",))
    run = fl.run(KTpFLWeights(local=LOCAL), federation(), linear, replace(SETTINGS, rounds=2), new=new)
    assert set(run.metrics[-1]["new_by_client"]["personalised"]) == {"4", "5"}
    assert "new_failed" not in run.metrics[-1]


@pytest.mark.slow
def test_algorithms_without_such_models_leave_ways_out() -> None:
    def ways(algorithm: Any, **more: Any) -> set[str]:
        return set(fl.run(algorithm, federation(**more), linear, SETTINGS, new=NEW).metrics[-1]["new_by_client"])

    assert ways(FedAvg(local=LOCAL)) == {"global", "fine_tuned"}
    assert ways(LocalOnly(local=LOCAL)) == {"personalised"}
    assert ways(KTpFL(local=LOCAL, num_public=8), public=examples(24, seed=5)) == {"personalised"}


@pytest.mark.slow
def test_clients_that_have_joined_are_judged_as_they_are() -> None:
    settings = replace(SETTINGS, rounds=4, cohort_size=6)
    with pytest.raises(SettingError, match="cohort_size = 6 is larger than the 4 clients that are not new"):
        fl.run(PFedSD(local=LOCAL), federation(), linear, settings, new=NewClients(2, joins=3))
    sampler = FixedList(((0, 1), (2, 3), (4, 5), (0, 4)))
    found = fl.run(
        PFedSD(local=LOCAL),
        federation(),
        linear,
        replace(SETTINGS, rounds=4),
        sampler=sampler,
        new=NewClients(2, joins=3),
    )
    for k in (4, 5):
        assert found.metrics[-1]["new_by_client"]["personalised"][str(k)] == rate(found.clients[k].v.value, k)


def test_faults_are_for_training_alone() -> None:
    found = fl.run(PFedSD(local=LOCAL), federation(), linear, SETTINGS, new=NEW, faults=Unreliable(lost=1.0))
    assert set(found.metrics[-1]["new_by_client"]["personalised"]) == {"4", "5"}


@pytest.mark.slow
def test_who_diverges_is_judged_as_it_is_without_taking_part() -> None:
    """Client 5 trains on huge numbers and is evaluated on sound ones: every way is of both new clients."""
    data = federation()
    x = data.train.x.clone()
    x[data.partition.rows(5).copy()] = 1e30
    data = replace(data, train=replace(data.train, x=x))
    settings = replace(SETTINGS, on_nonfinite="refuse")
    with pytest.warns(SettingWarning, match="hardly learnt"):
        found = fl.run(PFedSD(local=LOCAL), data, linear, settings, new=NEW)
    last = found.metrics[-1]
    assert {way: set(by) for way, by in last["new_by_client"].items()} == {way: {"4", "5"} for way in WAYS}
    assert list(last["new_failed"]) == ["5"]
    assert "at batch" in last["new_failed"]["5"]
    assert last["failed"] == {}  # nobody of the round's cohort
    by_client = last["new_by_client"]  # who has never taken part has the global model
    assert by_client["personalised"]["5"] == by_client["global"]["5"]
    assert last["new_personalised_accuracy"] == np.mean([*by_client["personalised"].values()])
    sound = fl.run(PFedSD(local=LOCAL), federation(), linear, settings, new=NEW)
    assert "new_failed" not in sound.metrics[-1]


@pytest.mark.parametrize("aggregator", ["krum:1", "multi_krum:1:2", "trimmed:0.4"])
def test_few_new_clients_take_part_whatever_the_aggregator_needs(aggregator: str) -> None:
    """Nobody trains here, so that the server is the same by every aggregator."""
    found = []
    for rule in ("mean", aggregator):
        settings = replace(SETTINGS, rounds=1, cohort_size=5, aggregator=rule)
        run = fl.run(PFedSD(local=LOCAL), federation(7), linear, settings, sampler=FixedList(((),)), new=NEW)
        assert "new_failed" not in run.metrics[-1]
        found.append(run.metrics[-1]["new_by_client"])
    assert found[0] == found[1]
    assert found[0]["personalised"] != found[0]["global"]


@dataclass(frozen=True, kw_only=True)
class OfThree(LocalOnly):
    """Let no round of fewer than three clients count."""

    def round(self, server: Any, cohort: Any) -> Any:
        cohort.gather(self.local_update, at_least=3)
        return server


@pytest.mark.parametrize("models", [linear, {"a": linear, "b": mlp}])
def test_new_clients_whose_round_ends_early_have_failed(models: Any) -> None:
    settings = replace(SETTINGS, rounds=1, cohort_size=4)
    last = fl.run(OfThree(local=LOCAL), federation(), models, settings, new=NEW).metrics[-1]
    assert set(last["new_by_client"]["personalised"]) == {"4", "5"}
    count = 2 if models is linear else 1
    words = f"needs the answers of 3 clients, got {count} of {count}"
    assert {k: words in why for k, why in last["new_failed"].items()} == {"4": True, "5": True}


def test_others_that_fail_meanwhile_are_no_new_clients() -> None:
    job = watching_everyone(1)
    data, x = job.federation, job.federation.train.x.clone()
    x[data.partition.rows(0).copy()] = 3e38  # with a loss that is not finite
    data = replace(data, train=replace(data.train, x=x))
    settings = replace(job.settings, on_nonfinite="refuse")
    with pytest.warns(SettingWarning, match="hardly learnt"):
        last = replace(job, federation=data, settings=settings).run().metrics[-1]
    assert "0" in last["failed"]
    assert "new_failed" not in last


@pytest.mark.slow
def test_a_network_that_only_new_clients_have_is_no_part_of_the_global_accuracy() -> None:
    """Clients 1, 3 and 5 have the second network and are never asked: nobody trains it."""
    new = (1, 3, 5)
    models = {"a": linear, "b": mlp}
    found = fl.run(FedAvg(local=LOCAL), federation(), models, SETTINGS, new=NewClients(new))
    test, weights = federation().test, found.server["a"]
    assert test is not None
    assert found.last("global_accuracy") == rows_right(Model(linear, name="a"), weights, Classification(), test).mean()
    joined = fl.run(FedAvg(local=LOCAL), federation(), models, SETTINGS, new=NewClients(new, joins=3))
    accuracies = [
        rows_right(Model(models[n], name=n), w, Classification(), test).mean() for n, w in joined.server.items()
    ]
    assert joined.last("global_accuracy") == pytest.approx(np.mean(accuracies))


@pytest.mark.slow
def test_rows_of_models_on_several_architectures() -> None:
    found = fl.run(PFedSD(local=LOCAL), federation(), {"a": linear, "b": mlp}, SETTINGS, new=NEW)
    assert [set(by) for by in found.metrics[-1]["new_by_client"].values()] == [{"4", "5"}] * 3


def unequal(train_of_last: list[int], test_of_last: list[int]) -> fl.Federation:
    data = examples(30)
    return fl.Federation(
        data, by_lists([[0, 1, 2], [3, 4, 5], train_of_last]), data, by_lists([[6, 7], [8, 9], test_of_last])
    )


def test_a_client_without_training_rows_can_be_new() -> None:
    data = unequal([], [10, 11, 12])
    with pytest.raises(
        SettingError,
        match="a new client is fine-tuned and personalised on training examples, and client 2 has none: give it "
        r"some, or evaluate new clients by 'global' alone \(judged_by\)",
    ):
        fl.run(FedAvg(local=LOCAL), data, linear, SETTINGS, new=NewClients(1))
    with pytest.raises(SettingError, match=r"asked to train once it has joined on .* who never join \(joins\)"):
        fl.run(FedAvg(local=LOCAL), data, linear, SETTINGS, new=NewClients(1, joins=2, judged_by=("global",)))
    settings = replace(SETTINGS, per_client=True)
    found = fl.run(FedAvg(local=LOCAL), data, linear, settings, new=NewClients(1, judged_by=("global",)))
    assert set(found.metrics[-1]["new_by_client"]) == {"global"}
    with pytest.raises(SettingError, match="a client that is asked needs a training example, got none for client 2"):
        fl.run(FedAvg(local=LOCAL), data, linear, SETTINGS)


@pytest.mark.parametrize(
    ("new", "data", "words"),
    [
        (NewClients(3), {}, "leave others to train, got 3: name fewer"),
        (NewClients((7,)), {}, r"some of the federation's 0..2 .* got \(7,\)"),
        (NewClients(2), {}, "cohort_size = 2 is larger than the 1 clients that are not new; set cohort_size <= 1"),
        (NewClients(1), {"test_of_last": []}, "and client 2 holds none: set test_fraction > 0"),
    ],
)
def test_what_does_not_fit_is_refused(new: Any, data: Any, words: str) -> None:
    parts = unequal(**{"train_of_last": [10, 11], "test_of_last": [12], **data})
    with pytest.raises(SettingError, match=words):
        Job(algorithm=FedAvg(local=LOCAL), federation=parts, model=linear, settings=SETTINGS, new=new)


def test_new_clients_and_samplers_or_pooled_data_that_contradict_them() -> None:
    parts: Any = {"federation": federation(), "model": linear, "settings": SETTINGS, "new": NEW}
    with pytest.raises(SettingError, match=r"the sampler lists client 4 for round 2, which is new .*\(joins\)"):
        Job(algorithm=FedAvg(local=LOCAL), sampler=FixedList(((0, 1), (1, 4), (2, 3))), **parts)
    with pytest.raises(SettingError, match="Centralised trains on the examples of all clients"):
        Job(algorithm=Centralised(local=LOCAL), **parts)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": 0}, "at least one, or a list of distinct numbers from 0, got 0"),
        ({"clients": (1, 1)}, r"distinct numbers from 0, got \(1, 1\)"),
        ({"clients": ()}, "at least one"),
        ({"clients": "5"}, "the number of new clients must be of type int, got '5'"),
        ({"clients": 1, "joins": 0}, "join in a round from 1 on, got 0: use None for never"),
        ({"clients": 1, "judged_by": ()}, "judged_by names some of global, fine_tuned, personalised"),
        ({"clients": 1, "judged_by": ("all",)}, "must be one of global, fine_tuned, personalised, got 'all'"),
    ],
)
def test_new_clients_that_are_none(given: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        NewClients(**given)


@pytest.mark.slow
def test_words_for_new_clients() -> None:
    of = fl.Experiment.of
    assert of({}).clients.newcomers() is None
    assert of({"clients": {"new": "5"}}).job().new == NewClients(5)
    said = of({"clients": {"new": "list:3,7", "joins": 4, "new_judged_by": ["global"]}})
    assert said.clients.newcomers() == NewClients((3, 7), joins=4, judged_by=("global",))
    assert of(said.described()).clients == said.clients
    for table, words in (
        ({"new": "some"}, "clients.new is a number of clients or list:3,7,9, got 'some'"),
        ({"new": "list:3,x"}, "got 'list:3,x'"),
        ({"joins": 3}, "clients.joins = 3 is for new clients, and there are none: set clients.new"),
    ):
        with pytest.raises(SettingError, match=words):
            of({"clients": table})
