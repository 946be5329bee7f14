"""Uploads that are added up in parts: the parts are in the bits, and who computes them is not."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import RunSettings, run
from fedloom.algorithms import APFLNi, FedAvg, FedNova, KTpFL, LGFedAvg, PFedSD, Scaffold
from fedloom.core import tree
from fedloom.core.batch import Batch
from fedloom.core.errors import ClientError, SettingError
from fedloom.core.local_training import Local
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD
from fedloom.data import Federation, by_lists, federate
from fedloom.deploy.server.devices import Devices
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.message import EVALUATION
from fedloom.engines.population import Population
from fedloom.engines.workers import Workers
from fedloom.ranks.rank_engine import Gloo
from fedloom.tasks import Classification
from fedloom.testing.compare import same
from fedloom.testing.small_networks import MLP, Convolutional
from fedloom.testing.subject import Subject, record_run
from tiny import examples, federation, mlp

MODELS = {"conv": Model(Convolutional, name="conv"), "mlp": Model(MLP, name="mlp")}
LOCAL = Local(epochs=1, batch_size=4, optimiser=SGD(lr=0.1))


class Two(Workers):
    """As on a machine with two cores; counts the bytes of answers."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.options = dataclasses.replace(self.options, workers=2)
        self.bytes, take = 0, self.children.take

        def counted(rank: int) -> memoryview:
            data = take(rank)
            self.bytes += len(data)
            return data

        self.children.take = counted  # type: ignore[method-assign]


def people() -> Federation:
    """Ten clients with 12 training examples, of whom the fourth has 11: its last batch of 4 has three."""
    train = examples(150)
    lists = [range(15 * k, 15 * k + 15 - (k == 3)) for k in range(10)]
    made = federate(train, by_lists(lists), test=examples(60, seed=1))
    assert made.partition.sizes.tolist() == [12, 12, 12, 11, *[12] * 6]
    return made


def population(model: Any) -> Population:
    return Population(people(), {"net": Model(model, name="net")})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold, FedNova, PFedSD, LGFedAvg, APFLNi])
def test_processes_that_add_up_have_the_bits_of_the_loop(algorithm: Any) -> None:
    models = {"mlp": MODELS["mlp"]} if algorithm in (APFLNi, FedNova) else MODELS
    subject = Subject.of(algorithm, models)
    want, got = (
        record_run(each, each.init(), subject.cohorts)
        for kind in (Loop, Two)
        for each in [kind(subject.population(), subject.algorithm, Options(partial_sums=2, works=(EVALUATION,)))]
    )
    assert want.right == got.right
    got.engine.close()
    same((want.servers, want.states, want.personal), (got.servers, got.states, got.personal), "in two parts")
    same(want.engine.traffic.after, got.engine.traffic.after, "what clients have trained")
    moved = [dataclasses.replace(trail.engine.traffic, to_judge={}, after={}) for trail in (want, got)]
    assert moved[0] == moved[1]


def test_parts_agree_to_rounding_and_are_seen_in_the_bits() -> None:
    """In float64; a sum of one part has the bits of none."""
    subject = Subject.of(FedAvg, {"mlp": MODELS["mlp"]})
    ends = {}
    for parts in (None, 1, 2, 3):
        engine = Loop(subject.population(), subject.algorithm, Options(partial_sums=parts))
        ends[parts] = torch.cat([t.flatten() for t in tree.leaves(engine.round(engine.init(), range(6), 0))])
    assert torch.equal(ends[None], ends[1])
    for parts in (2, 3):
        assert not torch.equal(ends[None], ends[parts])
        torch.testing.assert_close(ends[parts], ends[None], rtol=0, atol=1e-15)


def test_parts_are_cut_before_anybody_is_lost() -> None:
    """Of seven clients two are lost: the parts are those of seven, as where the two vanish on their way."""
    engine = Loop(
        population(mlp), FedAvg(local=LOCAL), Options(partial_sums=3, faults=lambda t, e, k: "lost" if k < 2 else None)
    )
    asked: list[Any] = []
    answers = engine.answers
    engine.answers = lambda call, *rest: asked.append(call.sums) or answers(call, *rest)  # type: ignore[method-assign, func-returns-value]
    engine.round(engine.init(), range(7), 0)
    assert asked == [((2,), (3, 4), (5, 6))]


@pytest.mark.slow
def test_sums_travel_in_the_place_of_uploads() -> None:
    """Ten uploads of a model in float32, or two sums in float64."""
    came = {}
    for parts in (None, 2):
        engine = Two(population(lambda: mlp(20_000)), FedAvg(local=LOCAL), Options(partial_sums=parts))
        engine.round(engine.init(), range(10), 0)
        engine.close()
        came[parts] = engine.bytes
    size = 4 * Model(lambda: mlp(20_000), name="net").num_params
    assert 10 * size < came[None] < 10.1 * size
    assert 4 * size < came[2] < 4.1 * size


class Flawed(nn.Module):
    """Its loss is not finite, or its gradient far too large, or it fails, for a batch of three."""

    def __init__(self, flaw: str) -> None:
        super().__init__()
        self.net, self.flaw = mlp(), flaw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        if not self.training or len(x) != 3:
            return out
        if self.flaw == "fails":
            raise ValueError("a batch of three")
        return out * (float("nan") if self.flaw == "nan" else 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("flaw", ["nan", "large"])
def test_who_is_refused_is_in_no_sum(flaw: str) -> None:
    loop, engine = (
        kind(
            population(lambda: Flawed(flaw)), Scaffold(local=LOCAL), Options(partial_sums=2, on_nonfinite="refuse",
            bound="refuse:sent:50"),
        )
        for kind in (Loop, Two)
    )  # fmt: skip
    want, got = loop.round(loop.init(), range(10), 0), engine.round(engine.init(), range(10), 0)
    engine.close()
    assert [f.client for f in loop.traffic.failed] == [3]
    assert repr(engine.traffic) == repr(loop.traffic)  # a loss is NaN
    same(want, got, "of those that passed")
    same(dict(loop.states), dict(engine.states), "their states")


def test_a_client_that_fails_is_named() -> None:
    found = []
    for kind in (Loop, Two):
        engine = kind(population(lambda: Flawed("fails")), FedAvg(local=LOCAL), Options(partial_sums=1))
        with pytest.raises(ClientError, match="a batch of three") as caught:
            engine.round(engine.init(), range(10), 0)
        engine.close()
        found.append((caught.value.client, caught.value.batch))
    assert found == [(3, 2), (3, 2)]


class Slow(nn.Module):
    """One that takes its time, of whoever has three examples in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) == 3 and not self.quick:
            time.sleep(3)
        return self.net(x)

    quick = False


@pytest.mark.slow
def test_a_part_that_is_late_is_lost_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Two(population(Slow), FedAvg(local=LOCAL), Options(partial_sums=5, deadline=1.0))
    server = engine.round(engine.init(), range(10), 0)
    lost = {f.client: f.reason for f in engine.traffic.failed}
    engine.close()
    assert lost.keys() >= {2, 3}  # two clients a part; on a busy machine others may be late
    assert all((k ^ 1) in lost for k in lost)
    monkeypatch.setattr(Slow, "quick", True)
    loop = Loop(population(Slow), FedAvg(local=LOCAL), Options(partial_sums=5, faults=lambda t, e, k: lost.get(k)))
    same(loop.round(loop.init(), range(10), 0), server, "the loop that loses the same")


@pytest.mark.slow
def test_the_record_says_in_how_many_parts_and_replays(tmp_path: Path) -> None:
    settings = RunSettings(rounds=2, cohort_size=4, engine="workers", workers=2, threads=1, partial_sums=2)
    run(FedAvg(local=LOCAL), federation(), mlp, settings, directory=tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["fixed"]["partial_sums"] == 2


# ---- what is refused


def test_algorithms_that_need_every_upload() -> None:
    engine = Loop(Subject.of(KTpFL).population(), Subject.of(KTpFL).algorithm, Options(partial_sums=2))
    with pytest.raises(
        SettingError, match=r"partial_sums = 2 is for uploads of which only the mean is used, and KTpFL"
    ):
        engine.round(engine.init(), range(4), 0)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (Devices, {}, "partial_sums = 2 cannot be, because devices answer each for itself: leave one of them out"),
        (Loop, {"counts_states": True}, "stateless clients are asked for their states, and partial_sums = 2 sends"),
        (Gloo, {"chunk": 2}, "needs clients that are computed one by one: leave out partial_sums, and chunk or"),
    ],
)
def test_what_does_not_go_together(kind: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        kind(population(mlp), FedAvg(local=LOCAL), Options(partial_sums=2, **settings))


@dataclasses.dataclass(frozen=True)
class Easy(Classification):
    """Class 0 costs nothing."""

    def loss(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        each = F.cross_entropy(logits, batch.y, reduction="none")
        return batch.mean(torch.where(batch.y == 0, 0.0, each))


@pytest.mark.slow
def test_a_client_with_nothing_left_to_learn_has_a_loss_too() -> None:
    """The first of four has class 0 alone, and a mean loss of exactly 0, as a hinge loss has in the end."""
    train = examples(60)
    alone = (train.y == 0).nonzero().flatten()[:10].tolist()
    rest = sorted({*range(60)} - {*alone})
    data = federate(train, by_lists([alone, *(rest[k::3] for k in range(3))]), test=train)
    models = {"net": Model(mlp, name="net")}
    losses = []
    for kind in (Loop, Two):
        engine = kind(Population(data, models, task=Easy()), FedAvg(local=LOCAL), Options(partial_sums=2))
        engine.round(engine.init(), range(4), 0)
        engine.close()
        losses.append(engine.traffic.losses)
    assert losses[0] == losses[1]
    assert losses[0][0] == 0.0 < min(losses[0][k] for k in (1, 2, 3))
