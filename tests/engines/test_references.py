"""Means of a run by other rules: what the clients were sent, one result on every engine, and what is refused."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from fedloom import Client, Params, RunSettings, Weighted, Weights, on_client, run, tree
from fedloom.algorithms import Centralised, FedAvg, FedBE, FedCurv, FedDF, FedNova, LocalOnly, Scaffold
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.engines.accounting import PayloadSize, sent_tensors
from fedloom.engines.attack_kinds import Scale
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.round_traffic import Exchange
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing import Subject
from fedloom.testing.compare import close, differ, same
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from fedloom.testing.subject import record_run
from tiny import LOCAL, federation, linear, population

RULES = ["trimmed:0.3", "median", "geometric_median", "krum:0", "multi_krum:0:2"]
SERVERS = {"feddf": FedDF(steps=4), "fedbe": FedBE(steps=6, num_sampled=2, swa_start=2, swa_every=2)}


def trail(subject: Subject, kind: Any, **options: Any) -> Any:
    engine = kind(subject.population(), subject.algorithm, Options(**options))
    made = record_run(engine, engine.init(), subject.cohorts)
    engine.close()
    return made


@pytest.mark.some(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [FedAvg, Scaffold, FedNova])
def test_every_engine_has_the_mean_of_the_loop(kind: Any, rule: str) -> None:
    subject = Subject.of(kind).normalised
    loop = trail(subject, Loop, aggregator=rule)
    assert differ(loop.servers, subject.run(Loop).servers)
    for engine, tolerance, more in (
        (Stacked, 1e-9, {"chunk": 2}),
        (Workers, 0.0, {"workers": 2}),
        (Messages, 0.0, {}),
    ):
        close(loop.servers, trail(subject, engine, aggregator=rule, **more).servers, engine.__name__, tolerance)


@pytest.mark.some(1)
@pytest.mark.parametrize("bound", ["clip:0.01", "clip:sent:0.001", "clip:median:0.5"])
@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_every_engine_clips_as_the_loop_does(kind: Any, bound: str) -> None:
    subject = Subject.of(kind).normalised
    loop = trail(subject, Loop, bound=bound)
    assert differ(loop.servers, subject.run(Loop).servers)
    close(loop.servers, trail(subject, Stacked, bound=bound, chunk=2).servers, "Stacked", 1e-9)
    for engine, more in ((Workers, {"workers": 2}), (Messages, {}), (DevicesInProcess, {})):
        same(loop.servers, trail(subject, engine, bound=bound, **more).servers, engine.__name__)
    if "median" not in bound:
        sums = trail(subject, Loop, bound=bound, partial_sums=2).servers
        close(loop.servers, sums, "sums", 1e-12)
        same(sums, trail(subject, Workers, bound=bound, partial_sums=2, workers=2).servers, "sums of workers")


@pytest.mark.some(2)
@pytest.mark.parametrize("rule", RULES)
def test_devices_have_the_mean_of_the_simulation(rule: str) -> None:
    subject = Subject.of(FedAvg)
    loop = trail(subject, Loop, aggregator=rule)
    same(loop.servers, trail(subject, DevicesInProcess, aggregator=rule).servers, "the servers")


@pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")
@pytest.mark.parametrize("name", SERVERS)
def test_means_of_replies_follow_the_rule(name: str) -> None:
    subject = Subject.of(SERVERS[name])
    usual, median = subject.run(Loop), trail(subject, Loop, aggregator="median")
    assert differ(usual.servers, median.servers)
    close(median.servers, trail(subject, Stacked, aggregator="median").servers, "the servers", 1e-7)


def seen_in_a_round(rule: str, bound: str = "none") -> tuple[Any, dict[int, Any], Any]:
    options = Options(aggregator=rule, bound=bound)
    engine, seen = Loop(population(dtype=torch.float64), FedAvg(local=LOCAL), options), {}

    def watch(exchange: Exchange) -> None:
        seen[exchange.client] = exchange.upload

    engine.watch = watch
    before = engine.init()
    (after,) = engine.round(before, range(6), 0).values()
    return next(iter(before.values())), seen, after


def flat(value: Any) -> Any:
    return torch.cat([t.double().flatten() for t in tree.leaves(value)]).numpy()


def test_differences_to_what_was_sent_are_clipped_at_the_median_of_their_norms() -> None:
    w, uploads, after = seen_in_a_round("mean", "clip:median:1")
    d = [flat(uploads[k].value) - flat(w) for k in range(6)]
    norms = [np.linalg.norm(v) for v in d]
    bound = sorted(norms)[2]  # the lower of both in the middle
    weights = [float(uploads[k].weight) for k in range(6)]
    clipped = sum(weight * v * min(1.0, bound / norm) for weight, v, norm in zip(weights, d, norms, strict=True)) / sum(
        weights
    )
    np.testing.assert_allclose(flat(after), flat(w) + clipped, rtol=1e-12)
    w, uploads, after = seen_in_a_round("mean", "clip:0.01")
    assert np.linalg.norm(flat(after) - flat(w)) <= 0.01
    w, uploads, after = seen_in_a_round("mean", "clip:1e9")
    np.testing.assert_allclose(flat(after), flat(seen_in_a_round("mean")[2]), rtol=1e-12)


def test_a_median_is_that_of_the_uploads() -> None:
    _, uploads, after = seen_in_a_round("median")
    np.testing.assert_allclose(flat(after), np.median([flat(uploads[k].value) for k in range(6)], axis=0), rtol=1e-12)


class Sends:
    """Methods that upload several things."""

    def models(self, client: Any, w: Weights, c: Params) -> tuple[Any, tuple[Weighted[Weights], Weighted[Params]]]:
        raise NotImplementedError

    def gradients(self, client: Any, w: Weights) -> tuple[Any, Weighted[Annotated[Weights, "gradient"]]]:
        raise NotImplementedError


def test_what_was_sent_is_known_of_models_alone() -> None:
    w = Weights({"a": torch.ones(3), "b": torch.ones(2)}, {"m": torch.zeros(4)})
    c = Params(a=torch.ones(3), b=torch.ones(2))
    stacked: Weights = tree.stack([w, w])

    def found(method: str, broadcast: Any, upload: Any) -> list[bool]:
        sent = sent_tensors(PayloadSize(getattr(Sends, method)), broadcast, upload)
        assert len(sent) == len(tree.leaves(tree.map_tree(lambda t: t, _values(upload))))
        return [given is not None for given in sent]

    both = Weighted(value=stacked, weight=torch.ones(2)), Weighted(value=tree.stack([c, c]), weight=torch.ones(2))
    assert found("models", (w, c), both) == [True, True, True, False, False]
    assert found("gradients", (w,), both[0]) == [False, False, False]
    part = Weighted(value=Weights({"b": torch.ones(2, 2)}), weight=torch.ones(2))  # buffers are not uploaded
    assert found("models", (w, c), (part, both[1])) == [True, False, False]
    other = Weighted(value=Weights({"b": torch.ones(2, 5)}), weight=torch.ones(2))
    assert found("models", (w, c), (other, both[1])) == [False, False, False]
    second = Weights({"b": torch.full((5,), 7.0)})
    (given, *_) = sent_tensors(PayloadSize(Sends.models), (w, second), (other, both[1]))
    assert given is not None
    assert given.tolist() == [7.0] * 5
    assert found("models", (w, w), both) == [True, True, True, False, False]  # such as FedGKD's model and teacher
    assert found("models", ((w, w), c), both) == [False] * 5  # such as IFCA's, from which each takes another


def _values(upload: Any) -> Any:
    nodes = upload if isinstance(upload, tuple) else (upload,)
    return [node.value for node in nodes]


@pytest.mark.slow
def test_architectures_have_a_mean_each() -> None:
    subject = dataclasses.replace(
        Subject.of(FedAvg), models={**Subject.of(FedAvg).models, **Subject.of(FedAvg).normalised.models}
    )
    with_two = trail(subject, Loop, aggregator="geometric_median")
    assert len(with_two.servers[-1]) == 2
    assert all(differ(with_two.servers[0][name], with_two.servers[-1][name]) for name in with_two.servers[0])


def test_a_round_in_which_too_few_answer_krum_ends_as_it_began() -> None:
    def lost(round: int, exchange: int, client: int) -> str | None:
        return "lost" if client < 2 else None

    engine = Loop(population(), FedAvg(local=LOCAL), Options(aggregator="krum:1", faults=lost))
    before = engine.init()
    same(engine.round(before, range(6), 0), before, "the server")  # 4 of 6 answer, krum:1 needs 5
    engine = Loop(population(), FedAvg(local=LOCAL), Options(aggregator="krum:1"))
    assert differ(engine.round(before, range(6), 0), before)


@pytest.mark.parametrize("kind", [Loop, Stacked, Messages, DevicesInProcess])
def test_no_state_moves_in_a_round_in_which_too_few_answer_krum(kind: Any) -> None:
    def lost(round: int, exchange: int, client: int) -> str | None:
        return "lost" if round == 1 and client < 2 else None

    engine = kind(population(), Scaffold(local=LOCAL), Options(aggregator="krum:1", faults=lost))
    first = engine.round(engine.init(), range(6), 0)
    before = {k: engine.states[k] for k in range(6)}
    same(engine.round(first, range(6), 1), first, "the server")
    assert len(engine.traffic.failed) == 2
    same({k: engine.states[k] for k in range(6)}, before, "the clients")
    assert differ(engine.round(first, range(6), 2), first)
    assert differ({k: engine.states[k] for k in range(6)}, before)
    engine.close()


@pytest.mark.slow
def test_a_liar_is_survived() -> None:
    """One of six sends a model a thousand times too far away."""
    attack = Scale(1000.0, clients=(3,))
    honest = run(FedAvg(local=LOCAL), federation(), linear, settings())
    for rule in ("trimmed:0.2", "median", "geometric_median", "krum:1", "multi_krum:1:3", "mean"):
        lying = run(FedAvg(local=LOCAL), federation(), linear, settings(aggregator=rule), attack=attack)
        gap = lying.metrics[-1]["global_loss"] - honest.metrics[-1]["global_loss"]
        assert (gap < 1) is (rule != "mean"), (rule, gap)


def settings(**more: Any) -> RunSettings:
    return RunSettings(**{"rounds": 3, "cohort_size": 6, "engine": "loop", "compilation": "none", **more})


def test_too_small_a_cohort_is_refused_before_the_run() -> None:
    with pytest.raises(SettingError, match="'krum:2' needs the uploads of 7 clients, and a round asks 6: raise cohort"):
        run(FedAvg(local=LOCAL), federation(), linear, settings(aggregator="krum:2"))
    with pytest.raises(SettingError, match="needs the uploads of 3 clients, and a round asks 2"):
        run(FedAvg(local=LOCAL), federation(), linear, settings(aggregator="median", cohort_size=2))
    with pytest.raises(SettingError, match=r"below 0\.5, got 0\.6"):
        RunSettings(aggregator="trimmed:0.6")


def test_sums_are_refused() -> None:
    with pytest.raises(SettingError, match="aggregator = 'median' needs each upload, and partial_sums = 2 sends sums"):
        Options(aggregator="median", partial_sums=2)
    with pytest.raises(SettingError, match="partial_sums = 2 sends sums: leave one of them out"):
        run(FedAvg(local=LOCAL), federation(), linear, settings(aggregator="median", partial_sums=2))


def test_an_algorithm_that_takes_no_mean_is_warned_of_once() -> None:
    with pytest.warns(SettingWarning, match="LocalOnly took no mean of uploads in its first round") as caught:
        run(LocalOnly(local=LOCAL), federation(), linear, settings(aggregator="median"))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(FedAvg(local=LOCAL), federation(), linear, settings(aggregator="median"))
        run(LocalOnly(local=LOCAL), federation(), linear, settings())


def test_an_algorithm_that_adds_up_is_refused_before_the_run() -> None:
    for rule in ("median", "krum:1"):
        message = (
            f"FedCurv adds up what clients report, and aggregator = '{rule}' gives no sum: use aggregator = 'mean'"
        )
        with pytest.raises(SettingError, match=message):
            run(FedCurv(local=LOCAL), federation(), linear, settings(aggregator=rule))
    run(FedCurv(local=LOCAL), federation(), linear, settings(rounds=1))


def test_the_pooled_reference_needs_no_rule() -> None:
    found = [
        run(Centralised(local=LOCAL), federation(), linear, settings(aggregator=rule)).metrics
        for rule in ("mean", "krum:40")
    ]
    assert found[0] == found[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    """An algorithm of somebody's own, which gathers and takes the mean of a difference."""

    @on_client
    def difference(
        self, client: Client[Any], w: Weights
    ) -> tuple[Any, tuple[Annotated[Weighted[Weights], "gradient"], torch.Tensor]]:
        _, upload = super().local_update(client, w)
        return client.state, (dataclasses.replace(upload, value=upload.value - w), client.num_examples)

    def round(self, w: Weights, cohort: Any) -> Weights:
        replies = cohort.gather(self.difference, w)
        values = [difference for difference, _ in replies.values]
        moved = dataclasses.replace(replies, values=values).mean
        return w + moved


def test_an_algorithm_of_ones_own_has_the_rule() -> None:
    """The median of differences is the difference of the median."""
    people = population(dtype=torch.float64)
    engines = [Loop(people, kind(local=LOCAL), Options(aggregator="median")) for kind in (Own, FedAvg)]
    own, usual = (engine.round(engine.init(), range(6), 0) for engine in engines)
    close(own, usual, "the server", 1e-12)
