"""Noise of clients in a run: epsilon so far, who is lost with its noise, what is refused, and runs that go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core import tree
from fedloom.privacy import concentrated
from fedloom.privacy.distributed import Distributed
from tiny import LOCAL, federation, linear, mlp

SETTINGS = fl.RunSettings(rounds=4, cohort_size=4, engine="loop", threads=1, secure_aggregation="range=8")
NOISE = "distributed:noise=1,delta=1e-5,clip=0.5"
BUDGET = "distributed:epsilon=6,delta=1e-5,clip=0.5"


def job(privacy: str = NOISE, **more: Any) -> fl.Job:
    of_job = {k: more.pop(k) for k in ("sampler", "schedule", "algorithm", "model", "faults") if k in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear} | of_job
    return fl.Job(federation=federation(), settings=dataclasses.replace(SETTINGS, privacy=privacy, **more), **given)


def flat(history: Any) -> Any:
    return torch.cat([t.double().flatten() for t in tree.leaves(history.server)])


def loss_of(clients: int, least: int = 4, numbers: int = 15) -> float:
    """The loss of a sum on a fine grid, where rounding costs nothing to speak of."""
    return least / clients / 2


def test_epsilon_is_of_the_client_that_was_asked_most_often() -> None:
    history = job().run()
    asked = np.zeros(6)
    want = [0.0]
    for record in history.metrics[1:]:
        asked[record["clients"]] += 1
        want.append(concentrated.epsilon(asked.max() * loss_of(4), 1e-5))
    assert history.series("epsilon").tolist() == pytest.approx(want, rel=1e-4)
    assert asked.max() < 4 or asked.min() < 4
    assert [record["sum_noise"] for record in history.metrics] == [None, *[pytest.approx(1.0, rel=1e-4)] * 4]
    epsilon = history.measures["epsilon"]
    assert epsilon.title == "Epsilon of a simulation"
    assert "against who sees the sums of uploads, the server too: the largest of all clients" in epsilon.meaning
    assert "with noise of their own by the run's seed; not of what this run tells beside them (who" in epsilon.meaning


@pytest.mark.some(1)
@pytest.mark.parametrize("algorithm", [fl.FedAvg, fl.Scaffold, fl.PFedSD])
def test_masks_change_no_bit(algorithm: Any) -> None:
    made = algorithm(local=LOCAL)
    clear, masked = (job(algorithm=made, rounds=2, secure_aggregation=f"range=8{m}").run() for m in ("", ",masks=true"))
    assert torch.equal(flat(clear), flat(masked))
    assert clear.metrics[1]["epsilon"] == masked.metrics[1]["epsilon"]


@pytest.mark.slow
def test_little_noise_gives_nearly_the_mean_and_each_round_has_its_own() -> None:
    still = fl.FedAvg(local=dataclasses.replace(LOCAL, optimiser=fl.SGD(lr=1e-9)))
    little = job("distributed:noise=0.001,delta=1e-5,clip=100", secure_aggregation="range=200", rounds=1).run()
    plain = job("none", secure_aggregation="none", rounds=1, algorithm=fl.FedAvg(local=LOCAL)).run()
    torch.testing.assert_close(flat(little), flat(plain), rtol=0, atol=0.2)
    one, two = (flat(job(algorithm=still, rounds=n).run()) for n in (1, 2))
    start = flat(job("none", secure_aggregation="none", algorithm=still, rounds=1).run())
    first, second = one - start, two - one
    assert not torch.allclose(first, second, rtol=0.1)
    assert 0.5 * 0.5 / 4 < float(first.std()) < 2 * 0.5 / 4
    assert not torch.equal(one, flat(job(algorithm=still, rounds=1, seed=1).run()))


@pytest.mark.slow
def test_who_is_lost_takes_its_noise_away_and_epsilon_says_so() -> None:
    """Noise is sized for three; the round of all four has more, and the round of three as much as was asked for."""
    asked = f"{NOISE},lost=1"
    whole, lost = (job(asked, rounds=1, faults=faults).run() for faults in (None, first_of_each))
    record = lost.metrics[1]
    assert len(record["failed"]) == 1
    assert record["sum_noise"] == pytest.approx(1.0, rel=1e-4)
    assert whole.metrics[1]["sum_noise"] == pytest.approx(np.sqrt(4 / 3), rel=1e-4)
    for history, clients in ((whole, 4), (lost, 3)):
        want = concentrated.epsilon(loss_of(clients, 3), 1e-5)
        assert history.metrics[1]["epsilon"] == pytest.approx(want, rel=1e-4)


def first_of_each(round: int, exchange: int, client: int) -> str | None:
    return "lost" if client == job().trainees.sampler(round, np.ones(6, np.int64), 4)[0] else None


@pytest.mark.slow
def test_without_enough_clients_there_is_no_sum_and_it_costs_nothing() -> None:
    history = job(rounds=2, faults=first_of_each).run()
    assert history.series("epsilon").tolist() == [0, 0, 0]
    assert torch.equal(flat(history), flat(job("none", secure_aggregation="none", rounds=2, faults=all_lost).run()))


def all_lost(round: int, exchange: int, client: int) -> str | None:
    return "lost"


def test_noise_is_found_for_the_rounds_that_ask_a_client() -> None:
    history = job(BUDGET).run()
    assert 5.98 < history.metrics[-1]["epsilon"] <= 6
    with_losses = job(f"{BUDGET},lost=1").run()
    assert with_losses.metrics[-1]["sum_noise"] == pytest.approx(
        history.metrics[-1]["sum_noise"] * np.sqrt(4 / 3), 1e-3
    )


def test_a_budget_ends_a_run_that_is_prolonged(tmp_path: Path) -> None:
    first = job(BUDGET).run(tmp_path / "run")
    longer = job(BUDGET, rounds=12).run(tmp_path / "run", resume=True)
    assert len(longer.metrics) >= len(first.metrics) == 5
    assert longer.stopped is not None
    assert longer.stopped.endswith("would pass the epsilon of 6 that was asked for, for a client that is asked in it")
    assert max(longer.series("epsilon")) <= 6
    assert longer.metrics[-1]["sum_noise"] == first.metrics[-1]["sum_noise"]


@pytest.mark.some(1)
@pytest.mark.parametrize("privacy", [NOISE, BUDGET])
def test_a_run_that_goes_on_has_the_same_bits_and_the_same_epsilon(privacy: str, tmp_path: Path) -> None:
    whole = job(privacy).run(tmp_path / "whole")

    def killed(history: fl.History) -> None:
        if len(history.metrics) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(privacy).run(tmp_path / "killed", on_round=killed)
    again = job(privacy).run(tmp_path / "killed", resume=True)
    assert [dict(m) for m in again.metrics] == [dict(m) for m in whole.metrics]
    assert torch.equal(flat(again), flat(whole))


@pytest.mark.slow
def test_engines_agree() -> None:
    loop, workers, stacked = (
        flat(job(engine=engine, secure_aggregation="range=8,masks=true", **more).run())
        for engine, more in (("loop", {}), ("workers", {"workers": 2}), ("stacked", {}))
    )
    assert torch.equal(loop, workers)
    torch.testing.assert_close(stacked, loop, rtol=0, atol=1e-5)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = mlp(), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        return self.body(self.norm(x))


class Own(fl.Schedule):
    """A schedule of one's own."""


@pytest.mark.parametrize(
    ("privacy", "more", "message"),
    [
        (NOISE, {"secure_aggregation": "none"}, "is of sums that nobody sees into, got secure_aggregation = 'none': a"),
        (NOISE, {"schedule": Own()}, "asks whole cohorts, got schedule = Own: leave one of them out"),
        (NOISE, {"spares": 1}, "asks whole cohorts, got spares = 1"),
        (NOISE, {"model": {"a": linear, "b": mlp}}, "is of one network, got 2 architectures"),
        (NOISE, {"aggregator": "median"}, "shows the server no single upload, got aggregator = 'median'"),
        (NOISE, {"secure_aggregation": "range=0.6"}, "has range=0.6: raise the range to"),
        (NOISE, {"cohort_size": 2}, "adds up 3 clients or more, and a round asks 2"),
        (NOISE, {"algorithm": fl.FedExP(local=LOCAL)}, "FedExP uploads single numbers beside named tensors"),
        (NOISE, {"algorithm": fl.LocalOnly(local=LOCAL)}, "only the mean is used, and LocalOnly needs each: leave sec"),
        (NOISE, {"algorithm": fl.FedAvg(local=LOCAL), "model": Counting}, "the mean of norm.num_batches_tracked would"),
        (f"{NOISE},lost=2", {}, "cohort of 4 there is no sum under masks without 3 clients, got lost = 2: lower lost "),
        (f"{NOISE},lost=-1", {}, "lost of privacy is 0 or more, got -1"),
        (NOISE.replace("1e-5", "0.2"), {}, "delta is below one over the number of clients, 1 / 6, .* got 0.2: lower d"),
        (NOISE.replace("noise=1", "noise=0"), {}, "noise of privacy is above 0, got 0"),
        (NOISE.replace("0.5", "0"), {}, "clip of privacy is above 0, got 0"),
        ("distributed:delta=1e-5,clip=1", {}, "privacy is epsilon or noise, and delta and clip, got .*: write distrib"),
        ("distributed:epsilon=1e-6,delta=1e-5,clip=1", {}, "no noise gives epsilon = 1e-06 to a client that is asked"),
    ],
)
def test_what_does_not_go_with_it_is_refused(privacy: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(fl.SettingError, match=message):
        job(privacy, **more).check()


def test_rounds_of_devices_that_were_lost_count_as_those_of_the_fewest(tmp_path: Path) -> None:
    part = Distributed.of(job(f"{NOISE},lost=1"))
    part.simulated, part.sizes = False, [15]

    class Files:
        path = tmp_path

    class Run:
        files, done = Files, 2

    (tmp_path / "clients_asked.txt").write_text("1 0 1 2 3\n2 0 1 2 3\n2 0 4 5 3\n3 5 1 2 3\n")
    part.begin(Run)  # type: ignore[arg-type]
    worst = loss_of(3, 3)
    assert part.lost.tolist() == pytest.approx([worst, 2 * worst, 2 * worst, 2 * worst, 0, worst], rel=1e-4)
