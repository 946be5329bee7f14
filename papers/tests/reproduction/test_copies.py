"""Copies of runs: exact, without weights, and never older than what they replace."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedloom.coordinator import History, run_documents as reading
from fedloom.core.errors import DamageError, SettingError
from fedloom_papers import recipes
from fedloom_papers.reproduction import kept
from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.results import FAILED
from fedloom_papers.reproduction.results_page import write
from published_runs import cell, made, result


def test_exports_are_exact_without_weights_and_without_folders(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    place = made(tmp_path / "out", recipe, 0, 40.0)
    (place / "checkpoints").mkdir()
    (place / "checkpoints" / "00000200.json").write_text("{}")
    made(tmp_path / "out", recipe, 1, 40.0, rounds=40)
    all_of_it = (place / "metrics.jsonl").read_bytes()
    (place / "metrics.jsonl").write_bytes(all_of_it + b'{"round": 201, "glob')  # cut off by a kill
    (copy,) = export([recipe], tmp_path / "out", tmp_path / "to")
    assert copy == tmp_path / "to" / recipe.place / "seed-0"
    assert [p.name for p in (tmp_path / "to").rglob("*") if p.is_file()] == [kept.NAME]
    (one,) = copies(tmp_path / "to")
    assert one.history.metrics == [json.loads(line) for line in all_of_it.splitlines()]
    assert one.history.settings["data"]["source"] == "cifar10"
    assert b"/some/where" not in gzip.decompress((tmp_path / "to/fedntd-table1" / kept.NAME).read_bytes())
    found = result(recipe, tmp_path / "to")
    assert (found.verdict, found.runs[0].resumable) == ("within noise", False)
    assert export([recipe], tmp_path / "out", tmp_path / "to") == []  # it is there
    assert len(export([recipe], tmp_path / "out", tmp_path / "to", rounds=40)) == 1  # the short one too
    (found,) = (r for r in write("Title", recipes("fedntd-table1"), [tmp_path / "to"]) if r.runs)
    assert found.seeds == [0]
    assert "1 of 98 cells have runs, 1 within noise." in (tmp_path / "to/fedntd-table1/results.md").read_text()


def test_each_client_is_in_the_last_round_of_a_copy_that_has_it(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    place = made(tmp_path / "out", recipe, 0, 40.0, rounds=4)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for t, line in enumerate(lines[:4]):  # the last round evaluated nobody
        line["personal_by_client"] = {"0": t / 10, "1": 0.5}
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    export([recipe], tmp_path / "out", tmp_path / "to", rounds=4)
    found = [dict(record) for record in copies(tmp_path / "to")[0].history.metrics]
    assert [line.pop("personal_by_client", None) for line in found] == [None] * 3 + [{"0": 0.3, "1": 0.5}, None]
    assert found == [{k: v for k, v in line.items() if k != "personal_by_client"} for line in lines]
    assert export([recipe], tmp_path / "out", tmp_path / "to", rounds=4) == []  # it is there


def test_matrices_of_clients_are_kept_of_some_rounds_and_rounded(tmp_path: Path) -> None:
    recipe = cell("ktpfl-small", "fmnist20k-two", "kt_pfl")
    place = made(tmp_path / "out", recipe, 0, 40.0, rounds=40)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["server_coefficients"] = [1 / (line["round"] + 2), 0.123456789]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    old = "".join(
        json.dumps({k: v for k, v in line.items() if len(lines) == line["round"] + 1 or k != "server_coefficients"})
        + "\n"
        for line in lines
    )
    (place / "metrics.jsonl").write_text(old)  # as older copies were
    export([recipe], tmp_path / "out", tmp_path / "to", rounds=20)
    (place / "metrics.jsonl").write_text(text)
    assert len(export([recipe], tmp_path / "out", tmp_path / "to", rounds=20)) == 1  # for what it lacked
    (one,) = kept.read(tmp_path / "to" / "ktpfl-small")
    found = {m["round"]: m["server_coefficients"] for m in one.history.metrics if "server_coefficients" in m}
    assert list(found) == [1, 5, 9, 14, 18, 22, 26, 31, 35, 39, 40]
    assert found[1] == [0.3333, 0.1235]
    assert found[40] == [1 / 42, 0.123456789]
    assert export([recipe], tmp_path / "out", tmp_path / "to", rounds=20) == []  # it is there
    before = (tmp_path / "to/ktpfl-small" / kept.NAME).read_bytes()
    kept.write(tmp_path / "to" / "ktpfl-small", [one])  # beside another one
    assert (tmp_path / "to/ktpfl-small" / kept.NAME).read_bytes() == before


def test_a_run_with_other_numbers_takes_the_evidence_of_the_old_one_away(tmp_path: Path) -> None:
    recipe, evidence = cell("fedntd-table1", "cifar10-s2", "fedavg"), ("analysis/recovery.csv",)
    place = made(tmp_path / "out", recipe, 0, 40.0, rounds=4)
    (place / "analysis").mkdir()
    (place / evidence[0]).write_text("of 40 %")
    (copy,) = export([recipe], tmp_path / "out", tmp_path / "to", rounds=4, evidence=evidence)
    made(tmp_path / "longer", recipe, 0, 40.0, rounds=5)
    export([recipe], tmp_path / "longer", tmp_path / "to", rounds=4, evidence=evidence)
    assert (copy / evidence[0]).read_text() == "of 40 %"  # the same run, a round later
    made(tmp_path / "other", recipe, 0, 50.0, rounds=5)
    export([recipe], tmp_path / "other", tmp_path / "to", rounds=4, evidence=evidence)
    assert not (copy / evidence[0]).exists()


def test_recipes_that_share_a_run_share_its_copy(tmp_path: Path) -> None:
    """The ensemble is evaluated in the first round of DENSE's run; FedAvg has one round. Public data lose a folder."""
    column = "fmnist-a0.1-m5-cnn"
    rows = [cell("dense-table1", column, row) for row in ("fedavg", "feddf", "dense", "ensemble")]
    for r, rounds in zip(rows[:3], (1, 1, 41), strict=True):
        made(tmp_path / "out", r, 0, 50.0, rounds=rounds)
    copied = export(rows, tmp_path / "out", tmp_path / "to", rounds=41)
    assert copied == [r.folder(tmp_path / "to", 0) for r in rows[:3]]
    public = {
        one.place.partition("/")[2]: one.history.settings["data"]["public_source"] for one in copies(tmp_path / "to")
    }
    assert (public["feddf"], public["fedavg"]) == ("mnist", None)


def copies(to: Path) -> list[kept.Kept]:
    return [one for table in sorted(p for p in to.iterdir() if p.is_dir()) for one in kept.read(table)]


def bytes_of(to: Path) -> bytes:
    (file,) = to.rglob(kept.NAME)
    return file.read_bytes()


def test_copies_follow_the_runs(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    out, to = tmp_path / "out", tmp_path / "to"
    place = made(out, recipe, 0, 40.0)
    (copy,) = export([recipe], out, to)
    before = bytes_of(to)

    # Measured anew, with more threads: the same run.
    (place / "timing.jsonl").write_text('{"round": 0, "seconds": {"evaluate": 9.0}}\n')
    settings = json.loads((place / "settings.json").read_text())
    settings["run"]["threads"] = 8
    (place / "settings.json").write_text(json.dumps(settings))
    assert export([recipe], out, to) == []
    assert bytes_of(to) == before

    # Other numbers, other settings, a failure, and a failure that is no more: each is copied, once.
    lines = (place / "metrics.jsonl").read_text()

    def renumber() -> None:
        (place / "metrics.jsonl").write_text(lines.replace('"global_accuracy": 0.4', '"global_accuracy": 0.5'))

    def reset() -> None:
        settings["local"]["lr"] = 0.5
        (place / "settings.json").write_text(json.dumps(settings))

    def fail() -> None:
        (place / FAILED).write_bytes(reading.sealed({"why": "client 3, round 201: the loss is NaN"}))

    for change in (renumber, reset, fail, (place / FAILED).unlink):
        change()
        assert export([recipe], out, to) == [copy], change
        (one,) = copies(to)
        assert one.history.metrics == History.read(place).metrics
        assert one.history.settings["local"] == settings["local"]
        assert (one.failed is not None) == (place / FAILED).exists()
        assert export([recipe], out, to) == [], change


def test_a_longer_run_replaces_its_copy_and_a_shorter_one_does_not(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    to = tmp_path / "to"
    made(tmp_path / "40", recipe, 0, 40.0, rounds=40, run__rounds=40)
    place = made(tmp_path / "200", recipe, 0, 40.0)
    (copy,) = export([recipe], tmp_path / "40", to, rounds=40)
    assert export([recipe], tmp_path / "200", to) == [copy]
    assert copies(to)[0].history.metrics == History.read(place).metrics
    assert export([recipe], tmp_path / "40", to, rounds=40) == []  # its beginning
    assert copies(to)[0].history.metrics == History.read(place).metrics


@pytest.mark.parametrize(
    ("accuracy", "changes", "failed", "difference"),
    [
        (41.0, {}, None, "other numbers from round 1 on"),
        (40.0, {"local__lr": 0.5}, None, r"other settings \(local.lr\)"),
        (
            40.0,
            {},
            "the loss is NaN",
            r"the copy has not failed, the run has failed \(the loss is NaN\)",
        ),
    ],
)
def test_a_longer_copy_with_other_numbers_is_not_lost(
    accuracy: float, changes: dict[str, Any], failed: str | None, difference: str, tmp_path: Path
) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    out, to = tmp_path / "out", tmp_path / "to"
    made(tmp_path / "long", recipe, 1, 40.0)
    (copy,) = export([recipe], tmp_path / "long", to)
    before = bytes_of(to)
    made(out, recipe, 0, 40.0, rounds=40)
    place = made(out, recipe, 1, accuracy, rounds=40, **changes)
    if failed is not None:
        (place / FAILED).write_bytes(reading.sealed({"why": failed}))
    with pytest.raises(
        SettingError,
        match=f"{copy} holds a copy of 200 rounds, and {place} a run of 40 that is not their beginning: {difference}. "
        "Delete the copy, or name another folder",
    ):
        export([recipe], out, to, rounds=40)
    assert bytes_of(to) == before  # nothing is copied


def test_the_same_runs_give_the_same_bytes_in_any_order_and_come_back(tmp_path: Path) -> None:
    metrics = [
        {"round": 0, "global_accuracy": 0.1, "forgetting": None},
        {
            "round": 1,
            "global_accuracy": 1 / 3,
            "clients": [3, 1],
            "failed": {"1": "lost"},
            "class_accuracy": [0.5, None],
        },
        {"round": 2, "global_accuracy": 0.25, "clients": [2], "failed": {}, "class_accuracy": [0.25, 1.0]},
    ]
    facts = {"algorithm": "FedAvg", "models": {"net": 7}}
    of_the_directory = {"format": 2, "documents": {"settings.json": ["0" * 32]}}
    history = History(
        algorithm="FedAvg", metrics=metrics, settings={"algorithm": "fedavg"}, manifest=facts | of_the_directory
    )
    runs = [
        kept.Kept(f"c/{row}", seed, history, why)
        for row, seed, why in (("b", 0, None), ("a", 1, "NaN"), ("a", 0, None))
    ]
    for name, order in (("one", runs), ("two", runs[::-1])):
        kept.write(tmp_path / name, order)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    found = kept.read(tmp_path / "one")
    assert [(one.place, one.seed, one.failed) for one in found] == [
        ("c/a", 0, None),
        ("c/a", 1, "NaN"),
        ("c/b", 0, None),
    ]
    without = [{k: v for k, v in record.items() if k != "clients" or record["round"] == 2} for record in metrics]
    assert [list(map(sorted_items, one.history.metrics)) for one in found] == [list(map(sorted_items, without))] * 3
    assert [one.history.manifest for one in found] == [facts] * 3
    assert kept.read(tmp_path) == []


def sorted_items(record: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(record.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"0.25", b"0.95"),
        lambda text: text.replace(b'"format": 1', b'"format": 2'),
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        None,
    ],
)
def test_a_damaged_file_of_kept_runs_is_refused_by_name(change: Any, tmp_path: Path) -> None:
    history = History(algorithm="A", metrics=[{"round": 0, "global_accuracy": 0.25}])
    kept.write(tmp_path, [kept.Kept("c/r", 0, history, None)])
    path = tmp_path / kept.NAME
    data = path.read_bytes()
    path.write_bytes(data[:-9] if change is None else gzip.compress(change(gzip.decompress(data))))
    with pytest.raises(DamageError, match=f"{path} is damaged: .*; bring back the file that was committed"):
        kept.read(tmp_path)


def test_every_flipped_byte_of_kept_runs_is_refused(tmp_path: Path) -> None:
    history = History(algorithm="A", metrics=[{"round": 0, "global_accuracy": 0.25}])
    kept.write(tmp_path, [kept.Kept("c/r", 0, history, None)])
    path = tmp_path / kept.NAME
    data = path.read_bytes()
    for i in (*range(4), *range(10, len(data))):  # between them are time, level and system of gzip, which say nothing
        path.write_bytes(data[:i] + bytes([data[i] ^ 0xFF]) + data[i + 1 :])
        os.utime(path, ns=(i, i))  # a clock may not tick between two writes
        with pytest.raises(DamageError, match=f"{path} is damaged: "):
            kept.read(tmp_path)


def test_a_kept_record_must_be_one_that_a_run_writes(tmp_path: Path) -> None:
    history = History(algorithm="A", metrics=[{"round": 0, "global_accuracy": 25.0}])
    kept.write(tmp_path, [kept.Kept("c/r", 0, history, None)])
    with pytest.raises(DamageError, match=r"global_accuracy must be a number in 0\.\.1 or null, got 25\.0"):
        kept.read(tmp_path)
