"""Clients that decline, are lost or are late: how often, and that they change nothing for the others."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.algorithms import ALGORITHMS, FedAvg, FedBE, FedDF, FedMD, KTpFL, PFedDF
from fedloom.coordinator import RunSettings, run
from fedloom.coordinator.sampler import FixedList
from fedloom.core.errors import SettingError
from fedloom.core.local_training import Digest, Local
from fedloom.core.optimiser import SGD
from fedloom.engines.faults import Faults, Unreliable, lost_again
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.testing import Subject
from fedloom.testing.compare import differ, same
from fedloom.testing.small_networks import MLP
from fedloom.testing.subject import RecordingLoop, RecordingStacked, federation
from small import ONE_SHOT
from test_battery import REPRESENTATIVES

ENGINES: list[Any] = [Loop, Stacked]
IN_TURN = [  # each algorithm on one engine, those that differ in what is kept and exchanged on both
    (name, engine)
    for i, name in enumerate(ALGORITHMS)
    for j, engine in enumerate(ENGINES)
    if name in REPRESENTATIVES or (i + j) % 2 == 0
]
SIZES = federation().partition.sizes
EVERYBODY = (tuple(range(len(SIZES))),) * 4  # four rounds that ask all clients
THIRD = Unreliable(declined=0.1, lost=0.1, late=0.1, seed=14)  # loses 1, 3, 2 and 3 of them, for every reason


SHORT = {  # their server trains for hundreds of steps
    "feddf": FedDF(steps=4),
    "pfeddf": PFedDF(steps=4),
    "fedmd": FedMD(public_epochs=1, private_passes=1),
    "fedbe": FedBE(steps=6, num_sampled=2, swa_start=2, swa_every=2),
    **ONE_SHOT,
}
pytestmark = pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")


def only(faults: Faults, exchange: int) -> Faults:
    """The same, but nobody is lost in any other exchange."""
    return lambda round, e, client: faults(round, e, client) if e == exchange else None


def survivors(faults: Faults, cohorts: Any) -> FixedList:
    return FixedList(tuple(tuple(k for k in c if faults(t, 0, k) is None) for t, c in enumerate(cohorts)))


# ---- how often


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("declined", "lost", "late"), [(0.1, 0.2, 0.3), (0.0, 0.0, 0.1), (0.3, 0.3, 0.4), (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
)
def test_each_reason_is_as_frequent_as_it_should_be(declined: float, lost: float, late: float) -> None:
    faults = Unreliable(declined, lost, late, seed=3)
    for exchange in (0, 1):
        seen = Counter(faults(t, exchange, k) for t in range(10) for k in range(1000))
        want = {"declined": declined if exchange == 0 else 0.0, "lost": lost, "late": late}
        assert set(seen) <= {*want, None}
        for reason, p in want.items():  # draws of one client share its slowness: 1,000 of them count
            assert abs(seen[reason] / 10_000 - p) <= 4 * np.sqrt(p * (1 - p) / 1000), (exchange, reason)


@pytest.mark.slow
def test_late_answers_are_for_the_most_part_those_of_slow_clients() -> None:
    faults = Unreliable(late=0.1)
    late = np.array([sum(faults(t, 0, k) == "late" for t in range(100)) for k in range(200)])
    assert late.mean() == pytest.approx(10, abs=5)
    assert np.sort(late)[-20:].sum() > late.sum() / 2  # the slowest tenth
    lost = np.array([sum(Unreliable(lost=0.1)(t, 0, k) == "lost" for t in range(100)) for k in range(200)])
    assert np.sort(lost)[-20:].sum() < lost.sum() / 4


def test_a_loss_is_a_function_of_seed_round_exchange_and_client() -> None:
    def losses(seed: int) -> list[str | None]:
        faults = Unreliable(lost=0.5, seed=seed)
        return [faults(t, e, k) for t in range(5) for e in range(2) for k in range(50)]

    assert losses(1) == losses(1) != losses(2)
    first = np.array([v is None for v in losses(1)]).reshape(5, 2, 50)
    assert len(np.unique(first.reshape(10, 50), axis=0)) == 10  # neither rounds nor exchanges repeat


def test_reliable_clients_always_answer() -> None:
    assert {Unreliable()(t, e, k) for t in range(10) for e in range(2) for k in range(100)} == {None}


@pytest.mark.parametrize("chances", [(-0.1, 0.0, 0.0), (0.5, 0.5, 0.1), (0.0, 1.1, 0.0)])
def test_impossible_probabilities(chances: tuple[float, float, float]) -> None:
    with pytest.raises(SettingError, match=rf"at least 0 and at most 1 together, got declined = {chances[0]}, lost"):
        Unreliable(*chances)
    with pytest.raises(SettingError, match="late must be finite, got nan"):
        Unreliable(late=float("nan"))


def test_probabilities_may_fill_up_to_one() -> None:
    assert Unreliable(0.1, 0.2, 0.7) != Unreliable(0.7, 0.2, 0.1)


# ---- what it does to a run


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "engine"), IN_TURN)
def test_who_fails_at_first_counts_as_never_asked(algorithm: str, engine: Any) -> None:
    subject = Subject.of(SHORT.get(algorithm, ALGORITHMS[algorithm]))
    cohorts = ((0,),) * 4 if subject.algorithm.requires.one_place else EVERYBODY
    faults = replace(THIRD, lost=0.5) if subject.algorithm.requires.one_place else THIRD
    sampler = survivors(faults, cohorts)
    named = [sampler(t, SIZES, len(SIZES)) for t in range(4)]
    assert 0 < sum(map(len, named)) < sum(map(len, cohorts))
    lossy = subject.run(engine, cohorts=cohorts, faults=only(faults, 0))
    clean = subject.run(engine, cohorts=named)
    same(lossy.servers, clean.servers, "the server must not feel clients that failed")
    same(lossy.states, clean.states, "clients must not feel others that failed")
    same(lossy.personal, clean.personal, "personal models must not feel clients that failed")
    assert lossy.engine.traffic.up == clean.engine.traffic.up


def test_the_runs_above_lose_clients_for_every_reason() -> None:
    reasons = [[THIRD(t, 0, k) for k in cohort] for t, cohort in enumerate(EVERYBODY)]
    assert {r for row in reasons for r in row} == {None, "declined", "lost", "late"}
    assert [len(row) - row.count(None) for row in reasons] == [1, 3, 2, 3]


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", [RecordingLoop, RecordingStacked])
def test_who_fails_at_second_keeps_what_the_first_exchange_left(engine: Any) -> None:
    """KT-pFL's second exchange teaches clients and tells the server nothing."""
    subject = Subject.of(KTpFL(distill=Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.1)), num_public=13))
    faults = Unreliable(declined=0.4, lost=0.2, late=0.2, seed=1)
    lossy = subject.run(engine, cohorts=EVERYBODY[:1], faults=only(faults, 1))
    clean = subject.run(engine, cohorts=EVERYBODY[:1])
    same(lossy.servers, clean.servers, "the coefficients follow from the first exchange")
    log = clean.engine.log[: 2 * len(SIZES)]  # type: ignore[attr-defined]  # behind it, the clients are evaluated
    first = {k: state for exchange, k, state, _ in log if exchange == 0}
    failed = {k for k in EVERYBODY[0] if faults(0, 1, k)}
    assert 0 < len(failed) < len(SIZES)
    assert {f.reason for f in lossy.engine.traffic.failed} == {"lost", "late"}
    for k in EVERYBODY[0]:
        state, taught = lossy.states[1][k], clean.states[1][k]
        same(state, first[k] if k in failed else taught, f"client {k}")
        assert differ(first[k], taught)


@pytest.mark.some(1)
@pytest.mark.parametrize(("algorithm", "engine"), IN_TURN)
def test_a_round_that_loses_everybody_is_passed_over(algorithm: str, engine: Any) -> None:
    subject = Subject.of(SHORT.get(algorithm, ALGORITHMS[algorithm]))
    everyone = Unreliable(declined=0.3, lost=0.3, late=0.4)
    asked = subject.cohorts
    lossy = subject.run(engine, cohorts=asked, faults=lambda t, e, k: everyone(t, e, k) if t == 1 and e == 0 else None)
    clean = subject.run(engine, cohorts=[asked[0], (), asked[2]])
    if lossy.selected[1]:
        same(lossy.servers[1], lossy.servers[2], "nobody answered")
    same(lossy.servers, clean.servers, "the run must go on as if nobody had been asked")
    same(lossy.states, clean.states, "the run must go on as if nobody had been asked")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_runs_record_who_failed_and_why(engine: Any, tmp_path: Path) -> None:
    settings = RunSettings(rounds=4, cohort_size=6, engine=engine)
    algorithm = FedAvg(local=Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1)))
    lossy = run(algorithm, federation(), MLP, settings, faults=THIRD, directory=tmp_path / "run")
    clean = run(algorithm, federation(), MLP, settings, sampler=survivors(THIRD, EVERYBODY))
    for t, (m, c) in enumerate(zip(lossy.metrics[1:], clean.metrics[1:], strict=True)):
        failed = {str(k): THIRD(t, 0, k) for k in EVERYBODY[t] if THIRD(t, 0, k)}
        assert m["failed"] == failed
        for name in ("train_loss", "bytes_down", "bytes_up", "personal_by_client"):
            assert m[name] == c[name], (t, name)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [len(json.loads(line).get("failed", {})) for line in lines] == [0, 1, 3, 2, 3]


def test_a_run_that_loses_everybody_goes_on() -> None:
    settings = RunSettings(rounds=3, cohort_size=6)
    history = run(FedAvg(), federation(), MLP, settings, faults=Unreliable(lost=1.0))
    assert [len(m["failed"]) for m in history.metrics[1:]] == [6, 6, 6]
    assert len(set(history.series("personal_accuracy"))) == 1


@pytest.mark.slow
def test_a_record_says_at_which_exchange_somebody_failed() -> None:
    """Where it is not the first."""
    subject = Subject.of(KTpFL(distill=Digest(epochs=1, batch_size=8, optimiser=SGD(lr=0.1)), num_public=13))
    lost = {(0, 0, 1): "lost", (1, 1, 2): "late", (2, 0, 0): "lost", (2, 1, 3): "late"}
    settings = RunSettings(rounds=3, cohort_size=len(SIZES), engine="loop")
    history = run(
        subject.algorithm, federation(), subject.population().models, settings, faults=lambda *at: lost.get(at)
    )
    assert [(m["failed"], m.get("failed_at")) for m in history.metrics[1:]] == [
        ({"1": "lost"}, None),
        ({"2": "late"}, {"2": [1]}),
        ({"0": "lost", "3": "late"}, {"3": [1]}),
    ]


def test_whom_a_run_did_not_wait_for_is_lost_again_in_the_same_exchange() -> None:
    records = [
        {"round": 0},
        {"round": 1, "failed": {"3": "no answer within 5 s", "4": "its numbers are not finite", "5": "lost"}},
        {"round": 2, "failed": {"1": "no answer within 5 s"}, "failed_at": {"1": [0, 2]}},
    ]
    everything = [(t, e, k) for t in range(3) for e in range(3) for k in range(6)]
    again = lost_again(records, None)
    assert [at for at in everything if again(*at)] == [(0, 0, 3), (1, 0, 1), (1, 2, 1)]
    assert again(0, 0, 3) == "no answer within 5 s"
    both = lost_again(records, lambda *at: "declined" if at == (0, 0, 3) else None)
    assert [both(*at) for at in everything if both(*at)] == ["declined", *["no answer within 5 s"] * 2]
