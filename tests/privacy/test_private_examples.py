"""The kind `examples` of the setting privacy: epsilon of each client in the records, noise for a budget, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from convolved_losses import convolved
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.privacy import accountant
from fedloom.privacy.each_client import Asked
from fedloom.privacy.private_examples import Examples, _largest, planned
from fedloom.tasks import SVM
from fedloom.testing.in_process import InProcess
from site_devices import members, serve, settings as site_settings, source_of_server, write_sites
from tiny import LOCAL, examples, federation, linear

SETTINGS = fl.RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1)
NOISE = "examples:noise=2,delta=1e-5,clip=0.5"


def job(privacy: str = NOISE, **more: Any) -> fl.Job:
    of_job = {name: more.pop(name) for name in ("algorithm", "model", "federation", "task") if name in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear, "federation": federation()} | of_job
    return fl.Job(settings=dataclasses.replace(SETTINGS, privacy=privacy, **more), **given)


def unequal() -> fl.Federation:
    """Clients with 4, 12 and 24 examples."""
    train, ends = examples(40), (0, 4, 16, 40)
    return fl.federate(train, fl.data.by_lists([[*range(a, b)] for a, b in itertools.pairwise(ends)]))


def test_epsilon_of_each_client_is_of_its_own_rate_and_steps() -> None:
    clients = unequal()
    history = job(federation=clients).run()  # all three in each round
    sizes = clients.partition.sizes.tolist()
    assert sizes[0] < 4 < sizes[1] < sizes[2]
    each = [(min(1.0, 4 / n), 2 * -(-n // 4)) for n in sizes]  # rate, steps in a round of 2 epochs
    for t, record in enumerate(history.metrics):
        spent = [accountant.epsilon(t * steps, rate, 2.0, 1e-5) for rate, steps in each]
        assert record["epsilon"] == pytest.approx(max(spent))
        assert record["epsilon_mean"] == pytest.approx(np.mean(spent))
    assert history.measures["epsilon"].title == "Epsilon of a simulation"


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(200))
def test_epsilon_is_that_of_losses_that_are_convolved_for_each_client(seed: int) -> None:
    """Three clients of any sizes, that any number of rounds have asked, under any plan of training."""
    draw = np.random.default_rng(seed)
    noise, size = round(10 ** draw.uniform(-0.2, 0.8), 2), int(10 ** draw.uniform(0, 2))
    part = Examples(Asked(delta=1e-5, epsilon=None, noise=noise, clip=1.0), job())
    plan = fl.Local(epochs=int(draw.integers(1, 4)), batch_size=size, optimiser=fl.SGD(lr=0.1))
    sizes, asked = (10 ** draw.uniform(0.5, 3, 3)).astype(np.int64), draw.integers(0, 8, 3)
    asked[0] += 1
    part.each, part.rate = planned(sizes, plan), np.minimum(1.0, size / sizes)
    steps = [plan.epochs * math.ceil(n / min(size, n)) * t for n, t in zip(sizes, asked, strict=True)]
    spent = [
        convolved(t, min(1.0, size / n), noise, 1e-5) if t else 0.0 for t, n in zip(steps, sizes.tolist(), strict=True)
    ]
    assert part._epsilon(asked) == pytest.approx(max(spent), rel=0.01)


@pytest.mark.slow
def test_clients_are_counted_by_the_rounds_that_asked_them(tmp_path: Path) -> None:
    whole = job(cohort_size=2, rounds=6).run(tmp_path / "run")
    asked = [k for record in whole.metrics[1:] for k in record["clients"]]
    most = max(map(asked.count, asked))
    assert most >= 2
    assert whole.metrics[-1]["epsilon"] == pytest.approx(accountant.epsilon(most * 6, 1 / 3, 2.0, 1e-5))
    job(cohort_size=2, rounds=5).run(tmp_path / "part")
    assert job(cohort_size=2, rounds=6).run(tmp_path / "part", resume=True).metrics == whole.metrics


@pytest.mark.slow
def test_a_budget_gives_the_noise_that_keeps_it() -> None:
    history = job("examples:epsilon=3,delta=1e-5,clip=0.5").run()
    assert 2.9 < history.metrics[-1]["epsilon"] <= 3
    assert job("examples:noise=0,delta=1e-5,clip=0.5").run().metrics[-1]["epsilon"] is None


@pytest.mark.slow
def test_a_private_run_learns() -> None:
    data = federation(per_client=60)
    local = fl.Local(epochs=5, batch_size=16, optimiser=fl.SGD(lr=0.5))
    private = job("examples:noise=1,delta=1e-4,clip=1", federation=data, algorithm=fl.FedAvg(local=local)).run()
    assert private.metrics[-1]["global_accuracy"] > 0.6, private.metrics[-1]


def test_planned_steps_are_those_of_a_run() -> None:
    sizes = np.array([1, 4, 5, 12])
    assert planned(sizes, LOCAL).tolist() == [2, 2, 4, 6]
    assert planned(sizes, dataclasses.replace(LOCAL, steps=7)).tolist() == [7] * 4


def test_only_what_no_other_client_exceeds_is_accounted_for() -> None:
    pairs = _largest(np.array([6, 12, 2, 6, 0]), np.array([0.3, 0.1, 0.2, 0.2, 1.0]))
    assert pairs == [(12, 0.1), (6, 0.3)]


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ("examples:noise=1,clip=1", "epsilon or noise, and delta and clip"),
        ("examples:noise=1,epsilon=2,clip=1,delta=1e-5", "epsilon or noise, and delta and clip"),
        ("examples:noise=1,clip=0,delta=1e-5", "clip of privacy is above 0"),
        ("examples:noise=-1,clip=1,delta=1e-5", "noise of privacy is 0 or more"),
        ("examples:epsilon=0,clip=1,delta=1e-5", "epsilon of privacy is above 0"),
        ("examples:noise=1,clip=1,delta=2", "delta of privacy is above 0 and below 1"),
        ("examples:noise=1,clip=1,delta=0.2", "delta is below one over the largest number of examples"),
    ],
)
def test_what_is_written_otherwise_is_refused(privacy: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job(privacy)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": normalised}, "statistics of the whole batch in .*take nn.GroupNorm"),
        ({"task": LDAM()}, "trains by label counts of a client"),
        ({"task": SVM()}, "trains by more than a mean loss"),
        ({"algorithm": fl.Centralised(local=LOCAL)}, "all clients in one place"),
        ({"algorithm": fl.QFedAvg(local=LOCAL)}, "clients of QFedAvg read their training examples beside these"),
        ({"algorithm": fl.FedLC(local=LOCAL)}, "clients of FedLC upload what depends on their examples"),
        ({"federation": federation(arrives=fl.data.Growing(0.5, 2))}, "counts how often the same examples are drawn"),
    ],
    ids=["batch_norm", "ldam", "svm", "centralised", "q_fedavg", "fedlc", "arrives"],
)
def test_what_clipped_gradients_do_not_cover_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job(**more)


@pytest.mark.slow
def test_group_norm_is_taken() -> None:
    model = lambda: nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Linear(6, 3))  # noqa: E731
    assert job(model=model).run().metrics[-1]["epsilon"] > 0


def test_devices_draw_for_themselves() -> None:
    settings = job().settings
    rule = Examples.gradients_of(settings)
    assert rule.secret
    assert (rule.noise, rule.clip) == (2.0, 0.5)
    with pytest.raises(SettingError, match="devices know the noise by the settings of their run"):
        Examples.gradients_of(dataclasses.replace(settings, privacy="examples:epsilon=3,delta=1e-5,clip=0.5"))


def serving(folder: Path, rounds: int = 3) -> fl.Job:
    """Return a run of five devices, of which three are asked in a round."""
    words = site_settings(
        "fedavg",
        **{"run.rounds": rounds, "run.cohort_size": 3, "run.eval_every": 9, "run.privacy": NOISE},
    )
    return serve(folder, words, InProcess(members(folder)), source_of_server(folder))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Kiel")
def test_with_devices_draws_are_their_own_and_rounds_that_are_lost_count(tmp_path: Path) -> None:
    """A process is killed in round 2; who goes on asks the devices of round 2 anew."""
    write_sites(tmp_path)

    def killed(history: fl.History) -> None:
        if len(history.metrics) == 2:
            raise KeyboardInterrupt

    whole = serving(tmp_path).run(tmp_path / "whole")
    assert whole.measures["epsilon"].title == "Epsilon"
    assert "with draws and noise of each device's entropy" in whole.measures["epsilon"].meaning
    assert whole.manifest["fixed"]["gradients"]["entropy"] == "of the system"
    assert [record["train_loss"] for record in whole.metrics[1:]] == [None] * 3
    with pytest.raises(KeyboardInterrupt):
        serving(tmp_path).run(tmp_path / "out", on_round=killed)
    log, asked = tmp_path / "out/clients_asked.txt", [record["clients"] for record in whole.metrics[1:]]
    assert log.read_text() == f"{' '.join(map(str, asked[0]))}\n"
    log.write_text(log.read_text() + 9 * f"{' '.join(map(str, asked[1]))}\n")  # what processes leave that are killed
    again = serving(tmp_path).run(tmp_path / "out", resume=True)
    assert [record["clients"] for record in again.metrics[1:]] == asked
    assert again.metrics[1]["epsilon"] == whole.metrics[1]["epsilon"]
    assert again.metrics[2]["epsilon"] > 1.5 * whole.metrics[2]["epsilon"]
    for one, other in zip(tree.leaves(again.server), tree.leaves(whole.server), strict=True):
        assert not torch.equal(one, other)
