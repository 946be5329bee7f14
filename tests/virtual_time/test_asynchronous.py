"""The setting `asynchrony`: how it is written, what it cannot be with, and what records say of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.errors import SettingError
from fedloom.engines.encoding import Encoder
from tiny import CLASSES, LOCAL, federation, linear

CLOCK = "lognormal:example=0.01,spread=1,down=20,up=5"
SETTINGS = fl.RunSettings(rounds=8, cohort_size=4, engine="loop", threads=1, clock=CLOCK, asynchrony="fedbuff:size=2")


def job(algorithm: Any = None, model: Any = linear, beside: Any = None, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(), model=model,
        settings=dataclasses.replace(SETTINGS, **more), **(beside or {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "fedbuf:size=2",
            r"unknown asynchrony 'fedbuf:size=2' \(did you mean 'fedbuff'\?\); there are none, fedbuff:size=10",
        ),
        ("fedbuff", r"asynchrony 'fedbuff' needs size, got 'fedbuff': write fedbuff:size=10"),
        ("fedbuff:size=0", r"size of asynchrony is 1 or more, got 0 in 'fedbuff:size=0'"),
        ("fedbuff:size=1.5", r"size"),
        ("fedbuff:alpha=1", r"alpha"),
        ("fedasync:alpha=1.5", r"alpha of asynchrony is above 0 and at most 1, got 1.5"),
        ("fedasync:alpha=0", r"alpha of asynchrony is above 0 and at most 1, got 0 "),
        ("deadline:seconds=0", r"seconds of asynchrony is above 0, got 0 in"),
        ("fedbuff:size=2,staleness=linear", r"unknown staleness 'linear'"),
    ],
)
def test_what_is_written_otherwise_is_refused(text: str, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        job(asynchrony=text)


class Half(Encoder):
    def init(self, params: fl.Params) -> Any:
        return ()


class Halved(fl.Part):
    def __init__(self) -> None:
        link = fl.Link()
        link.encoder = Half()
        self.links = (link,)


class Stateful(fl.Part):
    wants = fl.Wants(states=True)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"clock": "none"}, r"is by the virtual clock, and there is none: set clock, such as lognormal:"),
        ({"clock": f"{CLOCK},deadline=9"}, r"takes who comes late in a later round, got clock = .* with a deadline"),
        ({"spares": 1}, r"waits for nobody whom one could replace, got spares = 1: leave one of them out"),
        ({"deadline": 9.0, "engine": "workers"}, r"has virtual seconds, .* got deadline = 9: leave"),
        ({"stateless": True}, r"moves states as answers come, got stateless = true"),
        ({"partial_sums": 2}, r"UploadsUnderWay|keeps each upload until it comes, got partial_sums = 2"),
        ({"privacy": "local:noise=4,delta=1e-5,clip=1"}, r"has no rounds of whole cohorts to account for, got privacy"),
        ({"secure_aggregation": "range=8"}, r"weighs each upload by its age, got secure_aggregation = 'range=8'"),
        ({"aggregator": "median"}, r"moves the model by 2 at a time, got aggregator = 'median', which needs 3 uploads"),
        ({"asynchrony": "fedbuff:size=7"}, r"takes as many answers of different clients, got 6 clients"),
        ({"beside": {"schedule": fl.Schedule()}}, r"has a schedule of its own, got schedule = Schedule"),
        ({"beside": {"sampler": fl.FixedList(((0, 1),) * 8)}}, r"draws who starts as places get free, got a list"),
        ({"beside": {"parts": [Stateful()]}}, r"moves states as answers come"),
        ({"asynchrony": "fedasync:alpha=0.6", "beside": {"parts": [Halved()]}}, r"mixes models, and encoders send"),
        ({"algorithm": fl.Scaffold(local=LOCAL)}, r"and Scaffold uploads control tensors"),
        ({"model": {"a": linear, "b": linear}}, r"FedAvg has a round for each architecture"),
    ],
)
def test_what_it_cannot_be_with_is_refused_before_the_run(more: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        job(**more).check()


def test_records_tell_ages_and_who_is_under_way() -> None:
    history = job().run()
    ages, most = history.series("staleness"), history.series("staleness_most")
    assert len(ages) == 8
    assert ages[0] == 0
    assert (ages <= most).all()
    assert most.max() > 1
    assert set(history.series("under_way")) <= {2.0, 3.0, 4.0}
    assert "staleness" not in history.metrics[0]


def test_the_oldest_is_older_than_the_mean() -> None:
    history = job(rounds=4).run()
    assert (history.series("staleness_most") > history.series("staleness")).any()


def test_the_clock_of_rounds_that_wait_is_not_there() -> None:
    assert [type(part).__name__ for part in job().begun_parts.all].count("VirtualTime") == 0


def test_who_is_lost_on_the_way_keeps_its_state_and_others_go_on() -> None:
    history = job(
        fl.PFedSD(local=LOCAL), beside={"faults": lambda round, exchange, k: "gone" if k == 0 else None}
    ).run()
    assert 0 not in history.clients
    assert any("0" in record["failed"] for record in history.metrics[1:])
    assert len(history.metrics) == 9


def test_who_joins_late_starts_late() -> None:
    history = job(beside={"new": fl.NewClients((1, 2), joins=6)}).run()
    whose = [set(record["clients"]) for record in history.metrics[1:]]
    assert not {1, 2} & set.union(*whose[:5])
    assert {1, 2} & set.union(*whose[5:])


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(10 * x))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_variances_stay_above_zero_and_counters_stay_whole() -> None:
    """A variance plus the difference of two others may be below 0: buffers are mixed. Counters have no weight."""
    kinds = ("fedbuff:size=1,staleness=constant", "fedbuff:size=1")
    one, other = (job(model=Normed, rounds=10, asynchrony=kind).run() for kind in kinds)
    whole, weighed = (next(iter(history.server.values())).buffers for history in (one, other))
    assert (whole["norm.running_var"] > 0).all()
    assert one.series("staleness_most").max() > 1
    assert not torch.equal(whole["norm.running_var"], weighed["norm.running_var"])
    assert torch.equal(whole["norm.num_batches_tracked"], weighed["norm.num_batches_tracked"])


@pytest.mark.slow
def test_bounds_are_of_differences_and_rules_of_what_they_make_of_the_newest_model() -> None:
    """Clipping comes before the weight of age; with a bound of nearly 0 the model hardly moves, however old."""
    history = job(bound="clip:1e-6").run()
    start = job(rounds=1, bound="clip:1e-6").run()
    models = (next(iter(each.server.values())).params for each in (history, start))
    moved = [abs(a - b).max() for a, b in zip(*(params.values() for params in models), strict=True)]
    assert max(map(float, moved)) < 1e-5
    assert job(aggregator="median", asynchrony="fedbuff:size=4").run().series("global_loss")[-1] < 1.2
