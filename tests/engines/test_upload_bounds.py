"""Uploads beside the median of their kind: what is refused, what a checkpoint keeps, and when a run stops."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom import Client, Job, RunSettings, Weights, on_client
from fedloom.algorithms import FedAvg, KTpFL, LocalOnly
from fedloom.core import tree
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.core.types import Params, Weighted
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.attack_kinds import FlippedLabels, Scale
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.stacked import Stacked
from fedloom.engines.upload_bounds import LEAST, NO_MEDIANS, ROUNDS, Measured, Norms, bound, median
from fedloom.testing import Subject
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
        **{
            "rounds": rounds,
            "cohort_size": len(clients),
            "engine": "loop",
            "compilation": "none",
            "bound": "refuse:median:5",
        }
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


def measured(sent: Any, upload: Any, count: int = 2) -> tuple[Request, Answer, Measured]:
    """What is measured of the uploads of a method like FedAvg's, to whose clients a model was sent."""
    call = Call("local_update", (sent,), 0, 0, 0.1)
    request, answer = Request.to(call, range(8, 8 + count), 0), Answer(upload, (), ())
    return request, answer, Measured.of(request, answer, PayloadSize(FedAvg.local_update))


def model(w: list[Any], mean: list[Any]) -> Weights:
    return Weights(Params(w=torch.tensor(w)), Params(mean=torch.tensor(mean)))


SENT = model([10.0, 10.0], [1.0])
UPLOAD = Weighted(
    value=model([[13.0, 14.0], [10.0, 11.0]], [[3.0], [1.5]]), weight=torch.tensor([1e9, 1e9], dtype=torch.float64)
)


def test_a_norm_is_of_the_difference_to_what_was_sent_and_buffers_have_their_own() -> None:
    request, _, found = measured(SENT, UPLOAD)
    assert found.norms.tolist() == [[5.0, 2.0], [1.0, 0.5]]
    assert list(found.beyond(request, bound("refuse:4.9"))) == [8]
    assert not found.beyond(request, bound("refuse:5"))
    assert not found.beyond(request, bound("clip:1e-9"))
    medians = (1.25, 0.5)
    assert list(found.beyond(request, bound("refuse:median:3.9"), medians)) == [8]
    words = found.beyond(request, bound("refuse:median:3.9"), (1.25, None))[8]
    assert words == (
        "the upload has a norm of 5 beside what was sent, and at most 3.9 times the median of its kind, 1.25, is taken"
        ": raise run.bound if it is sound"
    )
    words = found.beyond(request, bound("refuse:median:3.9"), (None, 0.5))[8]
    assert words.startswith("the statistics of BatchNorm in the upload has a norm of 2 beside what was sent, and at")
    words = found.beyond(request, bound("refuse:2"))[8]
    assert "norm of 5 beside what was sent, and at most 2 is taken: raise run.bound" in words
    least = (201**0.5) * 0.3  # of (10, 10, 1)
    assert list(found.beyond(request, bound("refuse:sent:0.3"))) == [8]
    assert (
        f"0.3 times the norm of what was sent, {least / 0.3:.4g}," in found.beyond(request, bound("refuse:sent:0.3"))[8]
    )
    assert not found.beyond(request, bound("refuse:sent:0.4"))
    assert list(dataclasses.replace(found, norms=torch.full((2, 2), float("nan"))).beyond(request, bound("refuse:9")))


def test_what_was_sent_to_each_client_is_known_of_it_alone() -> None:
    """A model that is scattered, one for each; an upload that is no model that was sent is measured itself."""
    sent = tree.stack([SENT, model([13.0, 14.0], [3.0])])
    call = Call("local_update", (), 0, 0, 0.1)
    request = Request.to(call, [8, 9], 0, scatter=(sent,))
    same = Weighted(value=tree.stack([SENT, SENT]), weight=UPLOAD.weight)
    found = Measured.of(request, Answer(same, (), ()), PayloadSize(FedAvg.local_update))
    assert found.norms.tolist() == [[0.0, 0.0], [5.0, 2.0]]
    upload = ({"w": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, torch.tensor([7, 7]))
    request, _, found = measured(SENT, upload)
    assert found.norms.tolist() == [[5.0, 0.0], [1.0, 0.0]]
    assert "the upload has a norm of 5, and at most 1 is taken" in found.beyond(request, bound("refuse:1"))[8]


def test_an_upload_is_as_short_as_its_bound_and_one_within_it_stays_the_same() -> None:
    request, answer, found = measured(SENT, UPLOAD)
    short = found.clipped(request, answer, bound("clip:2.5"), NO_MEDIANS).upload
    assert short.value.params["w"].tolist() == [[11.5, 12.0], [10.0, 11.0]]
    assert short.value.buffers["mean"].tolist() == [[3.0], [1.5]]
    assert short.weight.tolist() == [1e9, 1e9]
    short = found.clipped(request, answer, bound("clip:median:2"), (100.0, 0.5)).upload
    assert short.value.params["w"].tolist() == UPLOAD.value.params["w"].tolist()
    assert short.value.buffers["mean"].tolist() == [[2.0], [1.5]]
    for text in ("clip:5", "refuse:1"):
        assert found.clipped(request, answer, bound(text), NO_MEDIANS) is answer
    upload = (torch.tensor([[3.0, 4.0], [0.0, 1.0]]), torch.tensor([7, 7]))
    request, answer, found = measured(SENT, upload)
    short = found.clipped(request, answer, bound("clip:1"), NO_MEDIANS).upload
    torch.testing.assert_close(short[0], torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert short[1].tolist() == [7, 7]
    huge = (torch.tensor([[3e38, -3e38], [0.0, 1.0]]), torch.tensor([7, 7]))
    request, answer, found = measured(SENT, huge)
    assert found.clipped(request, answer, bound("clip:1"), NO_MEDIANS).upload[0].isfinite().all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clip", "this bound is written clip:X or clip:median:X or clip:sent:X, got 'clip': X is a number"),
        ("refuse:mean:5", "got 'refuse:mean:5'"), ("refuse:median", "is written"), ("refuse:a", "is written"),
        ("drop:5", "unknown bound 'drop:5'; there are none, refuse:X or"), ("refuse:median:sent:5", "is written"),
        ("", "unknown bound ''"), ("5", "unknown bound '5'"),
        ("refuse:0", "a bound is finite and above 0, got bound = 'refuse:0': write none for no bound"),
        ("clip:median:-1", "finite and above 0"), ("refuse:inf", "finite and above 0"), ("refuse:nan", "is written"),
    ],
)  # fmt: skip
def test_a_bound_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        RunSettings(bound=text)


def test_bounds_are_written_as_they_are_read() -> None:
    assert bound("none") is None
    for text in ("refuse:5", "clip:0.5", "refuse:median:5", "clip:sent:10"):
        assert str(bound(text)) == text


def test_a_tenfold_update_passes_no_bound_of_the_median() -> None:
    """A model is much longer than what was learnt of it, so its own norm says nothing of an update."""

    def of(times: float, text: str) -> Any:
        algorithm = FedAvg(local=LOCAL)
        engine = Loop(population(), algorithm, Options(bound=text, attack=Scale(times, clients=(LIAR,))))
        server = {name: tree.map_tree(lambda t: t + 100, w) for name, w in engine.init().items()}
        after = engine.round(server, [0, 1, 2, LIAR], 0)
        return server, after, [f.client for f in engine.traffic.failed]

    assert of(1.0, "refuse:median:5")[2] == []
    assert of(30.0, "refuse:median:5")[2] == [LIAR]
    before, plain, _ = of(1.0, "none")
    _, boosted, lost = of(30.0, "clip:median:1")
    assert lost == []
    moved = [
        sum(float((a - b).square().sum()) for a, b in zip(*map(tree.leaves, (x, before)), strict=True)) ** 0.5
        for x in (plain, boosted)
    ]
    assert moved[1] < 1.5 * moved[0]


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [Loop, Stacked, DevicesInProcess])
def test_in_the_first_round_the_cohort_s_own_median_counts(kind: Any) -> None:
    people, algorithm = population(), Boastful(local=LOCAL, liar=5)
    bounded = kind(people, algorithm, Options(bound="refuse:median:5"))
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
    assert not any(failed(job(4, (0, LIAR), Boastful(local=LOCAL, begins=2), bound="none").run()))
    assert not any(failed(job(2, (0, LIAR), Boastful(local=LOCAL, begins=1)).run()))


def test_refused_uploads_move_no_median() -> None:
    engine = Loop(population(), Boastful(local=LOCAL), Options(bound="refuse:median:5"))
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
    with pytest.raises(SettingError, match="bound = 'clip:median:5' compares uploads, and partial_sums = 2 sends sums"):
        Loop(population(), FedAvg(local=LOCAL), Options(bound="clip:median:5", partial_sums=2))


def test_somebody_is_told_of_a_device_that_is_refused_again_and_again() -> None:
    engine = DevicesInProcess(population(), Boastful(local=LOCAL), Options(bound="refuse:median:5"))
    server = engine.init()
    for t in range(4):
        server = engine.round(server, [0, 1, 2, LIAR], t)
    with pytest.warns(
        SettingWarning, match=r"the last 5 answers of device device 3 were refused.*--bound clip:median:5"
    ):
        server = engine.round(server, [0, 1, 2, LIAR], 4)
    engine.round(server, [0, 1, 2, LIAR], 5)  # once
    engine.judged([LIAR], {}, 6)  # one was taken
    for t in range(7, 11):
        engine.judged([LIAR], {LIAR: "large"}, t)
    with pytest.warns(SettingWarning, match="the last 5 answers"):
        engine.judged([LIAR], {LIAR: "large"}, 11)
    engine.close()


@pytest.mark.parametrize("what", ["bound", "attack"])
def test_what_is_asked_of_uploads_is_warned_of_where_there_are_none(what: str) -> None:
    """A bound and clients that lie change nothing of a method whose clients send nothing."""
    asked: Any = {"settings": RunSettings(rounds=1, cohort_size=3, bound="clip:1"), "attack": None}
    if what == "attack":
        asked = {"settings": RunSettings(rounds=1, cohort_size=3), "attack": Scale(-1.0, clients=(0, 1))}
    alone = Job(algorithm=LocalOnly(local=LOCAL), federation=federation(), model=linear, **asked)
    said = "bound = 'clip:1'" if what == "bound" else "attack = Scale"
    with pytest.warns(SettingWarning, match=f"^clients upload nothing, so {said} changes nothing: leave it out"):
        alone.run()


def test_one_exchange_without_uploads_is_not_warned_of() -> None:
    """KT-pFL uploads predictions, and in its last exchange nothing."""
    subject = Subject.of(KTpFL)
    engine = Loop(subject.population(), subject.algorithm, Options(attack=Scale(2.0, clients=(0,))))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SettingWarning)
        engine.round(engine.init(), range(6), 0)
        settings, flipped = RunSettings(rounds=1, cohort_size=3), FlippedLabels(clients=(0, 1))  # they train on lies
        Job(
            algorithm=LocalOnly(local=LOCAL), federation=federation(), model=linear, settings=settings, attack=flipped
        ).run()
