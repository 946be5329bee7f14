"""Rounds on a virtual clock, by sums and maxima written here: deadlines, spares, absence, and runs that go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator.schedule import Schedule
from fedloom.core.errors import SettingError
from fedloom.virtual_time import virtual_rounds
from fedloom.virtual_time.clock import Clock
from fedloom.virtual_time.virtual_rounds import OnTime
from tiny import LOCAL, federation, linear

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)
SLOW = "lognormal:example=0.01,spread=1,down=0.001,up=0.0005"  # 60 bytes, of 15 weights, take 0.48 s and 0.96 s
STORED = ALGORITHMS["fedavg_stored"](local=LOCAL)  # FedAvg whose clients keep what they have trained
TIMES = {"virtual_seconds", "failed", "declined"}


def job(clock: str = SLOW, algorithm: Any = None, faults: Any = None, **more: Any) -> fl.Job:
    of_job = {name: more.pop(name) for name in ("sampler", "schedule", "parts") if name in more}
    settings = dataclasses.replace(SETTINGS, clock=clock, **more)
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(), model=linear, settings=settings,
        faults=faults, **of_job,
    )  # fmt: skip


def seconds(clock: str = SLOW, examples: float = 24) -> list[float]:
    """The seconds of each client, of 12 examples and two epochs."""
    example = Clock.of(clock, 0, 6).devices.example
    return [0.48 + examples * float(example[k]) + 0.96 for k in range(6)]


def without(records: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in names} for record in records]


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    history, each, so_far = job().run(), seconds(), [0.0]
    assert len({round(s, 6) for s in each}) == 6
    for record in history.metrics[1:]:
        so_far.append(so_far[-1] + max(each[k] for k in record["clients"]))
    assert history.series("virtual_seconds").tolist() == pytest.approx(so_far, abs=1e-12)
    assert without(history.metrics, "virtual_seconds") == job("none").run().metrics
    assert history.measures["virtual_seconds"].title == "Virtual time"


def test_who_is_late_is_lost_and_the_round_lasts_until_the_deadline() -> None:
    """As if the same clients were lost by faults, their bytes and states too."""
    each = seconds()
    limit = sorted(each)[3] + 0.01  # two of six clients are late
    late = {k for k in range(6) if each[k] > limit}
    history = job(f"{SLOW},deadline={limit}", STORED).run()
    lost = job("none", STORED, faults=lambda round, exchange, k: "x" if k in late else None).run()
    assert without(history.metrics, *TIMES) == without(lost.metrics, *TIMES)
    assert {*history.clients} == {*lost.clients} == {*range(6)} - late
    so_far, failed = 0.0, set[int]()
    for record in history.metrics[1:]:
        absent = late & {*record["clients"]}
        assert {int(k) for k in record["failed"]} == absent
        so_far += limit if absent else max(each[k] for k in record["clients"])
        assert record["virtual_seconds"] == pytest.approx(so_far, abs=1e-12)
        assert all(why.startswith("late: ") and why.endswith(f", of {limit:g}") for why in record["failed"].values())
        failed |= absent
    assert failed == late


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_who_is_found_late_once_it_has_answered_counts_as_little(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is known before, what was computed is thrown away."""
    clock = f"{SLOW},deadline={sorted(seconds())[3] + 0.01}"
    before = job(clock, STORED, engine=engine).run()
    monkeypatch.setattr(virtual_rounds, "costs_of", lambda job: {})
    after = job(clock, STORED, engine=engine).run()
    assert without(after.metrics, "train_loss") == without(before.metrics, "train_loss")
    assert after.series("train_loss")[1:] == pytest.approx(before.series("train_loss")[1:], rel=1e-5)
    assert {*after.clients} == {*before.clients}


def test_spares_make_the_first_that_come_count() -> None:
    each, history = seconds(), job(spares=2).run()
    drawn = [fl.Uniform(0)(t, [12] * 6, 5) for t in range(4)]  # type: ignore[arg-type]
    so_far = 0.0
    for record, who in zip(history.metrics[1:], drawn, strict=True):
        first = sorted(who, key=lambda k: each[k])[:3]
        assert {*record["clients"]} == {*first}
        assert record["declined"] == {str(k): "not among the first 3" for k in sorted({*who} - {*first})}
        so_far += max(each[k] for k in first)
        assert record["virtual_seconds"] == pytest.approx(so_far, abs=1e-12)


def test_of_spares_those_that_fail_do_not_come_first() -> None:
    fastest = min(range(6), key=lambda k: seconds()[k])
    history = job(spares=2, faults=lambda round, exchange, k: "lost" if k == fastest else None).run()
    assert not any(fastest in record["clients"] for record in history.metrics[1:])


def test_with_a_deadline_who_is_lost_is_waited_for() -> None:
    history = job(f"{SLOW},deadline=60", faults=lambda round, exchange, k: "lost", rounds=2).run()
    assert history.series("virtual_seconds").tolist() == [0.0, 60.0, 120.0]
    history = job(f"{SLOW},deadline=60", faults=lambda round, exchange, k: "declined", rounds=2).run()
    assert history.series("virtual_seconds").tolist() == [0.0, 0.0, 0.0]


AWAY = f"{SLOW},there=0.5,cycle=10"


def test_who_is_away_is_not_asked_and_who_goes_away_is_lost() -> None:
    history, of, each = job(AWAY, rounds=8).run(), Clock.of(AWAY, 0, 6), seconds()
    lost, now = 0, 0.0
    for record in history.metrics[1:]:
        there = of.there(now)
        assert there.any()
        assert all(there[k] for k in record["clients"])
        assert len(record["clients"]) == min(3, int(there.sum()))
        stays = {k: of.leaves(k, now) - now for k in record["clients"]}
        gone = {k for k in stays if stays[k] < each[k]}
        assert {int(k) for k in record["failed"]} == gone
        assert all(why.startswith("went away after ") for why in record["failed"].values())
        now += max(min(stays[k], each[k]) for k in record["clients"])
        assert record["virtual_seconds"] == pytest.approx(now, abs=1e-9)
        now, lost = record["virtual_seconds"], lost + len(gone)
    assert lost


def test_a_round_begins_when_somebody_is_there() -> None:
    link = OnTime(Clock.of("lognormal:example=1,there=0.001,cycle=1000", 0, 3))
    back = min(link.clock.back(k, 0.0) for k in range(3))
    assert link.begins(0) == pytest.approx(back, abs=1e-9)
    assert back > 0
    link.state[1:] = back  # and begins there again where it is computed again
    assert link.begins(5) == pytest.approx(back, abs=1e-9)


def test_who_leaves_as_a_round_begins_is_not_asked() -> None:
    link = OnTime(Clock.of("lognormal:example=1,there=0.6,cycle=7", 0, 20))
    for k in range(20):
        for at in range(0, 50, 5):
            gone = link.clock.leaves(k, link.clock.back(k, float(at)))
            assert not link.present(gone)[k]
            assert link.present(link.begins(0)).any()
            link.state[2] = gone


def test_a_round_that_is_computed_again_begins_when_it_did() -> None:
    link = OnTime(Clock.of("lognormal:example=1", 0, 3))
    link.state = torch.tensor([5.0, 3.0, 9.0], dtype=torch.float64)
    assert [link.begins(round) for round in (4, 5, 6)] == [9.0, 3.0, 9.0]


class Halves(fl.Encoder):
    """Uploads in float16."""

    def encode(self, client: Any, values: Any, kept: Any) -> Any:
        return fl.Params({name: t.to(torch.float16) for name, t in values.items()}), kept

    def decode(self, sent: Any, like: Any) -> Any:
        return fl.Params({name: t.to(like[name].dtype) for name, t in sent.items()})


class Encoding(fl.Link):
    encoder = Halves()


class Small(fl.Part):
    links = (Encoding(),)


@pytest.mark.parametrize("more", ["", ",deadline=1000"])
def test_what_is_encoded_is_sent_in_less_time(more: str) -> None:
    history, each = job(f"{SLOW}{more}", parts=[Small()], rounds=1).run(), seconds()
    took = max(each[k] for k in history.metrics[1]["clients"]) - 0.48
    assert history.metrics[1]["virtual_seconds"] == pytest.approx(took, abs=1e-12)


class TwiceAsked(fl.FedAvg):
    """FedAvg after an exchange that trains nothing."""

    @fl.on_client
    def ready(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, tuple[()]]:
        return client.state, ()

    def round(self, server: Any, cohort: Any) -> Any:
        cohort.gather(self.ready, server)
        return super().round(server, cohort)


def test_exchanges_of_a_round_follow_each_other() -> None:
    history, each = job(algorithm=TwiceAsked(local=LOCAL), rounds=1).run(), seconds()
    took = 0.48 + max(each[k] for k in history.metrics[1]["clients"])  # the first has 60 bytes down, and no more
    assert history.metrics[1]["virtual_seconds"] == pytest.approx(took, abs=1e-12)


@pytest.mark.parametrize(
    ("clock", "rounds"), [(f"{AWAY},deadline=1.8", 3), pytest.param(f"{AWAY},jitter=0.5", 6, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_with_the_same_bits(clock: str, rounds: int, tmp_path: Path) -> None:
    whole = job(clock, rounds=rounds).run()
    job(clock, rounds=1).run(tmp_path)
    made = job(clock, rounds=rounds)
    assert made.run(tmp_path, resume=True).metrics == whole.metrics
    assert made.replay(tmp_path, rounds).clients == whole.metrics[rounds]["clients"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stacked", "workers"])
def test_engines_have_the_same_seconds(engine: Any) -> None:
    clock = f"{AWAY},deadline=1.8"
    one, other = (job(clock, engine=name, rounds=6).run() for name in ("loop", engine))
    names = ("clients", "failed", "virtual_seconds", "bytes_up", "bytes_down")
    assert [[record.get(n) for n in names] for record in one.metrics] == [
        [record.get(n) for n in names] for record in other.metrics
    ]


def test_files_of_a_clock_stay_the_same(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("computation,communication\n10,8\n20,4\n")
    job(f"trace:{trace}", rounds=2).run(tmp_path / "run")
    trace.write_text("computation,communication\n10,8\n20,5\n")
    with pytest.raises(SettingError, match="a run goes on with the devices that it began with, and the files"):
        job(f"trace:{trace}", rounds=4).run(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"algorithm": fl.Centralised(local=LOCAL)},
            "is of what travels, and all examples are in one place, got Central",
        ),
        ({"schedule": Schedule()}, "counts rounds that it waits for, got schedule = Schedule: leave one of them out"),
        ({"partial_sums": 2}, "looks at each answer, got partial_sums = 2: leave one of them out"),
        (
            {"clock": f"{SLOW},deadline=1"},
            "somebody the time to answer, got deadline = 1, and the fastest client needs 1.",
        ),
        ({"clock": "lognormal"}, "needs one of example= (seconds) and flops= (FLOP/s)"),
    ],
)
def test_what_does_not_fit_a_clock_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as error:
        job(**given).check()
    assert words in str(error.value)


def test_devices_are_refused() -> None:
    made = job()
    elsewhere = SimpleNamespace(
        algorithm=made.algorithm, settings=made.settings, schedule=None,
        federation=SimpleNamespace(train=SimpleNamespace(remote={})),
    )  # fmt: skip
    with pytest.raises(SettingError, match="simulates what devices take, and these take real time, got devices: leave"):
        virtual_rounds.VirtualTime(made).check(elsewhere)
