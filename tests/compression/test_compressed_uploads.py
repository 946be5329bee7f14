"""Compressed uploads in runs: what waits is what was not sent, bytes by formula, engines and devices, and liars."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom as fl
from fedloom.compression.compressed_uploads import Compressed, CompressedDown
from fedloom.compression.encoders_by_name import compressed
from fedloom.compression.fewer_bits import Bits
from fedloom.core import tree
from fedloom.core.errors import NonFiniteError, SettingError
from fedloom.core.types import Params
from fedloom.engines.chain import chain_of
from fedloom.engines.encoding import Decoded, Encoders
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import LOCAL, federation, linear, mlp, population

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)
SIZES = {  # of 20 + 5 + 15 + 3 numbers in two matrices, [5, 4] and [3, 5], and two vectors
    "bits:8": 43 + 4 * 4,
    "bits:4": 10 + 3 + 8 + 2 + 4 * 4,
    "bits:2": 5 + 2 + 4 + 1 + 4 * 4,
    "bits:2?scope=whole": 11 + 4,
    "sign": 3 + 1 + 2 + 1 + 4 * 4,
    "float16": 2 * 43,
    "topk:0.2": 9 * 4 + 7,  # 6 bits a place
    "topk:5": 5 * 4 + 4,
    "topk:0.2?scope=tensor": (4 + 1 + 3 + 1) * 4 + 3 + 1 + 2 + 1,
    "randk:0.2": 9 * 4 + 8,
    "topk:0.2+bits:4": 5 + 4 + 7,
    "randk:0.2+sign": 2 + 4 + 8,
    "lowrank:1": (5 + 4 + 3 + 5 + 5 + 3) * 4,
    "lowrank:2": (2 * (5 + 4) + 15 + 5 + 3) * 4,
    "lowrank:1+float16": (5 + 4 + 3 + 5 + 5 + 3) * 2,
}


def after(kind: Any, text: str, algorithm: Any = None, rounds: int = 3, **more: Any) -> tuple[Any, Any, Any]:
    """Return server, states and bytes of some rounds of an engine, the last of which meets a new client."""
    encoders = () if text == "none" else (compressed(text),)
    engine = kind(population(mlp), algorithm or fl.FedAvg(local=LOCAL), Options(encoders=encoders, **more))
    server, moved = engine.init(), []
    for round in range(rounds):
        server = engine.round(server, (0, 1, 2) if round < rounds - 1 else (1, 2, 4), round)
        moved.append((dict(engine.traffic.up), dict(engine.traffic.kinds)))
    states = engine.all_states() if isinstance(engine, DevicesInProcess) else dict(engine.states)
    engine.close()
    return server, states, moved


def same(one: Any, other: Any, atol: float | None = None) -> bool:
    """Return whether two trees have the same leaves, bit for bit unless some distance is allowed."""
    pairs = [(a, b) for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True) if isinstance(a, Tensor)]
    return all(
        torch.equal(a, b) if atol is None else torch.allclose(a.double(), b.double(), atol=atol) for a, b in pairs
    )


@pytest.mark.some(5)
@pytest.mark.parametrize("text", SIZES)
def test_bytes_are_those_of_the_formula(text: str) -> None:
    for kind in (Loop, Stacked):
        _, _, moved = after(kind, text, rounds=1)
        assert moved[0][0] == {1: SIZES[text], 2: SIZES[text], 4: SIZES[text]}, kind


ENCODERS = ["topk:0.2+bits:4", "bits:2", "sign", "lowrank:1", "randk:0.3", "float16?feedback=true"]


@pytest.mark.some(1)
@pytest.mark.parametrize("text", ENCODERS)
def test_devices_and_messages_have_the_bits_and_bytes_of_the_loop(text: str) -> None:
    algorithm = fl.Scaffold(local=LOCAL)
    expected = after(Loop, text, algorithm)
    for kind in (DevicesInProcess, Messages):
        found = after(kind, text, algorithm)
        assert same(found[:2], expected[:2]), kind
        assert found[2] == expected[2]


@pytest.mark.slow
@pytest.mark.parametrize("text", ENCODERS)
@pytest.mark.parametrize("method", [fl.FedAvg, fl.Scaffold, fl.FedPer, fl.FedCurv])
def test_stacks_and_workers_agree(text: str, method: Any) -> None:
    """A stack up to rounding, which moves a number to another step now and then: with numbers of float64, to none."""
    algorithm = method(local=LOCAL)
    expected = after(Loop, text, algorithm)
    assert same(after(Workers, text, algorithm)[:2], expected[:2])
    server, states, moved = after(Stacked, text, algorithm)
    assert moved == expected[2]
    assert same((server, states), expected[:2], atol=1e-5)


def client(seed: int = 0) -> Any:
    return SimpleNamespace(key=torch.tensor(1000 + seed))


def uploads(count: int) -> list[Params]:
    """Return uploads of whole numbers, which add up without rounding."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {"w": (4, 3), "b": (4,), "s": ()}

    def whole(shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(np.asarray(rng.integers(-9, 9, shape), np.float64))

    return [Params({name: whole(shape) for name, shape in shapes.items()}) for _ in range(count)]


EXACT = ["topk:0.2", "topk:2?scope=tensor", "randk:0.2?feedback=true"]
ROUNDED = ["sign", "lowrank:1", "bits:2?feedback=true", "topk:0.3+bits:2", "topk:0.3+sign", "lowrank:1+float16"]


@pytest.mark.parametrize("text", EXACT + ROUNDED)
def test_what_was_sent_and_what_is_left_are_what_there_was(text: str) -> None:
    """Exactly, where what is sent is itself a number of the upload."""
    encoder, values = compressed(text), uploads(12)
    kept: Any = encoder.init(values[0])
    sent = []
    for round, each in enumerate(values):
        message, kept = encoder.encode(client(round), each, kept)
        sent.append(encoder.decode(message, each))
    for name in values[0]:
        there, told = (sum(each[name] for each in some) for some in (values, sent))
        if text in EXACT:
            assert torch.equal(told + kept["left"][name], there)
        else:
            assert torch.allclose(told + kept["left"][name], there, atol=1e-9)
    assert any(bool(t.any()) for t in kept["left"].values())


def test_without_feedback_nothing_is_kept() -> None:
    encoder = compressed("topk:0.2?feedback=false")
    assert tree.leaves(encoder.init(uploads(1)[0])) == []
    again = [encoder.encode(client(), each, encoder.init(each))[0] for each in uploads(1) * 2]
    assert same(*again)


def test_whole_numbers_and_what_is_empty_travel_as_they_are() -> None:
    values = Params({"w": torch.tensor([[0.5, 2.0]]), "n": torch.tensor([3, 4]), "none": torch.zeros(0, 3)})
    for text in ("topk:1", "sign", "bits:8?scope=whole", "float16"):
        encoder = compressed(text)
        message, _ = encoder.encode(client(), values, encoder.init(values))
        assert message["others"].keys() == {"n", "none"}
        found = encoder.decode(message, Params({name: t.to("meta") for name, t in values.items()}))
        assert list(found) == list(values)
        assert torch.equal(found["n"], values["n"])
        assert found["none"].shape == (0, 3)
    nothing = Params({"n": torch.tensor([3])})
    message, _ = compressed("topk:1").encode(client(), nothing, compressed("topk:1").init(nothing))
    assert torch.equal(compressed("topk:1").decode(message, nothing)["n"], nothing["n"])


def test_statistics_of_batchnorm_travel_as_they_are() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    ends, sizes = [], []
    for encoders in ((), (compressed("topk:3"),)):
        engine = Loop(population(network), fl.FedAvg(local=LOCAL), Options(encoders=encoders))
        (end,) = engine.round(engine.init(), (0, 1), 0).values()
        ends.append(end)
        sizes.append(engine.traffic.up[0])
    assert same(ends[0].buffers, ends[1].buffers)
    assert ends[0].buffers["1.num_batches_tracked"] > 0
    assert not same(ends[0].params, ends[1].params)
    numbers = sum(t.numel() for t in ends[0].params.values())
    assert sizes[0] - sizes[1] == 4 * numbers - (3 * 4 + 3)  # 7 bits a place


def test_what_is_none_of_the_models_tensors_has_no_feedback() -> None:
    encoder = compressed("topk:2")
    kept = encoder.init(uploads(1)[0])
    with pytest.raises(SettingError, match=r"and uploads 'other' \[2\] besides: add \?feedback=false to compression"):
        encoder.encode(client(), Params({"other": torch.zeros(2)}), kept)
    without = compressed("topk:2?feedback=false")
    other = Params({"other": torch.ones(3)})
    assert without.decode(without.encode(client(), other, without.init(uploads(1)[0]))[0], other)["other"].sum() == 2


def test_what_is_left_is_that_of_answers_that_count() -> None:
    """A client that is lost after it has trained keeps what it had left before."""

    def lost(round: int, exchange: int, client: int) -> str | None:
        return "its answer is lost" if (round, client) == (1, 0) else None

    states = []
    for rounds in (1, 2):
        options = Options(encoders=(compressed("lowrank:1+bits:4"),), faults=lost)
        engine = Loop(population(mlp), fl.FedAvg(local=LOCAL), options)
        server = engine.init()
        for round in range(rounds):
            server = engine.round(server, (0, 1), round)
        states.append([engine.states[k].kept for k in (0, 1)])
    assert same(states[0][0], states[1][0])
    assert not same(states[0][1], states[1][1])


# ---- downloads


@pytest.mark.parametrize("method", [fl.Scaffold, fl.FedNova])
def test_encoded_downloads_have_the_bits_and_bytes_of_the_loop_on_devices(method: Any) -> None:
    """Trained is the model that was read, and what an upload changes is its difference to that one."""
    algorithm, ends = method(local=LOCAL), []
    down = CompressedDown(rounding=Bits(8))
    for kind in (Loop, DevicesInProcess, Messages, Stacked):
        engine = kind(population(linear), algorithm, Options(encoders=(compressed("topk:5"), down)))
        server = engine.init()
        for round in range(2):
            server = engine.round(server, (0, 1), round)
        ends.append((server, dict(engine.traffic.down), dict(engine.traffic.up)))
        engine.close()
    assert same(ends[1], ends[0])
    assert same(ends[2], ends[0])
    assert same(ends[3][0], ends[0][0], atol=1e-5)
    assert all(end[1:] == ends[0][1:] for end in ends)
    sets = 2 if method is fl.Scaffold else 1
    assert ends[0][1] == {0: sets * 23, 1: sets * 23}


def test_uploads_beside_encoded_downloads_go_their_own_way() -> None:
    """Under masks there is nothing to be read of them."""
    for encoders, read in (((CompressedDown(rounding=Bits(8)),), False), ((compressed("bits:8"),), True)):
        links = chain_of(Options(encoders=encoders)).links
        assert any(isinstance(link, Decoded) for link in links) == read


def test_clients_keep_their_states_beside_encoded_downloads() -> None:
    """Their own models move, where nothing is done to uploads."""
    engine = Loop(population(linear), fl.Ditto(local=LOCAL), Options(encoders=(CompressedDown(rounding=Bits(8)),)))
    engine.round(engine.init(), (0, 1), 0)
    assert not same(engine.states[0], engine.fresh(0))
    assert not same(engine.states[0], engine.states[1])


@pytest.mark.parametrize("method", [fl.FedProto, fl.LocalOnly])
def test_methods_that_send_no_named_tensors_are_refused(method: Any) -> None:
    with pytest.raises(SettingError, match=f"that clients are sent, and {method.__name__} sends none .*: leave it out"):
        Encoders((CompressedDown(rounding=Bits(8)),), method(local=LOCAL))


def test_downloads_are_drawn_by_round_and_right_in_the_mean() -> None:
    encoders = Encoders((CompressedDown(rounding=Bits(2)),), fl.FedAvg(local=LOCAL))
    model = fl.Weights({"w": torch.linspace(-1, 1, 21)}, {"n": torch.tensor(3)})
    (read,) = encoders.whole(encoders.small((model,), 7))
    assert torch.equal(read.buffers["n"], model.buffers["n"])
    assert same(encoders.whole(encoders.small((model,), 7)), (read,))
    reads = torch.stack([encoders.whole(encoders.small((model,), key))[0].params["w"] for key in range(900)])
    assert torch.allclose(reads.mean(0), model.params["w"], atol=0.08)
    assert not torch.equal(reads[0], reads[1])


@dataclasses.dataclass(frozen=True)
class AsksTwice(fl.FedAvg):
    """Asks all twice in a round for one method's answers, and takes the mean of the last."""

    def round(self, w: Any, cohort: Any) -> Any:
        cohort.gather(self.local_update, w)
        return w.merge(cohort.gather(self.local_update, w).mean)


def test_downloads_are_made_and_drawn_once_for_each_exchange() -> None:
    engine = Loop(population(linear), AsksTwice(local=LOCAL), Options(encoders=(CompressedDown(rounding=Bits(2)),)))
    encoders, keys = engine.runtime.encoders, list[int]()
    assert encoders is not None
    small = encoders.small
    encoders.small = lambda broadcast, key: (keys.append(key), small(broadcast, key))[1]  # type: ignore[method-assign]
    engine.round(engine.init(), (0, 1), 0)
    assert len(keys) == len({*keys}) == 2


def test_a_device_refuses_a_download_of_another_shape() -> None:
    options = Options(encoders=(CompressedDown(rounding=Bits(8)),))
    engine = DevicesInProcess(population(linear), fl.FedAvg(local=LOCAL), options)
    encoders: Any = engine.runtime.encoders
    server, small, wrong = engine.init(), encoders.small, fl.Weights({"weight": torch.ones(2, 4)})
    encoders.small = lambda broadcast, key: small((wrong,), key)
    encoders.whole = lambda travelled: tuple(server.values())
    after = engine.round(server, (0, 1), 0)
    assert same(after, server)
    assert len(engine.traffic.failed) == 2
    assert "broadcast[0].params['weight'] must be torch.float32 [3, 4] as in this" in engine.traffic.failed[0].reason


# ---- runs


def job(compression: str = "none", **more: Any) -> fl.Job:
    of_job = ("algorithm", "model", "federation", "attack", "new", "parts", "faults")
    given = {name: more.pop(name) for name in of_job if name in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear, "federation": federation()} | given
    return fl.Job(settings=dataclasses.replace(SETTINGS, compression=compression, **more), **given)


@pytest.mark.some(1)
@pytest.mark.parametrize("text", ["topk:0.2+bits:4", "lowrank:1", "bits:2", "sign"])
def test_a_run_that_was_cut_ends_with_the_same_bits(text: str, tmp_path: Path) -> None:
    whole = job(text, model=mlp).run(tmp_path / "whole")

    def stop(history: fl.History) -> None:
        if len(history.metrics) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(text, model=mlp).run(tmp_path / "cut", on_round=stop)
    again = job(text, model=mlp).run(tmp_path / "cut", resume=True)
    assert again.metrics == whole.metrics
    assert same((again.server, dict(again.clients)), (whole.server, dict(whole.clients)))
    assert fl.verify(tmp_path / "cut").whole


@pytest.mark.slow
def test_small_uploads_learn() -> None:
    """Accuracy and bytes beside uploads that travel whole; what is left out and never comes costs the most."""
    data = federation(clients=12, per_client=30)
    found = {}
    for text in ("none", "bits:8", "bits:4", "bits:2", "topk:0.1", "randk:0.1", "sign", "lowrank:1", "float16"):
        for feedback in (True, False) if text != "none" else (True,):
            said = text if text == "none" else f"{text}?feedback={str(feedback).lower()}"
            history = job(said, federation=data, model=lambda: mlp(20), rounds=20, cohort_size=6).run()
            losses = history.series("global_loss")
            found[text, feedback] = losses[-1], history.series("global_accuracy")[-1], history.series("bytes_up")[1]
    loss, accuracy, size = found["none", True]
    for (text, feedback), (its_loss, its_accuracy, its_size) in found.items():
        assert its_size <= size / (2 if text != "none" else 1) + 64, found
        if feedback or text in ("bits:8", "bits:4", "float16"):
            assert its_accuracy >= accuracy - 0.06, found
            assert its_loss < loss + 0.2, found  # what waits for many rounds comes late: numbers at random
    assert found["topk:0.1", True][0] < found["topk:0.1", False][0]
    assert found["sign", True][0] < found["sign", False][0]


# ---- devices that lie


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lying(Compressed):
    """Sends something else in the place of one tensor of its message."""

    path: tuple[str, ...]
    made: Any

    def encode(self, client: Any, values: Params, kept: Any) -> Any:
        message, new = super().encode(client, values, kept)
        node = message
        for name in self.path[:-1]:
            node = node[name]
        node[self.path[-1]] = self.made(node[self.path[-1]])
        return message, new


def lies(text: str, path: tuple[str, ...], made: Any) -> Any:
    """Return what comes of a round of two devices of which one lies."""
    encoder = compressed(text)
    options = Options(encoders=(encoder,), on_nonfinite="refuse")
    engine = DevicesInProcess(population(linear), fl.FedAvg(local=LOCAL), options)
    begun = engine.init()
    engine.controllers[0] = engine.controller(0)
    fields = {f.name: getattr(encoder, f.name) for f in dataclasses.fields(encoder)}
    object.__setattr__(engine.controllers[0].runtime.encoders, "encoders", (Lying(**fields, path=path, made=made),))
    engine.round(begun, (0, 1), 0)
    (failure,) = engine.traffic.failed
    assert (failure.client, engine.traffic.accepted) == (0, 1)
    engine.close()
    return failure.reason


ONES, LOW = (lambda t: torch.full_like(t, 255)), torch.zeros_like
PLACES, STEPS, SCALE = ("beside", ""), ("numbers", "weight", "steps"), ("numbers", "weight", "scale")


@pytest.mark.parametrize(
    ("text", "path", "made", "said"),
    [
        ("topk:3", PLACES, ONES, "what it sent cannot be decoded: places of numbers are distinct"),
        ("topk:3", PLACES, LOW, "what it sent cannot be decoded: places of numbers are distinct"),
        ("topk:3+bits:4", PLACES, lambda t: t[:1], "refused: upload is not what was asked for: 6 tensors (uint8[1, 1]"),
        ("topk:3", PLACES, lambda t: t.to(torch.int64), "refused: upload is not what was asked for: 5 tensors (int64"),
        ("bits:4", STEPS, ONES, "what it sent cannot be decoded: numbers of 4 bits are up to 14 steps"),
        ("bits:4", STEPS, lambda t: torch.cat([t, t]), "refused: upload is not what was asked for"),
        ("bits:4", SCALE, lambda t: t * float("nan"), "the upload is not finite"),
        ("sign", SCALE, lambda t: t / 0, "the upload is not finite"),
        ("lowrank:1", ("numbers", "weight left"), lambda t: t * float("inf"), "the upload is not finite"),
    ],
)  # fmt: skip
def test_what_a_device_sends_is_checked_before_it_is_read(text: str, path: Any, made: Any, said: str) -> None:
    assert said in lies(text, path, made)


def test_a_run_that_diverges_says_so_and_names_the_client() -> None:
    algorithm = fl.FedAvg(local=dataclasses.replace(LOCAL, optimiser=fl.SGD(lr=1e38)))
    for text in ("bits:4", "sign"):
        with pytest.raises(NonFiniteError, match=r"client [0-5]"):
            job(text, algorithm=algorithm).run()
