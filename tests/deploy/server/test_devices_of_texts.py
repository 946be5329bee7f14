"""Devices count the tokens of their texts, and number them by the vocabulary of all: with the bits of a simulation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy.device import Membership
from fedloom.deploy.device.device_results import model_of_device
from fedloom.deploy.device_statistics import FirstStatistics, TextCounts, read_preparation
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.serve import hand_out_models
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict, predict_by
from fedloom.tables.vocabulary import TextPreparation
from fedloom.testing.compare import same
from fedloom.testing.in_process import InProcess
from flower_in_memory import Flower, serve as answer_at
from hospitals import write_table
from site_devices import audit, members_of, serve

SITES = ("Bremen", "Kiel", "Rostock")
WORDS: dict[str, Any] = {
    "algorithm": "fedavg", "model": "transformer?width=8&layers=1&heads=2", "local.epochs": 2, "local.batch_size": 8,
    "run.rounds": 2, "run.cohort_size": 2, "run.compilation": "none", "task": "classification",
}  # fmt: skip
HOW = "&length=7&most=9&least=2"


def write_notes(folder: Path) -> None:
    """Notes of three hospitals, each with words of its own, and those to test on at the server."""
    (folder / "sites").mkdir()
    tested = []
    for k, site in enumerate(SITES):
        rng, rows = np.random.default_rng(k), []
        own = ["calm", "quiet", "restless", f"only{site}", "Pain!", "sleeps"]
        for i in range(24 + 8 * k):
            note = " ".join(rng.choice(own, rng.integers(1, 10)))
            part = "test" if i % 4 == 3 else "train"
            if part == "test":
                note += " heldout heldout"
            rows.append({"note": note, "mood": "bad" if "restless" in note else "good", "part": part, "age": "4"})
        write_table(folder / "sites" / f"{site}.csv", rows)
        tested += [row for row in rows if row["part"] == "test"]
    write_table(folder / "test.csv", tested)


def source(folder: Path, site: str, how: str = HOW) -> str:
    return f"{folder}/sites/{site}.csv?text=note&label=mood&split=part{how}"


def of_server(folder: Path, how: str = HOW) -> str:
    return f"{folder}/test.csv?text=note&label=mood{how}"


def simulated(folder: Path, how: str = HOW) -> Any:
    alone = {"run.engine": "loop", "run.threads": 1, "data.source": source(folder, "*", how)}
    return Experiment().with_all(WORDS | alone).job().run(folder / "simulated")


def members(folder: Path, how: str = HOW) -> list[Membership]:
    return members_of(folder, [source(folder, site, how) for site in SITES])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*columns that are neither")
def test_devices_have_the_vocabulary_and_the_bits_of_the_simulation(tmp_path: Path) -> None:
    write_notes(tmp_path)
    want = simulated(tmp_path)
    got = serve(tmp_path, WORDS, InProcess([*members(tmp_path)]), of_server(tmp_path)).run(tmp_path / "out")
    same(want.server, got.server, "the server state")
    ours, theirs = (json.loads((tmp_path / run / "manifest.json").read_text()) for run in ("out", "simulated"))
    for name in ("digest", "prepare", "fitted_on", "columns"):
        assert ours["federation"]["table"][name] == theirs["federation"]["table"][name]
    words = theirs["federation"]["table"]["prepare"]["vocabulary"]
    assert len(words) == 9
    assert "heldout" not in words
    for mine, other in zip(got.metrics, want.metrics, strict=True):
        assert mine["global_loss"] == pytest.approx(other["global_loss"], rel=1e-6)
        assert mine["global_accuracy"] == other["global_accuracy"]
    new = write_table(tmp_path / "new.csv", [{"note": "calm onlyKiel"}, {"note": "restless pain!"}])
    found, expected = (predict(tmp_path / run, new).probabilities for run in ("out", "simulated"))
    assert np.allclose(found, expected, atol=1e-6)  # type: ignore[arg-type]
    registry = Registry.read(tmp_path / "devices.json")
    assert registry.preparation == theirs["federation"]["table"]["prepare"]


@pytest.mark.filterwarnings("ignore:.*columns that are neither")
def test_a_device_predicts_texts_by_the_vocabulary_of_all(tmp_path: Path) -> None:
    write_notes(tmp_path)
    devices = members(tmp_path)
    job = serve(tmp_path, WORDS | {"run.rounds": 1}, InProcess([*devices]), of_server(tmp_path))
    hand_out_models(job, tmp_path / "out", job.run(tmp_path / "out"))
    new = write_table(tmp_path / "new.csv", [{"note": "calm onlyKiel"}, {"note": "restless pain!"}])
    (folder,) = (devices[1].folder / "results").iterdir()
    found, expected = predict_by(*model_of_device(folder, None), new), predict(tmp_path / "out", new)
    assert np.array_equal(found.probabilities, expected.probabilities)  # type: ignore[arg-type]
    assert found.names == expected.names == ("bad", "good")


@pytest.mark.slow
def test_counts_and_vocabulary_go_over_flower(tmp_path: Path) -> None:
    write_notes(tmp_path)
    how = f"{HOW}&least_clients=2"
    flower, alone = Flower(3), threading.Lock()  # devices of this process share their networks

    def answering(member: Membership) -> Callable[[bytes], bytes]:
        def answer(message: bytes) -> bytes:
            with alone:
                return member(message)

        return answer

    try:
        for node, member in enumerate(members(tmp_path, how)):
            answer_at(flower.servers[node], answering(member))
        job = serve(tmp_path, WORDS, flower.connections, of_server(tmp_path, how), wait=30, min_devices=3)
        got = job.run()
    finally:
        flower.close()
    same(simulated(tmp_path, how).server, got.server, "the server state")


def killed(record: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_goes_on_with_the_vocabulary_of_its_beginning(tmp_path: Path) -> None:
    """A device with other texts waits when it comes back."""
    write_notes(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, WORDS, InProcess([*members(tmp_path)]), of_server(tmp_path)).run(
            tmp_path / "out", on_round=killed
        )
    before, table = (tmp_path / "devices.json").read_bytes(), tmp_path / "sites" / "Kiel.csv"
    kept = table.read_text()
    table.write_text(kept.replace("calm", "quiet"))
    other = members(tmp_path)[1]
    table.write_text(kept)
    first, second, third = members(tmp_path)
    manager = InProcess([first, other, third])
    job = serve(tmp_path, WORDS, manager, of_server(tmp_path))
    assert job.fleet.waiting.pop(2).id == second.id  # it has other examples, with which the run would go on
    manager.come(second)
    got = job.run(tmp_path / "out", resume=True)
    assert (tmp_path / "devices.json").read_bytes() == before
    same(simulated(tmp_path).server, got.server, "the server state")


@pytest.mark.parametrize(
    ("hows", "test", "message"),
    [
        ((HOW, HOW, "&length=8&most=9&least=2"), HOW, "count the tokens of one column of texts alike or none"),
        ((HOW, HOW, "&tokens=characters&length=7&most=9&least=2"), HOW, "tokens=characters"),
        ((HOW, HOW, f"{HOW}&least_clients=2"), HOW, "got .*least=2&least_clients=1 on .*&least_clients=2 on"),
        ((HOW, HOW, HOW), f"{HOW}&least_clients=2", "same with --test and on all devices, got 2 with test and 1 on"),
        ((f"{HOW}&least_clients=4",) * 3, HOW, "number of clients that count words, 3, got 4: no word would be kept"),
        ((HOW, HOW, HOW), "", "given"),
    ],
)
def test_devices_that_count_otherwise_are_named(hows: Any, test: str, message: str, tmp_path: Path) -> None:
    write_notes(tmp_path)
    ours = members_of(tmp_path, [source(tmp_path, site, how) for site, how in zip(SITES, hows, strict=True)])
    if message == "given":  # the server's own texts may be written in any way: the devices' vocabulary is taken
        serve(tmp_path, WORDS, InProcess([*ours]), of_server(tmp_path, test)).run()
        return
    with pytest.raises(SettingError, match=message):
        serve(tmp_path, WORDS, InProcess([*ours]), of_server(tmp_path, test))


HONEST = {"column": "note", "tokens": "words", "length": 7, "most": 9, "least": 2, "counts": {"calm": 3}}
LIES: list[tuple[dict[str, Any], str]] = [
    ({"counts": {"calm": 1}}, r"whole numbers from 2 \(least\) to 2\*\*40, got 1 of 'calm'"),
    ({"counts": {"calm": 1 << 40}}, "whole numbers from 2"),
    ({"counts": {"calm": 2.0}}, "whole numbers from 2"),
    ({"counts": {"two words": 3}}, "a token is one of the words of a text, got 'two words'"),
    ({"counts": {"Calm": 3}}, "a token is one of the words of a text, got 'Calm'"),
    ({"counts": {"": 3}}, "a token is one of the words"),
    ({"counts": {"\ud800": 3}}, "half a character"),
    ({"counts": {"x" * 1001: 3}}, "a text of at most 1000 characters"),
    ({"counts": {f"w{i}": 2 for i in range(200_001)}}, "tokens are at most 200,000, got 200,001"),
    ({"counts": [["calm", 3]]}, "an object of JSON"),
    ({"tokens": "bytes"}, "tokens is one of words, characters, got 'bytes': name one of these"),
    ({"tokens": ["words"]}, "tokens is one of words, characters"),
    ({"length": 1 << 17}, "length is a whole number from 1 to 65,536, got 131072"),
    ({"most": True}, "most is a whole number from 1 to 200,000, got True: name another"),
    ({"least": 0}, "least is an integer >= 1, got 0: write least=5"),
    ({"least_clients": 0}, "least_clients is an integer >= 1, got 0: write least_clients=2"),
    ({"least_clients": 2.0}, "least_clients is an integer >= 1"),
    ({"least_clients": 1 << 41}, "least_clients is an integer >= 1"),
    ({"column": 3}, "a column is a text"),
    ({"more": 3}, "have the entries"),
]


@pytest.mark.parametrize(("lie", "message"), LIES, ids=lambda v: str(v)[:30])
def test_counts_that_no_texts_have_are_refused(lie: dict[str, Any], message: str) -> None:
    assert TextCounts.read(HONEST).counts == {"calm": 3}
    with pytest.raises(RefusedError, match=message):
        FirstStatistics.read({"rows": 5, "text": HONEST | lie}, 5, 0)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"vocabulary": ["calm", "calm"]}, "each token once, got 'calm' twice"),
        ({"vocabulary": []}, "a list of 1 to 9 tokens"),
        ({"vocabulary": [f"w{i}" for i in range(10)]}, "a list of 1 to 9 tokens"),
        ({"vocabulary": ["two words"]}, "a token is one of the words"),
        ({"vocabulary": [3]}, "a text of at most 1000"),
    ],
)
def test_a_vocabulary_that_is_none_is_refused_by_devices(lie: dict[str, Any], message: str) -> None:
    made = TextPreparation("note", "words", 7, 9, 2).agree([{"calm": 3, "pain": 4}])
    assert read_preparation(made.described()) == made
    with pytest.raises(RefusedError, match=message):
        read_preparation(made.described() | lie)


class Altered:
    """A device whose first message is altered."""

    def __init__(self, member: Membership, alter: Callable[[dict[str, Any]], None]) -> None:
        self.member, self.alter = member, alter

    def __call__(self, message: bytes) -> bytes:
        answer = self.member(message)
        if b'"statistics"' not in answer[:20_000]:
            return answer
        said = json.loads(answer)
        self.alter(said)
        return json.dumps(said).encode()


def test_a_device_that_lies_is_left_out_and_the_others_agree(tmp_path: Path) -> None:
    write_notes(tmp_path)
    first, second, third = members(tmp_path)
    liar = Altered(third, lambda said: said["statistics"]["text"]["counts"].update({"no token": 9}))
    serve(tmp_path, WORDS, InProcess([first, second, liar]), of_server(tmp_path), min_devices=2)
    refused = [line for line in audit(tmp_path) if line["event"] == "refused"]
    assert "a token is one of the words of a text, got 'no token'" in str(refused[0])
    words = Registry.read(tmp_path / "devices.json").read_preparation()
    assert isinstance(words, TextPreparation)
    assert words.vocabulary is not None
    assert "onlyrostock" not in words.vocabulary.tokens


def test_a_device_fills_no_vocabulary_of_words_that_two_devices_have(tmp_path: Path) -> None:
    """It invents tokens with huge counts, and claims one for a true token."""
    write_notes(tmp_path)

    def lie(said: dict[str, Any]) -> None:
        said["statistics"]["text"]["counts"] |= {f"invented{i}": 1 << 39 for i in range(9)} | {"sleeps": 1 << 39}

    def words(how: str) -> tuple[str, ...]:
        first, second, third = members(tmp_path, how)
        serve(tmp_path, WORDS, InProcess([first, second, Altered(third, lie)]), of_server(tmp_path, how))
        made = Registry.read(tmp_path / "devices.json").read_preparation()
        (tmp_path / "devices.json").unlink()
        assert isinstance(made, TextPreparation)
        assert made.vocabulary is not None
        return made.vocabulary.tokens

    assert words(HOW) == ("sleeps", *(f"invented{i}" for i in range(8)))
    assert {*words(f"{HOW}&least_clients=2")} == {"calm", "quiet", "restless", "pain", "!", "sleeps"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*columns that are neither")
def test_a_run_with_tokens_of_several_devices_is_that_of_the_simulation_and_goes_on(tmp_path: Path) -> None:
    write_notes(tmp_path)
    how = f"{HOW}&least_clients=3"
    want = simulated(tmp_path, how)
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, WORDS, InProcess([*members(tmp_path, how)]), of_server(tmp_path, how)).run(
            tmp_path / "out", on_round=killed
        )
    job = serve(tmp_path, WORDS, InProcess([*members(tmp_path, how)]), of_server(tmp_path, how))
    same(want.server, job.run(tmp_path / "out", resume=True).server, "the server state")
    ours, theirs = (json.loads((tmp_path / run / "manifest.json").read_text()) for run in ("out", "simulated"))
    for name in ("digest", "prepare"):
        assert ours["federation"]["table"][name] == theirs["federation"]["table"][name]
    prepared = ours["federation"]["table"]["prepare"]
    assert (len(prepared["vocabulary"]), prepared["least_clients"]) == (6, 3)


@pytest.mark.slow
def test_devices_with_a_plain_text_each_predict_the_next_character(tmp_path: Path) -> None:
    """Its targets are tokens too: the server learns how many there are from the vocabulary of all."""
    (tmp_path / "all").mkdir()
    sources = []
    for k, site in enumerate(SITES):
        text = "".join(np.random.default_rng(k).choice([*"ab cd", site[0].lower()], 900))
        for folder in (tmp_path / "all", tmp_path / site):
            folder.mkdir(exist_ok=True)
            (folder / f"{site}.txt").write_text(text)
        sources.append(f"texts:{tmp_path / site}?length=12&least=2")
    words = WORDS | {"task": "next_token", "model": "lstm?hidden=8&layers=1", "run.cohort_size": 3}
    simulation = {"data.source": f"texts:{tmp_path / 'all'}?length=12&least=2", "data.partition": "natural"}
    alone = simulation | {"run.engine": "loop", "run.threads": 1}
    want = Experiment().with_all(words | alone).job().run()
    got = serve(tmp_path, words, InProcess([*members_of(tmp_path, sources)]), "").run()
    same(want.server, got.server, "the server state")
    made = Registry.read(tmp_path / "devices.json")
    assert made.devices[0].vocabulary == 2 + len({*"ab cd", "k", "r"})
