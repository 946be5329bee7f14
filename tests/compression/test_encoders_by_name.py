"""The setting `compression`: its words, what it can be with, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.compression.compressed_uploads import Compressed
from fedloom.compression.encoders_by_name import Compression, compressed
from fedloom.compression.fewer_bits import Bits, Float16, Signs
from fedloom.compression.fewer_numbers import LowRank, RandK, TopK
from fedloom.core.errors import SettingError
from fedloom.core.random import fold_in
from fedloom.core.types import Params
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.privacy.local_noise import LocalNoise
from fedloom.testing.subject import Subject
from small import ONE_SHOT
from tiny import LOCAL, federation, linear

NONE, OTHERS = "uploads none by the annotations", "in whose place no model or one of several was sent"
REFUSED = dict.fromkeys(["fedmd", "fedmd_kt", "fedproto", "kt_pfl", "local_only", "sim_pfl", "topk_pfl"], NONE) | {
    "fedfomo": OTHERS, "ifca": OTHERS,
}  # fmt: skip
SETTINGS = fl.RunSettings(rounds=2, cohort_size=3, engine="loop", threads=1)


def job(compression: str, **more: Any) -> fl.Job:
    of_job = ("algorithm", "model", "federation", "attack", "new", "parts")
    given = {name: more.pop(name) for name in of_job if name in more}
    given = {"algorithm": fl.FedAvg(local=LOCAL), "model": linear, "federation": federation()} | given
    return fl.Job(settings=dataclasses.replace(SETTINGS, compression=compression, **more), **given)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("bits:8", Compressed(rounding=Bits(8))),
        ("bits:2?scope=whole&feedback=true", Compressed(rounding=Bits(2), whole=True, feedback=True)),
        ("topk:0.01", Compressed(fewer=TopK(0.01), whole=True, feedback=True)),
        ("topk:5?scope=tensor&feedback=false", Compressed(fewer=TopK(5))),
        ("randk:0.5", Compressed(fewer=RandK(0.5), whole=True)),
        ("sign", Compressed(rounding=Signs(), feedback=True)),
        ("float16", Compressed(rounding=Float16())),
        ("lowrank:2", Compressed(fewer=LowRank(2), feedback=True)),
        ("topk:0.01+bits:4", Compressed(fewer=TopK(0.01), rounding=Bits(4), whole=True, feedback=True)),
        ("randk:9+sign", Compressed(fewer=RandK(9), rounding=Signs(), whole=True, feedback=True)),
    ],
)
def test_words_and_what_they_make(text: str, made: Compressed) -> None:
    assert compressed(text) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bit:4", r"unknown compression 'bit:4' \(did you mean 'bits'\?\); there are none, topk:SHARE, .*, module:na"),
        ("bits:3", "a number has 2, 4 or 8 bits, got 3: write one of them"),
        ("bits", "this compression is written bits:BITS, got 'bits': BITS is a whole number"),
        ("topk:0", "a share is above 0 and below 1, and a count is whole, got 0: correct it"),
        ("topk:1.5", "a share is above 0 and below 1, and a count is whole, got 1.5: correct it"),
        ("randk:-1", "a share is above 0 and below 1"),
        ("lowrank:0", "a rank is 1 or more, got 0: raise it"),
        ("bits:4+topk:0.1", "leaves numbers out .*, then one that writes them in fewer bits .*topk:0.01.bits:4"),
        ("bits:4+sign", "write it as in topk:0.01"),
        ("topk:3+randk:2", "write it as in topk:0.01"),
        ("topk:3?feedback=maybe", "feedback of compression is true or false, got 'feedback=maybe'"),
        ("topk:3?whole=true", "of compression one says, each once, some of feedback=true&scope=tensor, got 'whole"),
        ("lowrank:2?scope=whole", "lowrank is of matrices, each by itself, got 'lowrank:2.scope=whole': leave scope"),
        ("nowhere:Mine", "an encoder of compression 'nowhere:Mine': cannot import 'nowhere'"),
        ("math:pi", "an object or a class derived from fedloom.Encoder, got 'math:pi': derive it"),
    ],
)  # fmt: skip
def test_words_that_are_none_are_refused_before_the_run(text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job(text).run()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"secure_aggregation": "range=8"}, "'bits:4' is read upload by upload, and masked .*secure_aggregation = "),
        ({"partial_sums": 2}, "is of single messages, and partial_sums = 2 sends sums: leave one of them out"),
        ({"algorithm": fl.Centralised(local=LOCAL)}, "is of what travels, got Centralised, which has all examples"),
        ({"algorithm": fl.FedMD(local=LOCAL)}, "FedMD"),
        ({"algorithm": fl.IFCA(local=LOCAL)}, "of the model that was sent, and local_update uploads one in whose"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_with_is_refused_before_the_run(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=said):
        job("bits:4", **more).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"bound": "clip:0.1"},
        {"aggregator": "median"},
        {"attack": fl.Scale(-1, share=0.4)},
        {"stateless": True},
        {"new": fl.NewClients(1)},
        pytest.param({"privacy": "central:noise=1,delta=1e-5,clip=0.1"}, marks=pytest.mark.slow),
        pytest.param({"privacy": "examples:noise=1,delta=1e-5,clip=1"}, marks=pytest.mark.slow),
        {"algorithm": fl.FedAvg(local=dataclasses.replace(LOCAL, keep_optimiser=True, optimiser=fl.Adam(lr=0.01)))},
    ],
    ids=lambda more: next(iter(more)),
)  # fmt: skip
def test_what_it_is_with(more: dict[str, Any]) -> None:
    dense, small = (job(text, **more).run().series("bytes_up")[1] for text in ("none", "topk:3+bits:4"))
    assert small < dense / 2 or "stateless" in more


@pytest.mark.filterwarnings("ignore:FedAvg. the global_loss")
def test_an_upload_that_lies_is_bounded_as_it_is_read() -> None:
    liars = fl.Scale(-1000, clients=tuple(range(6)))
    ends: Any = [job("bits:8", attack=liars, bound=bound).run().server for bound in ("none", "clip:0.1")]
    ends = [end["net"] if "net" in end else next(iter(end.values())) for end in ends]
    assert ends[0].params["weight"].abs().max() > 10 > 1 > ends[1].params["weight"].abs().max()


def test_noise_comes_before_rounding() -> None:
    """What a client sends has noise first: all that follows is computed of a private number."""
    begun = job("bits:4", privacy="local:noise=5,delta=1e-5,clip=0.5")
    first, then = begun.begun_parts.encoders
    assert isinstance(first, LocalNoise)
    assert then == compressed("bits:4")
    history = begun.run()
    assert history.metrics[-1]["epsilon"] > 0
    assert history.series("bytes_up")[1] == 3 * (6 + 2 + 2 * 4)


class Thirds(fl.Encoder):
    """Of one's own."""

    def encode(self, client: Any, values: Params, kept: Any) -> Any:
        return Params({name: t[:1] for name, t in values.items()}), kept

    def decode(self, sent: Any, like: Params) -> Params:
        return Params({name: sent[name].expand(t.shape) for name, t in like.items()})


WRONG = [
    "topk:0.5?feedback=false",
    "lowrank:1",
    "sign?feedback=false",
    "bits:8?feedback=true",
    "float17",
    "mine:Thirds",
]


@pytest.mark.parametrize("text", WRONG)
def test_only_whole_models_are_sent(text: str) -> None:
    with pytest.raises(SettingError, match=r"sent whole models, .* got compression_down = |unknown compress"):
        job("none", compression_down=text).run()


def test_models_that_are_sent_encoded_are_trained_under_masks() -> None:
    history = job("none", compression_down="bits:8", secure_aggregation="range=8").run()
    whole = job("none", secure_aggregation="range=8").run()
    assert whole.series("bytes_down")[1] - history.series("bytes_down")[1] == 3 * (60 - 23)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"partial_sums": 2}, "compression_down = 'bits:8' is of single messages, and partial_sums = 2 sends sums"),
        ({"algorithm": fl.Centralised(local=LOCAL)}, "compression_down = 'bits:8' is of what travels, got Centralised"),
    ],
)
def test_what_encoded_downloads_cannot_be_with(more: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job("none", compression_down="bits:8", **more).run()


def test_both_ways() -> None:
    """Of 15 numbers in 2 tensors; the model that the server evaluates is its own, whole."""
    whole, small = (job("bits:4", compression_down=text).run() for text in ("none", "bits:8"))
    assert whole.series("bytes_down")[1] == 3 * 60
    assert small.series("bytes_down")[1] == 3 * (12 + 3 + 2 * 4)
    assert list(small.series("bytes_up")) == list(whole.series("bytes_up"))
    assert small.metrics[0]["global_loss"] == whole.metrics[0]["global_loss"]
    assert small.metrics[1]["global_loss"] != whole.metrics[1]["global_loss"]


def test_an_encoder_of_ones_own_is_for_simulations(tmp_path: Path) -> None:
    history = job(f"{__name__}:Thirds").run(tmp_path)
    assert history.series("bytes_up")[1] == 3 * 5 * 4
    with pytest.raises(SettingError, match="import no code that a server names, got compression = 'test_enco"):
        Compression.encoders(dataclasses.replace(SETTINGS, compression=f"{__name__}:Thirds"))


def test_what_stands_in_the_manifest(tmp_path: Path) -> None:
    job("topk:0.5+bits:4").run(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["run"]["compression"] == "topk:0.5+bits:4"
    assert "TopK" in str(manifest["fixed"]["encoders"])
    with pytest.raises(SettingError, match="compression"):
        job("topk:0.5+bits:2").run(tmp_path, resume=True)


def trial(name: str, text: str) -> tuple[int, int]:
    """Return the bytes that clients of a method upload in a few rounds, whole and encoded."""
    subject, sizes = Subject.of(ONE_SHOT.get(name) or ALGORITHMS[name]()), []
    for encoders in ((), (compressed(text),)):
        engine = Loop(subject.population(), subject.algorithm, Options(encoders=encoders))
        server, moved = engine.init(), 0
        for round, cohort in enumerate(subject.cohorts):
            server = engine.round(server, cohort, round)
            moved += sum(engine.traffic.up.values())
        sizes.append(moved)
    return sizes[0], sizes[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")
@pytest.mark.parametrize("text", ["bits:4", "topk:0.05"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_uploads_less_or_is_refused_by_name(name: str, text: str) -> None:
    if name in REFUSED:
        with pytest.raises(SettingError, match=REFUSED[name]):
            trial(name, text)
    else:
        whole, small = trial(name, text)
        assert small < whole / (4 if text == "bits:4" else 10)


def test_draws_are_of_the_stage() -> None:
    """Numbers are left out by another key than that by which they are rounded."""
    values = Params({"w": torch.linspace(-1, 1, 50)})

    class Seen:
        key = torch.tensor(77)

    encoder = compressed("randk:0.5+bits:2")
    message, _ = encoder.encode(Seen(), values, encoder.init(values))  # type: ignore[arg-type]
    assert torch.equal(message["beside"][""], fold_in(fold_in(Seen.key, 1), 0))
    few = {"": RandK(0.5).encode(fold_in(Seen.key, 1), {"": values["w"]}, {}, False)[1][""]}
    alone = Bits(2).encode(fold_in(Seen.key, 2), few, False)
    assert torch.equal(message["numbers"][""]["steps"], alone[""]["steps"])
