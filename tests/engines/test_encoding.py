"""The client half of links: encoders, each in a few lines, over algorithms and engines that know neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom as fl
from fedloom.coordinator.assembly import _check_devices
from fedloom.coordinator.part import encoders_of
from fedloom.core import tree
from fedloom.core.random import uniform
from fedloom.core.setting import setting
from fedloom.core.types import Params
from fedloom.engines.engine_options import Options
from fedloom.engines.links import Encoder, Link
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers
from fedloom.testing.in_process import DevicesInProcess
from fedloom.testing.messages import Messages
from tiny import LOCAL, federation, linear, mlp, population

SETTINGS = fl.RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1)


@dataclass(frozen=True)
class TopK(Encoder):
    """The largest numbers of what an upload changes; what is left waits for the client's next one."""

    share: float

    def init(self, params: Params) -> Params:
        return Params({name: torch.zeros_like(t) for name, t in params.items()})

    def encode(self, client: Any, values: Params, kept: Params) -> tuple[dict[str, Tensor], Params]:
        whole = values + Params({name: kept[name] for name in values})
        flat = torch.cat([t.flatten() for t in whole.values()])
        places = flat.abs().topk(max(1, round(self.share * len(flat)))).indices
        sent = {"values": flat[places], "places": places.to(torch.int32)}
        left = flat.scatter(0, places, torch.zeros_like(flat[places]))
        return sent, Params({**kept, **_parted(left, whole)})

    def decode(self, sent: dict[str, Tensor], like: Params) -> Params:
        flat = sent["values"].new_zeros(sum(t.numel() for t in like.values()))
        return _parted(flat.scatter(0, sent["places"].long(), sent["values"]), like)


@dataclass(frozen=True)
class Bits(Encoder):
    """Numbers between the least and the largest of a tensor in `bits` bits each, rounded at random without bias."""

    bits: int

    def encode(self, client: Any, values: Params, kept: tuple[()]) -> tuple[dict[str, Any], tuple[()]]:
        steps, each, out = (1 << self.bits) - 1, 8 // self.bits, {}
        for site, (name, t) in enumerate(values.items()):
            flat = t.flatten()
            least, step = flat.amin(), (flat.amax() - flat.amin()).clamp(min=1e-12) / steps
            at = (flat - least) / step + uniform(client.key, site, flat.shape).to(flat.dtype)
            code = torch.nn.functional.pad(at.floor().clamp(0, steps).to(torch.uint8), (0, -len(flat) % each))
            packed = sum(code[i::each] << (i * self.bits) for i in range(each))
            out[name] = {"packed": packed, "least": least, "step": step}
        return out, ()

    def decode(self, sent: dict[str, Any], like: Params) -> Params:
        out, each, last = {}, 8 // self.bits, (1 << self.bits) - 1
        for name, t in like.items():
            packed = sent[name]["packed"]
            code = torch.stack([packed >> (i * self.bits) & last for i in range(each)], 1).flatten()[: t.numel()]
            out[name] = (sent[name]["least"] + code * sent[name]["step"]).to(t.dtype).view(t.shape)
        return Params(out)


@dataclass(frozen=True)
class Noise(Encoder):
    """Noise on what a client sends: nothing needs to be decoded."""

    std: float

    def encode(self, client: Any, values: Params, kept: tuple[()]) -> tuple[Params, tuple[()]]:
        draw = enumerate(values.items())
        return Params({n: t + self.std * (uniform(client.key, i, t.shape) - 0.5) for i, (n, t) in draw}), ()


def _parted(flat: Tensor, like: Params) -> Params:
    parts = flat.split([t.numel() for t in like.values()])
    return Params({name: p.view(t.shape) for (name, t), p in zip(like.items(), parts, strict=True)})


class Sends(Link):
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder


class Encodes(fl.Part):
    def __init__(self, *encoders: Encoder) -> None:
        self.links = [Sends(encoder) for encoder in encoders]


def job(*encoders: Encoder, algorithm: Any = None, **more: Any) -> fl.Job:
    return fl.Job(
        algorithm=algorithm or fl.FedAvg(local=LOCAL), federation=federation(), model=linear,
        settings=dataclasses.replace(SETTINGS, **more), parts=[Encodes(*encoders)] if encoders else [],
    )  # fmt: skip


def after(kind: Any, encoders: Sequence[Encoder], algorithm: Any, rounds: int = 3, **more: Any) -> tuple[Any, Any, Any]:
    """Return server, states and bytes of some rounds of an engine, the last of which meets a new client."""
    engine = kind(population(mlp), algorithm, Options(encoders=tuple(encoders), **more))
    server, moved = engine.init(), []
    for round in range(rounds):
        server = engine.round(server, (0, 1, 2) if round < rounds - 1 else (1, 2, 4), round)
        moved.append((dict(engine.traffic.up), dict(engine.traffic.kinds)))
    states = engine.all_states() if isinstance(engine, DevicesInProcess) else dict(engine.states)
    engine.close()
    return server, states, moved


def same(one: Any, other: Any) -> bool:
    """Return whether two trees have the same leaves, bit for bit."""
    pairs = list(zip(tree.leaves(one), tree.leaves(other), strict=True))
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


METHODS = [fl.FedAvg, fl.Scaffold, fl.FedPer, fl.LGFedAvg, fl.FedCurv]


@pytest.mark.slow
@pytest.mark.parametrize("encoders", [[TopK(0.2)], [Bits(4)], [Noise(0.1), TopK(0.2)]], ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_engines_agree_on_what_is_encoded(encoders: list[Encoder], method: Any) -> None:
    algorithm = method(local=LOCAL)
    expected = after(Loop, encoders, algorithm)
    for kind in (Messages, DevicesInProcess, *([Workers] if method is fl.Scaffold else [])):
        assert same(after(kind, encoders, algorithm), expected), kind
    server, states, moved = after(Stacked, encoders, algorithm)
    for a, b in zip(tree.leaves(expected[:2]), tree.leaves((server, states)), strict=True):
        assert torch.allclose(a.double(), b.double(), atol=1e-6)
    assert moved == expected[2]


@pytest.mark.slow
def test_states_of_encoders_travel_and_stay_alike() -> None:
    """With the messages, in stacks of two kinds of clients, and on devices."""
    algorithm, encoders = fl.Scaffold(local=LOCAL), [TopK(0.2)]
    server, states, moved = after(Loop, encoders, algorithm)
    assert sorted(states) == [0, 1, 2, 4]
    left = states[1].kept["local_update"]
    assert len(left) == 2
    assert all(int((t != 0).sum()) > 0 for each in left for t in tree.leaves(each))
    assert same(after(DevicesInProcess, encoders, algorithm), (server, states, moved))
    stack = after(Stacked, encoders, algorithm, chunk=2)
    for a, b in zip(tree.leaves(stack[:2]), tree.leaves((server, states)), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    both = after(Loop, encoders, algorithm, counts_states=True)
    assert same(both[:2], (server, states))
    assert both[2][2][1]["up_personal"] > 0


@pytest.mark.parametrize(
    ("encoder", "size"), [(TopK(0.2), 9 * 8), (Bits(4), 10 + 3 + 8 + 2 + 4 * 8), (Noise(1), 43 * 4)]
)
def test_bytes_are_of_what_travels(encoder: Encoder, size: int) -> None:
    """Of 43 numbers in 4 tensors."""
    for kind in (Loop, Stacked):
        _, _, moved = after(kind, [encoder], fl.FedAvg(local=LOCAL), rounds=2)
        assert moved[1] == ({1: size, 2: size, 4: size}, {"up_model": 3 * size, "down_model": 3 * 172})
    _, _, moved = after(Loop, [Bits(8)], fl.Scaffold(local=LOCAL), rounds=2)
    assert moved[1][1] == {"up_model": 3 * 75, "up_control": 3 * 75, "down_model": 3 * 172, "down_control": 3 * 172}


def test_answers_are_smaller_on_the_wire() -> None:
    sizes: dict[bool, list[int]] = {False: [], True: []}

    class Weighed(Messages):
        def accept(self, data: Any, request: Any) -> Any:
            sizes[bool(self.options.encoders)].append(len(data))
            return super().accept(data, request)

    for encoders in ((), (Bits(4),)):
        engine = Weighed(population({"net": lambda: mlp(500)}), fl.FedAvg(local=LOCAL), Options(encoders=encoders))
        engine.round(engine.init(), (0, 1), 0)
        engine.close()
    plain, encoded = min(sizes[False]), max(sizes[True])
    assert plain > 4 * 4003
    assert encoded < plain / 2  # with names and structures


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_sparse_uploads_learn_with_what_they_left_behind(engine: Any, tmp_path: Path) -> None:
    whole, plain = job(TopK(1.0), engine=engine, rounds=8).run(), job(engine=engine, rounds=8).run()
    assert np.allclose(whole.series("global_loss"), plain.series("global_loss"), atol=1e-5)
    few = job(TopK(0.2), engine=engine, rounds=8).run(tmp_path / "whole")
    assert few.series("bytes_up")[1] == 3 * 8 * 3
    assert few.series("global_accuracy")[-1] > 0.6

    def stop(history: fl.History) -> None:
        if len(history.metrics) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(TopK(0.2), engine=engine, rounds=8).run(tmp_path / "cut", on_round=stop)
    with pytest.raises(fl.SettingError, match="encoders"):
        job(TopK(0.3), engine=engine, rounds=8).run(tmp_path / "cut", resume=True)
    again = job(TopK(0.2), engine=engine, rounds=8).run(tmp_path / "cut", resume=True)
    assert again.metrics == few.metrics
    assert same((again.server, dict(again.clients)), (few.server, dict(few.clients)))


def test_what_is_left_is_that_of_answers_that_count() -> None:
    """A client that is lost after it has trained keeps what it had left before."""

    def lost(round: int, exchange: int, client: int) -> str | None:
        return "its answer is lost" if (round, client) == (1, 0) else None

    states = []
    for rounds in (1, 2):
        engine = Loop(population(mlp), fl.FedAvg(local=LOCAL), Options(encoders=(TopK(0.2),), faults=lost))
        server = engine.init()
        for round in range(rounds):
            server = engine.round(server, (0, 1), round)
        states.append([engine.states[k].kept for k in (0, 1)])
    assert same(states[0][0], states[1][0])
    assert not same(states[0][1], states[1][1])


def test_draws_are_of_round_client_set_and_encoder_and_without_bias() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Sees(Encoder):
        def encode(self, client: Any, values: Params, kept: tuple[()]) -> Any:
            seen.append(int(client.key))
            return values, ()

    after(Loop, [Sees(), Sees()], fl.Scaffold(local=LOCAL), rounds=2)
    assert len(seen) == len(set(seen)) == 2 * 3 * 2 * 2
    values = Params({"w": torch.linspace(-1, 2, 7), "b": torch.zeros(3)})

    def sent(key: Tensor) -> Params:
        return Bits(2).decode(Bits(2).encode(SimpleNamespace(key=key), values, ())[0], values)

    found = torch.vmap(sent)(torch.arange(2000) * 7919)
    assert torch.equal(found["b"], torch.zeros(2000, 3))
    assert found["w"].unique().numel() == 4
    assert torch.allclose(found["w"].mean(0), values["w"], atol=0.05)


def test_noise_on_clients_moves_the_mean_and_needs_no_decoding() -> None:
    """Of a quiet one nothing is seen but the rounding of differences."""
    plain, quiet, loud = (
        tree.leaves(after(Loop, encoders, fl.FedAvg(local=LOCAL))[0]) for encoders in ([], [Noise(0.0)], [Noise(1.0)])
    )
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, quiet, strict=True))
    assert not any(torch.allclose(a, b, atol=1e-2) for a, b in zip(plain, loud, strict=True))


def test_statistics_of_batchnorm_and_weights_travel_as_they_are() -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))

    ends = []
    for encoders in ((), (TopK(0.1),)):
        engine = Loop(population(network), fl.FedAvg(local=LOCAL), Options(encoders=encoders))
        (end,) = engine.round(engine.init(), (0, 1), 0).values()
        ends.append(end)
    assert same(ends[0].buffers, ends[1].buffers)
    assert not same(ends[0].params, ends[1].params)


@pytest.mark.slow
def test_new_clients_and_replays_know_encoders(tmp_path: Path) -> None:
    made = dataclasses.replace(
        job(TopK(0.3), algorithm=fl.PFedSD(local=LOCAL)), new=fl.NewClients(1), settings=SETTINGS
    )
    history = made.run(tmp_path / "run")
    assert {"new_global_accuracy", "new_fine_tuned_accuracy", "new_personalised_accuracy"} <= history.metrics[-1].keys()
    replay = made.replay(tmp_path / "run", 3)
    exchange = replay.exchanges[0]
    assert exchange.upload.value.params.keys() == {"weight", "bias"}
    assert type(exchange.state) is type(history.clients[exchange.client])
    assert fl.verify(tmp_path / "run").whole


# ---- refusals


class Names(fl.FedAvg):
    """Says less of its upload than there is."""

    @fl.on_client
    def local_update(self, client: Any, w: fl.Weights) -> tuple[Any, tuple[fl.Weighted[fl.Weights], Any]]:
        state, upload = super().local_update(client, w)
        return state, (upload, client.weigh(w.params, "uniform"))


def test_an_upload_that_cannot_be_encoded_is_refused_by_name() -> None:
    for algorithm, encoders, match in (
        (fl.FedProto, [Bits(4)], "Bits encodes the Weights and Params of uploads, and FedProto uploads none by the"),
        (fl.IFCA, [Bits(4)], "Bits encodes what an upload changes of the model that was sent, and local_update"),
        (Names, [Bits(4)], "local_update uploads 2 sets of named tensors, Weights or Params, and its annotation"),
        (fl.FedAvg, [TopK(0.1), Bits(4)], "Bits encodes named tensors, and TopK before it sends others: turn them"),
        (fl.FedAvg, [Wrong("sent")], "Wrong must send tensors, got str"),
        (fl.FedAvg, [Wrong("kept")], "Wrong must keep what init makes, .* write init, or return what fits it"),
        (fl.FedAvg, [Wrong("decoded")], "Wrong.decode must give back the values' names, shapes and types, got"),
    ):  # fmt: skip
        with pytest.raises(fl.FedloomError, match=match):
            after(Loop, encoders, algorithm(local=LOCAL), rounds=1)


@dataclass(frozen=True)
class Wrong(Encoder):
    where: str

    def encode(self, client: Any, values: Params, kept: Any) -> Any:
        sent = {"word": "none"} if self.where == "sent" else values
        return sent, torch.zeros(()) if self.where == "kept" else ()

    def decode(self, sent: Any, like: Params) -> Any:
        return Params({name: t[:1] for name, t in sent.items()}) if self.where == "decoded" else sent


def test_a_model_without_a_reference_travels_by_an_encoder_of_values() -> None:
    @dataclass(frozen=True)
    class OfValues(Noise):
        of_differences = False

    plain, quiet = (after(Loop, encoders, fl.IFCA(local=LOCAL))[0] for encoders in ([], [OfValues(0.0)]))
    assert same(plain, quiet)


@dataclass(frozen=True)
class Lying(TopK):
    """On a device: places beyond the end."""

    share: float = 0.2

    def encode(self, client: Any, values: Params, kept: Params) -> tuple[dict[str, Tensor], Params]:
        sent, left = super().encode(client, values, kept)
        wrong = torch.full_like(sent["places"], 10_000)
        return sent | {"places": torch.where(client.num_examples > 0, wrong, wrong)}, left


def test_what_a_device_sends_and_nobody_can_read_is_refused() -> None:
    engine = DevicesInProcess(population(mlp), fl.FedAvg(local=LOCAL), Options(encoders=(TopK(0.2),)))
    begun = engine.init()
    engine.controller(0)  # made by the server's options
    answering = engine.controllers[0] = engine.controller(0)
    object.__setattr__(answering.runtime.encoders, "encoders", (Lying(),))
    server = engine.round(begun, (0, 1), 0)
    (failure,) = engine.traffic.failed
    assert (failure.client, engine.traffic.accepted) == (0, 1)
    assert "what it sent cannot be decoded: " in failure.reason
    assert not same(server, begun)
    with pytest.raises(Exception, match="out of bounds"):
        after(Loop, [Lying()], fl.FedAvg(local=LOCAL))


def test_encoders_cannot_be_with_sums_or_unknown_to_devices() -> None:
    with pytest.raises(fl.SettingError, match="TopK looks at each upload, and partial_sums = 2 sends sums"):
        Options(encoders=(TopK(0.2),), partial_sums=2)


@dataclass(frozen=True)
class Asking(fl.RunSettings):
    """A setting and its file: all that an encoder takes."""

    upload: str = setting("whole", part=f"{__name__}:Compressed")


class Compressed(fl.Part):
    def __init__(self, settings: Any) -> None:
        self.links = [Sends(encoder) for encoder in self.encoders(settings)]

    @classmethod
    def of(cls, job: Any) -> Compressed:
        return cls(job.settings)

    @classmethod
    def encoders(cls, settings: Any) -> tuple[Encoder, ...]:
        name, _, bits = settings.upload.partition(":")
        return (Bits(int(bits)),) if name == "bits" else ()


def test_a_setting_names_what_clients_do_and_devices_read_it() -> None:
    told = {f.name: getattr(SETTINGS, f.name) for f in dataclasses.fields(SETTINGS)}
    for upload, size in (("bits:4", 6 + 2 + 2 * 8), ("whole", 15 * 4)):
        settings = Asking(**told, upload=upload)
        assert encoders_of(settings) == ((Bits(4),) if size < 60 else ())
        history = dataclasses.replace(job(), settings=settings).run()
        assert history.series("bytes_up")[1] == 3 * size
        _check_devices(Options(encoders=encoders_of(settings)), settings)
    with pytest.raises(fl.SettingError, match=r"devices know a run by its settings .* and TopK of a part of one's own"):
        _check_devices(Options(encoders=(TopK(0.2),)), settings)
    with pytest.raises(fl.SettingError, match="and own:norms of a part of one's own is for clients"):
        _check_devices(Options(works=("evaluation", "own:norms")), settings)
