"""FedBuff and FedAsync beside arithmetic from the papers in NumPy, and what is under way when a run is killed."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.analyses import AnalysedRun
from fedloom.coordinator import RoundReplay
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer
from fedloom.engines.non_finite import first_bad_loss
from fedloom.virtual_time.clock import Clock
from fedloom.virtual_time.uploads_under_way import _losses, _summed_up, answer_of
from tiny import CLASSES, LOCAL, federation, linear

CLOCK = "lognormal:example=0.01,spread=1,down=20,up=5"
EQUAL = "classes:phone=1/0.02/20/5"
SETTINGS = fl.RunSettings(
    rounds=12, cohort_size=4, engine="loop", threads=1, dtype="float64", clock=CLOCK, asynchrony="fedbuff:size=2"
)
LR, EPOCHS = 0.1, 3
FULL = fl.Local(epochs=EPOCHS, batch_size=64, optimiser=fl.SGD(lr=LR))


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Clients in the order of their numbers, from that of the round on."""

    def __call__(self, round: int, sizes: Any, cohort_size: int) -> list[int]:
        return [(round + i) % len(sizes) for i in range(cohort_size)]


def job(algorithm: Any = None, model: Any = linear, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL, aggregation="uniform"), federation=federation(), model=model,
        settings=dataclasses.replace(SETTINGS, **more),
    )  # fmt: skip


def killed(made: fl.Job, directory: Path, after: int) -> None:
    def stop(history: fl.History) -> None:
        if history.metrics[-1]["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.run(directory, on_round=stop)


def same_end(one: fl.History, other: fl.History) -> bool:
    states = sorted(one.clients) == sorted(other.clients)
    pairs = [(one.server, other.server), *((one.clients[k], other.clients[k]) for k in one.clients)]
    leaves = (zip(tree.leaves(a), tree.leaves(b), strict=True) for a, b in pairs)
    return states and all(torch.equal(a, b) for each in leaves for a, b in each)


# ---- by hand: softmax regression w [3, 5] with a column of ones, full-batch descent, a heap of who comes


def descended(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    for _ in range(EPOCHS):
        z = ones @ w.T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        w = w - LR * (p - np.eye(CLASSES)[y]).T @ ones / len(x)
    return w


def by_hand(
    w: np.ndarray, versions: int, places: int, size: int, move: Callable[[np.ndarray, list[Any]], np.ndarray]
) -> tuple[np.ndarray, list[float], list[float]]:
    """The model after some versions, mean ages, and moments. `move` makes a version of (age, sent, trained)."""
    people = federation()
    rows = [people.partition.rows(k) for k in range(people.num_clients)]
    data = [(people.train.x[r].double().numpy(), people.train.y[r].numpy()) for r in rows]
    clock, nbytes = Clock.of(CLOCK, 0, len(rows)), w.size * 8
    heap, under_way, ages, times = list[Any](), set[int](), list[float](), list[float]()
    now = 0.0
    for version in range(versions):
        buffer, waiting = list[Any](), set[int]()
        while True:
            for k in ((version + i) % len(rows) for i in range(len(rows))):
                if len(under_way) < places and k not in under_way | waiting:
                    took = clock.seconds(k, version, EPOCHS * len(rows[k]), EPOCHS, 0.0, nbytes, nbytes)
                    heapq.heappush(heap, (now + took, k, version, w, descended(w, *data[k])))
                    under_way.add(k)
            now, k, since, sent, trained = heapq.heappop(heap)
            under_way.remove(k)
            waiting.add(k)
            buffer.append((version - since, sent, trained))
            if len(buffer) == size:
                break
        ages.append(float(np.mean([age for age, _, _ in buffer])))
        times.append(now)
        w = move(w, buffer)
    return w, ages, times


def fedbuff(w: np.ndarray, buffer: list[Any]) -> np.ndarray:
    """Algorithm 1: w - eta / K * sum of s(age) (sent - trained), eta = 1, s(age) = 1 / sqrt(1 + age)."""
    total: np.ndarray = sum((sent - trained) / np.sqrt(1 + age) for age, sent, trained in buffer)
    return w - total / len(buffer)


def fedasync(w: np.ndarray, buffer: list[Any]) -> np.ndarray:
    """Algorithm 1: (1 - alpha_t) w + alpha_t trained, alpha_t = alpha s(age), s hinged with a = 10 and b = 1."""
    ((age, _, trained),) = buffer
    alpha = 0.6 * (1 if age <= 1 else 1 / (10 * (age - 1) + 1))
    return (1 - alpha) * w + alpha * trained


@pytest.mark.parametrize(
    ("asynchrony", "size", "move"),
    [("fedbuff:size=3", 3, fedbuff), ("fedasync:alpha=0.6,staleness=hinge:10:1", 1, fedasync)],
)
def test_models_are_those_of_the_papers_by_hand(asynchrony: str, size: int, move: Any) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, CLASSES).double()
    start = torch.cat([net.weight, net.bias[:, None]], dim=1).detach().numpy()
    made = job(fl.FedAvg(local=FULL, aggregation="uniform"), net, asynchrony=asynchrony)
    history = dataclasses.replace(made, sampler=InTurn()).run()
    expected, ages, times = by_hand(start, 12, 4, size, move)
    assert max(ages) > 1
    assert history.series("staleness").tolist() == pytest.approx(ages)
    assert history.series("virtual_seconds").tolist() == pytest.approx([0.0, *times], rel=1e-12)
    params = next(iter(history.server.values())).params
    found = torch.cat([params["weight"], params["bias"][:, None]], dim=1).numpy()
    assert abs(found - expected).max() < 1e-10
    assert abs(found - start).max() > 0.1


# ---- beside rounds that wait


@pytest.mark.parametrize("kind", ["fedbuff:size=3", "fedasync:alpha=1", "deadline:seconds=5"])
def test_where_all_are_equally_fast_rounds_are_those_that_wait(kind: str) -> None:
    """To the bit: what is not late is taken as it is. FedAsync takes one at a time, so its cohort is one."""
    size = 1 if "fedasync" in kind else 3
    waits = job(asynchrony="none", clock="none", rounds=3, cohort_size=size).run()
    found = job(asynchrony=kind, clock=EQUAL, rounds=3, cohort_size=size).run()
    assert found.series("staleness").max() == 0
    assert [r["clients"] for r in found.metrics[1:]] == [sorted(r["clients"]) for r in waits.metrics[1:]]
    gap = max(abs(found.series("global_loss") - waits.series("global_loss")))
    assert gap <= (1e-12 if "fedasync" in kind else 0)


def test_nobody_trains_twice_from_one_version() -> None:
    """Batches are drawn of (version, client), so two answers of one client from one version would be the same."""
    made = job(rounds=20)
    starts, under_way = set[tuple[int, int]](), set[int]()
    from fedloom.coordinator.rounds import Coordinator

    run = Coordinator(made)
    run.running.server = run.engine.init()
    for version in range(20):
        run.run_round()
        at = run.assembly.schedule.at  # type: ignore[attr-defined]
        new = {(version, k) for k in at.started}
        assert len(new) == len(at.started)
        assert not new & starts
        assert not {k for _, k in new} & under_way
        starts |= new
        under_way = {*at.left}
        assert len(under_way) <= 4
        places = [one.place for one in at.left.values()]
        assert sorted({*places}) == sorted(places)
        assert {run.engine.keys.row("under_way", place) for place in places} <= {*run.engine.states}


# ---- engines, and runs that are killed


@pytest.mark.slow
def test_a_stack_agrees_with_the_loop() -> None:
    loop, stack = job(rounds=5).run(), job(rounds=5, engine="stacked").run()
    assert np.allclose(loop.series("global_loss"), stack.series("global_loss"), rtol=1e-9)
    assert loop.series("bytes_down").tolist() == stack.series("bytes_down").tolist()


@pytest.mark.slow
def test_workers_have_the_bits_of_the_loop() -> None:
    loop, workers = job(rounds=5).run(), job(rounds=5, engine="workers", workers=2).run()
    assert loop.metrics == workers.metrics


@pytest.mark.some(1)
@pytest.mark.parametrize("after", [3, 1, 2, 4, 5])
def test_a_run_goes_on_with_what_is_under_way(after: int, tmp_path: Path) -> None:
    whole = job(rounds=6).run(tmp_path / "whole")
    killed(job(rounds=6), tmp_path / "cut", after=after)
    again = job(rounds=6).run(tmp_path / "cut", resume=True)
    assert same_end(whole, again)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert fl.verify(tmp_path / "cut").problems == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fedasync:alpha=0.6", "deadline:seconds=0.4"])
@pytest.mark.parametrize("more", [{}, {"per_client": True, "engine": "stacked"}, {"state_memory_mib": 1}])
def test_states_losses_and_numbers_of_clients_are_under_way_too(kind: str, more: Any, tmp_path: Path) -> None:
    def made() -> fl.Job:
        return job(fl.PFedSD(local=LOCAL), rounds=6, asynchrony=kind, checkpoint_every=2, **more)

    whole = made().run(tmp_path / "whole")
    killed(made(), tmp_path / "cut", after=3)
    assert same_end(whole, made().run(tmp_path / "cut", resume=True))
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_bytes_go_down_at_the_start_and_up_with_the_answer() -> None:
    history = job(rounds=6).run()
    model = sum(t.nbytes for t in tree.leaves(next(iter(history.server.values()))))
    down, up = history.series("bytes_down"), history.series("bytes_up")
    assert up.tolist() == [2 * model] * 6
    left = history.series("under_way")[-1]
    assert (down.sum() - up.sum()) / model == left


# ---- what is kept of an answer


def test_of_losses_the_mean_stays_and_where_one_is_not_finite() -> None:
    """Two trainings of two clients; the second client's first one fails at batch 1, its other one takes no step."""
    nan, losses = float("nan"), (torch.tensor([[1.0, 2, 9], [3, torch.nan, torch.inf]]), torch.tensor([[4.0], [5]]))
    both = Answer((), losses, ((2, 3), (1, 0)))
    first, second = (_summed_up(answer_of(both, place)) for place in (0, 1))
    assert first.tolist() == [[2, 1.5, -1], [1, 4, -1]]
    assert second.nan_to_num(7).tolist() == [[3, 7, 1], [0, 0, -1]]
    values, steps = _losses(first)
    assert ([v.tolist() for v in values], steps) == ([[[1.5]], [[4.0]]], ((1,), (1,)))
    values, steps = _losses(second)
    assert steps == ((2,), (0,))
    assert first_bad_loss(values, steps) == {0: (1, f"the loss is {nan}")}


class Rounded(fl.Encoder):
    """Uploads with errors that wait for the next one."""

    def init(self, params: fl.Params) -> Any:
        return 0.0 * params

    def encode(self, client: fl.Client[Any], values: fl.Params, kept: Any) -> tuple[Any, Any]:
        whole = fl.Params({name: t + kept[name] for name, t in values.items()})
        sent = fl.Params({name: t.to(torch.float16) for name, t in whole.items()})
        return sent, fl.Params({name: t - sent[name].to(t.dtype) for name, t in whole.items()})

    def decode(self, sent: Any, like: fl.Params) -> fl.Params:
        return fl.Params({name: t.to(like[name].dtype) for name, t in sent.items()})


class Rounding(fl.Part):
    def __init__(self) -> None:
        link = fl.Link()
        link.encoder = Rounded()
        self.links = (link,)


@pytest.mark.slow
def test_encoded_uploads_are_under_way_as_they_travel_and_are_read_on_the_newest_model(tmp_path: Path) -> None:
    def made() -> fl.Job:
        return dataclasses.replace(job(rounds=5), parts=[Rounding()])

    plain, whole = job(rounds=5).run(), made().run(tmp_path / "whole")
    assert np.allclose(plain.series("global_loss"), whole.series("global_loss"), rtol=1e-3)
    assert plain.series("global_loss")[-1] != whole.series("global_loss")[-1]
    assert (4 * whole.series("bytes_up") == plain.series("bytes_up")).all()
    killed(made(), tmp_path / "cut", after=3)
    assert same_end(whole, made().run(tmp_path / "cut", resume=True))


@pytest.mark.parametrize("kind", ["fedbuff:size=2", "fedasync:alpha=0.6"])
def test_what_is_late_is_a_difference_where_downloads_are_encoded(kind: str) -> None:
    plain, small = (job(rounds=5, asynchrony=kind, compression_down=down).run() for down in ("none", "float16"))
    assert np.allclose(plain.series("global_loss"), small.series("global_loss"), rtol=1e-3)
    assert (4 * small.series("bytes_down") == plain.series("bytes_down")).all()


@pytest.mark.slow
def test_gradients_are_scaled_and_not_moved() -> None:
    """FedMeta uploads gradients: differences already, which FedAsync has no model to mix from."""
    made = job(fl.FedMeta(local=LOCAL), rounds=8)
    assert made.run().series("staleness_most").max() > 0
    with pytest.raises(fl.SettingError, match="uploads gradients, and fedasync mixes models"):
        job(fl.FedMeta(local=LOCAL), asynchrony="fedasync:alpha=0.5")


# ---- rounds that are computed again


@pytest.mark.some(1)
@pytest.mark.parametrize("asynchrony", ["fedbuff:size=2", "deadline:seconds=0.2", "fedasync:alpha=0.6"])
def test_a_round_is_computed_again_from_the_versions_that_its_clients_took(asynchrony: str, tmp_path: Path) -> None:
    """The model moves by what each client trained, beside what it was sent, with the weight of its age."""
    made = job(asynchrony=asynchrony, checkpoint_every=1, keep_every=5)
    made.run(tmp_path)
    past, late, mixes = RoundReplay(made, tmp_path), 0, asynchrony.startswith("fedasync")
    for number in (12, 3, 7, 8):
        found = past.replay(number)
        trained, (before,), (after,) = found.trained(), found.before.values(), found.after.values()
        assert sorted(trained) == sorted(found.clients) == sorted(found.taken)
        moves = list[Any]()
        for k, w in trained.items():
            (sent,), age = found.models[found.taken[k]].values(), number - 1 - found.taken[k]
            late += age > 0
            share, whence = (0.6, before) if mixes else (1.0, sent)
            moves.append(share * (age + 1) ** -0.5 * (w.params - whence.params))
            assert float((w.params - one_training(made, sent, k, found.taken[k]).params).sq_norm()) < 1e-20
        mean = before.params + 1 / len(moves) * sum(moves[1:], moves[0])
        assert float((after.params - mean).sq_norm()) < 1e-20
    assert late


def one_training(made: fl.Job, sent: Any, client: int, version: int) -> Any:
    """Return what a client trains from a model in a round that waits."""
    after = Loop(made.population, made.algorithm).round({"Linear": sent}, (client,), version)
    return after["Linear"]


def test_analyses_of_one_model_refuse_rounds_with_several(tmp_path: Path) -> None:
    job(rounds=2).run(tmp_path)
    given = AnalysedRun(tmp_path)
    given.__dict__["job"] = job(rounds=2)  # which settings of a test cannot make
    refused = r"with asynchrony = 'fedbuff:size=2' they were sent several: analyse a run that waits, or look at one"
    with pytest.raises(SettingError, match=refused):
        RoundReplay(job(rounds=2), tmp_path).by_epoch(1)
    with pytest.raises(SettingError, match=refused):
        _ = given.past
