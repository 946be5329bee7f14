"""Uploads beside the median of their kind: what is refused, what a checkpoint keeps, and when a run stops."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom import Client, Job, RunSettings, Weights, on_client
from fedloom.algorithms import FedAvg
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.types import Weighted
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.norms import LEAST, ROUNDS, Norms, beyond, median, upload_norms
from fedloom.engines.stacked import Stacked
from fedloom.testing.compare import close
from fedloom.testing.in_process import DevicesInProcess
from tiny import LOCAL, federation, linear, population

LIAR = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Boastful(FedAvg):
    """From round `begins` on, counted from 0, clients from `liar` on upload `times` what they have learnt."""

    begins: int = 0
    liar: int = LIAR
    times: float = 100.0

    @on_client
    def local_update(self, client: Client[Any], sent: Weights, who: torch.Tensor) -> tuple[Any, Weighted[Weights]]:
        state, upload = super().local_update(client, sent)
        lies = (who >= self.liar) & (client.round >= self.begins)
        times = torch.where(lies, torch.tensor(self.times, dtype=torch.float64), 1.0)
        return state, dataclasses.replace(upload, value=tree.map_tree(lambda t: (t * times).to(t.dtype), upload.value))

    def round(self, w: Weights, cohort: Any) -> Weights:
        who = torch.tensor(cohort.clients)
        return w.merge(cohort.reduce(self.local_update, self.down(w), scatter=(who,)).mean)


class Listed:
    """So many clients a round, the same ones."""

    def __init__(self, *clients: int) -> None:
        self.clients = clients

    def __call__(self, round: int, sizes: Any, count: int) -> tuple[int, ...]:
        return self.clients[:count]


def job(rounds: int, clients: tuple[int, ...], algorithm: Any, **more: Any) -> Job:
    settings = RunSettings(
        **{"rounds": rounds, "cohort_size": len(clients), "engine": "loop", "compilation": "none", "median_bound": 5.0}
        | more
    )
    return Job(algorithm=algorithm, federation=federation(), model=linear, settings=settings, sampler=Listed(*clients))


def failed(history: Any) -> list[dict[str, str]]:
    return [m.get("failed", {}) for m in history.metrics[1:]]


def test_a_median_is_the_lower_one_of_enough() -> None:
    assert median([1.0, 2.0]) is None
    assert median([5.0, 1.0, 2.0]) == 2.0
    assert median([5.0, 1.0, 2.0, 1e30]) == 2.0
    assert median([0.0, 0.0, 7.0]) is None  # nothing can be measured by it


def test_norms_count_from_the_next_round_on_and_for_some_rounds() -> None:
    norms = Norms()
    norms.add("a", [1.0, 1.0, 1.0])
    assert norms.median("a") is None
    norms.end_round()
    assert norms.median("a") == 1.0
    assert norms.median("b") is None
    for _ in range(ROUNDS):
        norms.add("a", [3.0] * LEAST)
        norms.end_round()
        norms.add("b", [])
        norms.end_round()
    assert norms.saved() == {"a": [[3.0] * LEAST] * ROUNDS}
    assert Norms.read(json.loads(json.dumps(norms.saved()))).saved() == norms.saved()
    for raw in ([], {"a": 1}, {"a": [["1"]]}, {"a": [[-1.0]]}, {"a": [[1.0]] * (ROUNDS + 1)}, {"a": [[True]]}):
        with pytest.raises(ValueError, match="norms are lists of numbers"):
            Norms.read(raw)


def test_weights_of_means_are_no_part_of_a_norm() -> None:
    upload = Weighted(value={"w": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, weight=torch.tensor([1e9, 1e9]))
    norms = upload_norms((upload, torch.tensor([7, 7])), 2)
    assert norms.tolist() == [5.0, 1.0]
    assert list(beyond([8, 9], norms, 4.0, 1.0)) == [8]
    assert not beyond([8, 9], norms, 5.0, 1.0)
    assert list(beyond([8, 9], torch.tensor([float("nan"), 1.0]), 1e9, 1.0)) == [8]
    words = beyond([8], norms[:1], 4.0, 1.0)[8]
    assert words == (
        "the upload has a norm of 5, and at most 4 times the median of its kind, 1, is taken: raise run.median_bound "
        "if it is sound"
    )


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [Loop, Stacked, DevicesInProcess])
def test_in_the_first_round_the_cohort_s_own_median_counts(kind: Any) -> None:
    people, algorithm = population(), Boastful(local=LOCAL, liar=5)
    bounded = kind(people, algorithm, Options(median_bound=5.0))
    before = bounded.init()
    after = bounded.round(before, [5, 0, 2, 1], 0)
    assert [f.client for f in bounded.traffic.failed] == [5]
    assert "times the median of its kind" in bounded.traffic.failed[0].reason
    loses = Loop(people, algorithm, Options(faults=lambda t, e, k: "lost" if k == 5 else None))
    close(loses.round(before, [0, 1, 2, 5], 0), after, "the server state", 1e-5)
    assert (bounded.traffic.accepted, bounded.traffic.refused) == (3, 1)
    bounded.close()


@pytest.mark.slow
def test_later_the_median_of_the_last_rounds_counts() -> None:
    """Of two clients there is no median; after two rounds there are four norms, and the liar is found by these."""
    history = job(4, (0, LIAR), Boastful(local=LOCAL, begins=2)).run()
    assert [sorted(lost) for lost in failed(history)] == [[], [], [str(LIAR)], [str(LIAR)]]
    assert not any(failed(job(4, (0, LIAR), Boastful(local=LOCAL, begins=2), median_bound=None).run()))
    assert not any(failed(job(2, (0, LIAR), Boastful(local=LOCAL, begins=1)).run()))


def test_refused_uploads_move_no_median() -> None:
    engine = Loop(population(), Boastful(local=LOCAL), Options(median_bound=5.0))
    engine.round(engine.init(), [0, 1, 2, LIAR], 0)
    ((norms,),) = engine.norms.saved().values()
    assert len(norms) == 3
    assert max(norms) < 5 * min(norms)


@pytest.mark.slow
def test_a_resumed_run_has_the_norms_of_the_one_that_nobody_stopped(tmp_path: Path) -> None:
    algorithm = Boastful(local=LOCAL, begins=2)
    whole = job(5, (0, LIAR), algorithm).run(tmp_path / "whole")
    assert [sorted(lost) for lost in failed(whole)] == [[], [], *[[str(LIAR)]] * 3]
    job(2, (0, LIAR), algorithm).run(tmp_path / "run")
    (kind,) = json.loads((tmp_path / "run/checkpoints/00000002.json").read_text())["norms"]
    assert kind.startswith("local_update 0 ")
    assert job(5, (0, LIAR), algorithm).run(tmp_path / "run", resume=True).metrics == whole.metrics
    assert job(5, (0, LIAR), algorithm).replay(tmp_path / "run", 4).clients == [0, LIAR]


def test_a_run_whose_every_answer_is_refused_stops_and_says_so(tmp_path: Path) -> None:
    spoilt = Boastful(local=LOCAL, liar=0, times=1e39)  # infinite in float32
    history = job(6, (0, 1, 2), spoilt, on_nonfinite="refuse").run(tmp_path / "run")
    assert history.stopped is not None
    assert history.stopped.startswith("all 3 answers of the last 1 round were refused, and a run that continues trains")
    assert len(history.metrics) == 2
    again = job(6, (0, 1, 2), spoilt, on_nonfinite="refuse").run(tmp_path / "run", resume=True)
    assert (again.stopped, len(again.metrics)) == (history.stopped, 2)
    # One or two may be those that lie; the third in a row is another matter.
    assert len(job(6, (0,), spoilt, on_nonfinite="refuse").run().metrics) == 1 + LEAST


def test_some_refused_answers_stop_nothing() -> None:
    history = job(5, (0, 1, 2, LIAR), Boastful(local=LOCAL)).run()
    assert (history.stopped, len(history.metrics)) == (None, 6)
    assert "all_refused" not in history.metrics[-1]


def test_sums_cannot_be_measured() -> None:
    with pytest.raises(SettingError, match="median_bound = 5 looks at each upload, and partial_sums = 2 sends sums"):
        Loop(population(), FedAvg(local=LOCAL), Options(median_bound=5.0, partial_sums=2))
