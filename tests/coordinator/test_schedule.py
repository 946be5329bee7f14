"""A schedule from outside: rounds that do not wait, from versions of the model that are not the newest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_resume import interrupted, same_end

import fedloom as fl
from fedloom.core import tree
from fedloom.core.random import generator
from fedloom.engines.engine import Engine
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=6, cohort_size=2, engine="loop", threads=1, keep_every=3)


class Buffered(fl.Schedule):
    """FedBuff (Nguyen et al., AISTATS 2022): the server moves as soon as `size` of `under_way` clients have answered.

    A client that answers begins anew from the model of then. Each takes its own time, drawn once. What it learnt from
    an older version is added as a difference, over the square root of one more than its age in rounds.
    """

    def __init__(self, size: int = 2, under_way: int = 4, oldest: int = 5, seed: int = 0) -> None:
        self.size, self.under_way, self.oldest, self.seed = size, under_way, oldest, seed

    def begin(self, run: fl.Running) -> None:
        server = run.engine.init()
        clients = torch.arange(self.under_way)
        self.state = {
            "versions": tree.stack([server] * self.oldest),  # of rounds modulo `oldest`
            "clients": clients, "since": torch.zeros_like(clients), "due": self.times(clients.tolist(), 0),
        }  # fmt: skip

    def times(self, clients: Sequence[int], draw: int) -> torch.Tensor:
        seconds = [float(generator(self.seed, "speed", k).lognormal()) for k in clients]
        return torch.tensor(seconds, dtype=torch.float64)

    def asked(self, run: fl.Running, round: int) -> tuple[list[int], dict[str, Any]]:
        first = torch.argsort(self.state["due"], stable=True)[: self.size]
        ages = round - self.state["since"][first]
        return self.state["clients"][first].tolist(), {"server_age": float(ages.double().mean())}

    def step(self, engine: Engine, server: dict[str, Any], clients: Sequence[int], round: int) -> dict[str, Any]:
        kept = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in self.state.items()}
        new = server
        for number, k in enumerate(clients):
            place = int((kept["clients"] == k).nonzero()[0])
            began = tree.take(kept["versions"], int(kept["since"][place]) % self.oldest)
            after, age = engine.round(began, [k], round, joins=number > 0), round - int(kept["since"][place])
            new = _moved(new, after, began, (1 + age) ** -0.5 / len(clients))
            others = sorted({*range(engine.population.num_clients)} - {*kept["clients"].tolist()} | {k})
            chosen = others[int(generator(self.seed, "next", round, k).integers(len(others)))]
            kept["clients"][place], kept["since"][place] = chosen, round + 1
            kept["due"][place] += self.times([chosen], round)[0]
        at = torch.arange(self.oldest) == (round + 1) % self.oldest
        kept["versions"] = tree.map_tree(
            lambda old, now: torch.where(at.view(-1, *[1] * now.ndim), now, old), kept["versions"], new
        )
        self.state = kept
        return new


def _moved(server: Any, after: Any, began: Any, share: float) -> Any:
    return tree.map_tree(lambda now, new, old: now + share * (new - old), server, after, began)


def job(schedule: fl.Schedule | None, **more: Any) -> fl.Job:
    settings = dataclasses.replace(SETTINGS, **more)
    return fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=linear, settings=settings, schedule=schedule
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_rounds_that_do_not_wait_learn(engine: Any) -> None:
    history = job(Buffered(), rounds=20, engine=engine).run()
    assert history.series("global_accuracy")[-1] > 0.7
    assert history.series("server_age")[0] == 0
    assert history.series("server_age").max() > 1  # somebody answers late, from an older model
    assert all(len(record["clients"]) == 2 for record in history.metrics[1:])
    both = history.metrics[1]  # what two clients have sent, though each was asked by itself
    assert both["bytes_up"] == 2 * sum(t.nbytes for t in tree.leaves(history.server))


def test_one_that_waits_for_all_from_the_newest_model_is_a_round_of_fedavg() -> None:
    """Of clients with as many examples each: the mean of differences is the difference to the mean."""

    class Waits(Buffered):
        def times(self, clients: Sequence[int], draw: int) -> torch.Tensor:
            return torch.ones(len(clients), dtype=torch.float64)

    waiting = job(Waits(size=6, under_way=6), rounds=3, cohort_size=6, dtype="float64").run()
    rounds = job(None, rounds=3, cohort_size=6, dtype="float64").run()
    assert np.allclose(waiting.series("global_loss"), rounds.series("global_loss"), rtol=1e-9)


def test_it_goes_on_with_what_is_under_way(tmp_path: Path) -> None:
    whole = job(Buffered()).run(tmp_path / "whole")
    interrupted(job(Buffered()), tmp_path / "cut", after=4)
    again = job(Buffered()).run(tmp_path / "cut", resume=True)
    assert same_end(whole, again)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    with pytest.raises(fl.SettingError, match="schedule was"):
        job(None).run(tmp_path / "cut", resume=True)
