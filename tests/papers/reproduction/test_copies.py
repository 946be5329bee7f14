"""Copies of runs: exact, without weights, and never older than what they replace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import SettingError
from fedloom.papers import recipes
from fedloom.papers.reproduction.copies import export
from fedloom.papers.reproduction.results import FAILED
from fedloom.papers.reproduction.results_page import write
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
    assert sorted(p.name for p in copy.iterdir()) == ["manifest.json", "metrics.jsonl", "settings.json", "timing.jsonl"]
    assert (copy / "metrics.jsonl").read_bytes() == all_of_it
    assert json.loads((copy / "settings.json").read_text())["data"]["source"] == "cifar10"
    assert "/some/where" not in "".join(p.read_text() for p in copy.iterdir())
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
    for t, line in enumerate(lines[:4]):  # the last round judged nobody
        line["personal_by_client"] = {"0": t / 10, "1": 0.5}
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (copy,) = export([recipe], tmp_path / "out", tmp_path / "to", rounds=4)
    found = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
    assert [line.pop("personal_by_client", None) for line in found] == [None] * 3 + [{"0": 0.3, "1": 0.5}, None]
    assert found == [{k: v for k, v in line.items() if k != "personal_by_client"} for line in lines]
    assert export([recipe], tmp_path / "out", tmp_path / "to", rounds=4) == []  # it is there


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
    """The ensemble is judged in the first round of DENSE's run; FedAvg has one round. Public data lose their folder."""
    column = "fmnist-a0.1-m5-cnn"
    rows = [cell("dense-table1", column, row) for row in ("fedavg", "feddf", "dense", "ensemble")]
    for r, rounds in zip(rows[:3], (1, 1, 41), strict=True):
        made(tmp_path / "out", r, 0, 50.0, rounds=rounds)
    copied = export(rows, tmp_path / "out", tmp_path / "to", rounds=41)
    assert copied == [r.folder(tmp_path / "to", 0) for r in rows[:3]]
    assert json.loads((copied[1] / "settings.json").read_text())["data"]["public_source"] == "mnist"
    assert json.loads((copied[0] / "settings.json").read_text())["data"]["public_source"] is None


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_copies_follow_the_runs(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    out, to = tmp_path / "out", tmp_path / "to"
    place = made(out, recipe, 0, 40.0)
    (copy,) = export([recipe], out, to)
    before = files_of(copy)

    # Measured anew, with more threads: the same run.
    (place / "timing.jsonl").write_text('{"round": 0, "seconds": {"evaluate": 9.0}}\n')
    settings = json.loads((place / "settings.json").read_text())
    settings["run"]["threads"] = 8
    (place / "settings.json").write_text(json.dumps(settings))
    assert export([recipe], out, to) == []
    assert files_of(copy) == before

    # Other numbers, other settings, a failure, and a failure that is no more: each is copied, once.
    lines = (place / "metrics.jsonl").read_text()

    def renumber() -> None:
        (place / "metrics.jsonl").write_text(lines.replace('"global_accuracy": 0.4', '"global_accuracy": 0.5'))

    def reset() -> None:
        settings["local"]["lr"] = 0.5
        (place / "settings.json").write_text(json.dumps(settings))

    def fail() -> None:
        (place / FAILED).write_text('{"why": "client 3, round 201: the loss is NaN"}')

    for change in (renumber, reset, fail, (place / FAILED).unlink):
        change()
        assert export([recipe], out, to) == [copy], change
        assert files_of(copy).keys() == files_of(place).keys()
        assert (copy / "metrics.jsonl").read_bytes() == (place / "metrics.jsonl").read_bytes()
        assert json.loads((copy / "settings.json").read_text())["local"] == settings["local"]
        assert export([recipe], out, to) == [], change


def test_a_longer_run_replaces_its_copy_and_a_shorter_one_does_not(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    to = tmp_path / "to"
    made(tmp_path / "40", recipe, 0, 40.0, rounds=40, run__rounds=40)
    place = made(tmp_path / "200", recipe, 0, 40.0)
    (copy,) = export([recipe], tmp_path / "40", to, rounds=40)
    assert export([recipe], tmp_path / "200", to) == [copy]
    assert (copy / "metrics.jsonl").read_bytes() == (place / "metrics.jsonl").read_bytes()
    assert export([recipe], tmp_path / "40", to, rounds=40) == []  # its beginning
    assert (copy / "metrics.jsonl").read_bytes() == (place / "metrics.jsonl").read_bytes()


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
    before = files_of(copy)
    made(out, recipe, 0, 40.0, rounds=40)
    place = made(out, recipe, 1, accuracy, rounds=40, **changes)
    if failed is not None:
        (place / FAILED).write_text(json.dumps({"why": failed}))
    with pytest.raises(
        SettingError,
        match=f"{copy} holds a copy of 200 rounds, and {place} a run of 40 that is not their beginning: {difference}. "
        "Delete the copy, or name another folder",
    ):
        export([recipe], out, to, rounds=40)
    assert files_of(copy) == before
    assert [p.name for p in copy.parent.iterdir()] == ["seed-1"]  # nothing is copied
