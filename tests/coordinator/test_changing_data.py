"""Runs whose data change: the same on every engine, exact when resumed, and evaluated by the data of their round."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom import (
    SGD,
    Centralised,
    FedAvg,
    Federation,
    FedMeta,
    FedNova,
    History,
    Job,
    KTpFL,
    PFedSD,
    RunSettings,
    Scaffold,
)
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.coordinator.global_model import _shares
from fedloom.coordinator.replay import RoundReplay
from fedloom.coordinator.rounds import Coordinator
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest
from fedloom.data import Growing, LabelDrift, OffsetDrift, Window
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.evaluate import classify
from tiny import LOCAL, examples, federation, linear, mlp, population

SETTINGS = RunSettings(rounds=5, cohort_size=3, engine="loop", threads=1)
ARRIVING = {"arrives": Growing(0.3, 5)}
CHANGES: dict[str, dict[str, Any]] = {
    "growing": ARRIVING,
    "window": {"arrives": Window(0.4, 5), "drift": LabelDrift(2)},
    "drift": {"drift": OffsetDrift(0.2, share=0.5, seed=1)},
}


def job(changes: dict[str, Any], algorithm: Any = None, parts: Any = None, **settings: Any) -> Job:
    """A run over data that change."""
    return Job(
        algorithm=algorithm or PFedSD(local=LOCAL),
        federation=parts or federation(**changes),
        model=mlp,
        settings=dataclasses.replace(SETTINGS, **settings),
    )


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def same_end(a: History, b: History) -> bool:
    states = sorted(a.clients) == sorted(b.clients) and all(same(a.clients[k], b.clients[k]) for k in a.clients)
    return states and same(a.server, b.server) and a.metrics == b.metrics


# ---- a round is that of the data of its round


def at_rest(f: Federation, round: int) -> Federation:
    """The data of a round, in a federation that does not change."""
    return dataclasses.replace(f.at(round), arrives=None, drift=None)


@pytest.mark.some(8)
@pytest.mark.parametrize("engine", [Loop, Stacked])
@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(local=LOCAL),
        FedNova(local=LOCAL),
        FedMeta(local=LOCAL),
        KTpFL(local=LOCAL, num_public=12, distill=Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.1))),
    ],
    ids=lambda a: type(a).__name__,
)
def test_a_round_is_that_of_a_federation_with_the_examples_that_are_there(
    algorithm: Any, changes: str, engine: Any
) -> None:
    f = federation(per_client=40, public=examples(20, seed=5), **CHANGES[changes])
    for t in (1, 3):
        ends = []
        for parts in (f, at_rest(f, t)):
            run = engine(population(mlp, parts), algorithm)
            ends.append((run.round(run.init(), (0, 2, 3), t), run.personal(run.init(), (1, 2), t)))
        if isinstance(algorithm, FedMeta) and changes == "window":
            continue  # an example is in the support or the query set of its client in all rounds
        assert same(*ends)


def test_a_server_sees_the_sizes_of_its_round() -> None:
    f, seen = federation(**ARRIVING), []

    class Sees(FedAvg):
        def round(self, server: Any, cohort: Any) -> Any:
            seen.append(cohort.sizes.tolist())
            return super().round(server, cohort)

    run = Loop(population(linear, f), Sees(local=LOCAL))
    server = run.init()
    for t in range(3):
        server = run.round(server, (0, 2), t)
    assert seen == [[int(f.at(t).partition.sizes[k]) for k in (0, 2)] for t in range(3)]
    assert seen[0] != seen[2]


def test_what_clients_and_server_see_follows_the_examples() -> None:
    """Sizes, weights of a mean, steps, labels that a task counts."""
    f = federation(drift=LabelDrift(1), **ARRIVING)
    people = population(linear, f, task=LDAM())
    run = Loop(people, FedAvg(local=LOCAL))
    sizes = [int(f.at(t).partition.sizes[0]) for t in range(5)]
    assert sizes == [3, 5, 7, 9, 12]
    seen: list[Any] = []

    def look(method: Any) -> Any:
        def looking(client: Any, *sent: Any) -> Any:
            seen.append(client)
            return method(client, *sent)

        looking.on_client = True  # type: ignore[attr-defined]
        looking.__name__ = looking.__qualname__ = "local_update"
        return looking

    method = run.runtime.method
    run.runtime.method = lambda name: look(method(name))  # type: ignore[method-assign]
    for t in range(5):
        seen.clear()
        run.round(run.init(), (0, 1), t)
        client = seen[0]
        assert int(client.num_examples) == int(client.train.num_examples) == sizes[t]
        assert int(client.train.num_steps) == 2 * -(-sizes[t] // 4)
        rows = f.at(t).partition.rows(0)
        assert client.train.examples.tolist() == rows.tolist()
        assert torch.equal(client.train.y[rows], (f.train.y[rows] + t) % 3)
        assert client.train.places.tolist() == list(range(sizes[t]))
        assert client.train.notes["since"].tolist() == [
            next(s for s in range(5) if sizes[s] > p) for p in range(sizes[t])
        ]
        assert client.val.num_examples == 0


# ---- engines


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES)
def test_workers_give_the_bits_of_the_loop(changes: str) -> None:
    loop, workers = job(CHANGES[changes], engine="loop"), job(CHANGES[changes], engine="workers", workers=2)
    assert same_end(loop.run(), workers.run())


def test_ranks_whose_rules_differ_have_other_jobs() -> None:
    from fedloom.ranks.rank_engine import Gloo

    digests = set()
    for changes in ({}, ARRIVING, {"arrives": Growing(0.3, 6)}, {"drift": LabelDrift(2)}):
        people = population(linear, federation(**changes))
        engine = object.__new__(Gloo)
        Loop.__init__(engine, people, FedAvg())  # type: ignore[arg-type]
        digests.add(engine._job_digest())
    assert len(digests) == 4


# ---- resume, replay


@pytest.mark.some(1)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_resumed_run_is_the_run_that_was_not_interrupted(changes: str, tmp_path: Path) -> None:
    made, again = (job(CHANGES[changes]) for _ in range(2))
    whole = made.run(tmp_path / "whole")

    def stop(history: History) -> None:
        if history.metrics[-1]["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(tmp_path / "cut", on_round=stop)
    assert same_end(whole, again.run(tmp_path / "cut", resume=True))
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    again.replay(tmp_path / "whole", 4)  # compares cohort, losses, bytes and the checkpoint


@pytest.mark.parametrize("other", [{"arrives": Growing(0.3, 6)}, {}, {"drift": LabelDrift(2), **ARRIVING}])
def test_a_run_goes_on_by_the_rules_by_which_it_began(other: Any, tmp_path: Path) -> None:
    job(ARRIVING, FedAvg(local=LOCAL), rounds=1).run(tmp_path)
    with pytest.raises(SettingError, match="arrives" if "drift" not in other else "drift"):
        job(other, FedAvg(local=LOCAL), rounds=2).run(tmp_path, resume=True)


# ---- what is evaluated


def test_models_are_judged_on_the_data_of_their_round(tmp_path: Path) -> None:
    made = job({"drift": LabelDrift(2)}, FedAvg(local=LOCAL), rounds=3)
    history = made.run(tmp_path)
    f, p = made.federation, made.population
    (weights,) = made.algorithm.global_models(history.server, p.models).values()
    (model,) = p.models.values()
    last = f.at(2)
    assert last.test is not None
    assert f.test is not None
    assert last.local_test is not None
    assert history.metrics[3]["global_accuracy"] == classify(model, weights, p.task, last.test).accuracy
    assert history.metrics[3]["global_accuracy"] != classify(model, weights, p.task, f.test).accuracy
    own = [classify(model, weights, p.task, last.train.select(last.local_test.rows(k))).accuracy for k in range(6)]
    assert history.metrics[3]["personal_accuracy"] == pytest.approx(float(np.mean(own)))
    (before,) = made.algorithm.global_models(RoundReplay(made, tmp_path).replay(2).after, p.models).values()
    assert history.metrics[2]["global_accuracy"] == classify(model, before, p.task, f.test).accuracy


def test_a_share_of_classes_counts_the_labels_of_the_round() -> None:
    """Of every example that the client ever has, since a server of devices knows no more."""
    made = job({"drift": LabelDrift(1), **ARRIVING}, FedAvg(local=LOCAL))
    evaluation = Coordinator(made).running.evaluation
    counts = made.federation.counts()[0]
    shares = _shares(evaluation, [0], 1)[0]
    assert shares.tolist() == pytest.approx((np.roll(counts, 1) / counts.sum()).tolist())


# ---- what is refused


def test_what_needs_the_same_data_in_every_round_is_refused() -> None:
    with pytest.raises(SettingError, match="Centralised trains on the examples of all clients as one"):
        job(ARRIVING, Centralised(local=LOCAL))
    with pytest.raises(SettingError, match="per_client compares a client's models of several rounds"):
        job({"drift": LabelDrift(1)}, per_client=True)
    assert job(ARRIVING, Scaffold(local=LOCAL), rounds=1, per_client=True).run().per_client[1]["judged"]
    with pytest.raises(SettingError, match="FedMeta needs support and query examples on each client, got 1 and 0 of"):
        job({"arrives": Growing(0.1, 5)}, FedMeta(local=LOCAL)).run()


def test_a_rule_that_does_not_fit_is_refused_before_the_run() -> None:
    from fedloom.data import RotationDrift

    with pytest.raises(SettingError, match="square images turn by quarters, got examples of"):
        job({"drift": RotationDrift(1)})
