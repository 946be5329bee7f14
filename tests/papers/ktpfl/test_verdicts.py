"""What runs say of KT-pFL's claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.papers import recipes, study
from fedloom.papers.ktpfl.verdicts import judged, page
from fedloom.papers.reproduction.claims import BROKEN, HOLDS, NOT_RUN
from fedloom.papers.reproduction.copies import export
from fedloom.papers.reproduction.results import NOT_COMPARABLE, read
from fedloom.papers.reproduction.results_page import write
from published_runs import cell, made

TABLE = "ktpfl-small"
ABOVE = "KT-pFL is above every comparator"


def runs(folder: Path, **accuracy: float) -> None:
    for name, value in accuracy.items():
        row, _, column = name.partition("__")
        made(folder, cell(TABLE, f"cifar20k-{column}", row), 0, value, rounds=20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs(tmp_path, kt_pfl__two=90, fedmd_kt__two=80, sim_pfl__two=91, topk_pfl__two=79, local_only__two=88)
    runs(tmp_path, kt_pfl__all=60, fedmd_kt__all=45, local_only__all=50)
    return tmp_path


def test_each_claim_has_a_verdict(folder: Path) -> None:
    found = [v for v in judged([folder]) if v.where.startswith(TABLE) and "cifar20k" in v.where]
    told = {
        (v.text, v.where.rpartition("-")[2], v.numbers.partition(" ")[0]): v.verdict
        for v in found
        if v.numbers and (v.text, v.where.rpartition("-")[2]) != (ABOVE, "two")
    }
    assert told == {
        ("Sim-pFL and TopK-pFL are above FedMD", "two", "sim_pfl"): HOLDS,
        ("Sim-pFL and TopK-pFL are above FedMD", "two", "topk_pfl"): BROKEN,
        ("KT-pFL no longer rises after 10 to 13 rounds", "two", "within"): HOLDS,
        ("KT-pFL no longer rises after 10 to 13 rounds", "all", "within"): HOLDS,
        ("Two classes a client are easier than every class", "two", "kt_pfl"): HOLDS,
        ("Two classes a client are easier than every class", "two", "local_only"): HOLDS,
        ("The gain over FedMD is largest with two classes a client", "two", "+10.00"): BROKEN,
        (ABOVE, "all", "kt_pfl"): HOLDS,
    }
    two = {v.numbers: v.verdict for v in found if v.text == ABOVE and v.where.endswith("two")}
    assert two == {
        "kt_pfl 90.00, fedmd_kt 80.00": HOLDS,
        "kt_pfl 90.00, sim_pfl 91.00": BROKEN,
        "kt_pfl 90.00, topk_pfl 79.00": HOLDS,
        "": NOT_RUN,
    }


def test_other_settings_cannot_be_compared(tmp_path: Path) -> None:
    made(tmp_path, cell(TABLE, "cifar20k-two", "kt_pfl"), 0, 90, rounds=20)
    made(tmp_path, cell(TABLE, "cifar20k-two", "fedmd_kt"), 0, 80, rounds=20, local__epochs=1)
    found = [v for v in judged([tmp_path]) if v.text == ABOVE and v.numbers]
    assert [v.verdict for v in found] == [NOT_COMPARABLE]
    assert "holds in 0 of 0 that can be judged, of 50." in page([tmp_path])


def test_numbers_that_are_of_fewer_seeds_than_the_table_says_name_these(folder: Path) -> None:
    made(folder, cell(TABLE, "cifar20k-two", "kt_pfl"), 1, 50, rounds=20)
    found = {v.numbers for v in judged([folder]) if v.where == f"{TABLE} cifar20k-two"}
    assert {
        "kt_pfl 90.00, fedmd_kt 80.00, of seed 0",
        "kt_pfl with two 90.00, kt_pfl with every 60.00, of seed 0",
        "local_only with two 88.00, local_only with every 50.00",
        "+10.00 with two, +15.00 with every, of seed 0",
    } <= found


def test_a_claim_that_holds_in_the_mean_alone_names_the_seeds_against_it(folder: Path) -> None:
    for row, value in {"kt_pfl": 70, "fedmd_kt": 75}.items():
        made(folder, cell(TABLE, "cifar20k-two", row), 1, value, rounds=20)
    found = {v.numbers: v.verdict for v in judged([folder]) if v.text == ABOVE and "cifar20k-two" in v.where}
    assert found["kt_pfl 80.00, fedmd_kt 77.50; in the mean, not in seed 1"] == HOLDS


def test_a_run_that_still_rises_has_no_plateau(tmp_path: Path) -> None:
    place = made(tmp_path, cell(TABLE, "cifar20k-two", "kt_pfl"), 0, 90, rounds=20)
    lines = [{"round": t, "personal_accuracy": 0.04 * t} for t in range(21)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = [v for v in judged([tmp_path]) if v.text.startswith("KT-pFL no longer rises") and v.verdict != NOT_RUN]
    assert (found.verdict, found.numbers) == (BROKEN, "within a point of its end from round 20 on")


def test_a_column_is_told_in_sentences_with_its_coefficients(folder: Path) -> None:
    place = folder / cell(TABLE, "cifar20k-two", "kt_pfl").place / "seed-0"
    lines = (place / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"server_coefficients": [0.6, 0.4, 0.3, 0.7]}
    (place / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    counts = {"train": [[3, 0], [0, 4]], "test": None}
    (place / "federation.json").write_text(json.dumps({"clients": 2, "classes": 2, "shown": [0, 1], **counts}))
    column = [r for r in read(recipes(TABLE), [folder]) if r.recipe.column == "cifar20k-two"]
    told = study(TABLE).remarks(column)
    assert f"{ABOVE}: holds (kt_pfl 90.00, fedmd_kt 80.00)." in told
    assert told[-1].startswith("kt_pfl, seed 0: coefficients after round 20: 0.650 on the client itself")


def test_copies_keep_what_sentences_are_made_of(folder: Path, tmp_path: Path) -> None:
    recipe, room = cell(TABLE, "cifar20k-two", "kt_pfl"), study(TABLE)
    place = folder / recipe.place / "seed-0"
    record = {"round": 20, "personal_accuracy": 0.9, "server_coefficients": [0.6, 0.4, 0.3, 0.7]}
    lines = [{"round": t, "personal_accuracy": 0.9} for t in range(20)] + [record]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    without = room.remarks(read([recipe], [folder]))  # a copy of an older version
    assert not [line for line in without if "coefficients" in line]
    counts = {"train": [[3, 0], [0, 4]], "test": None}
    (place / "federation.json").write_text(json.dumps({"clients": 2, "classes": 2, "shown": [0, 1], **counts}))
    export(recipes(TABLE), folder, tmp_path / "to", evidence=room.evidence)
    write("Title", recipes(TABLE), [tmp_path / "to"], remarks=room.remarks)
    assert "0.650 on the client itself" in (tmp_path / "to" / TABLE / "results.md").read_text()


def test_the_page_counts_and_lists(folder: Path) -> None:
    text = page([folder])
    assert text.startswith("# What KT-pFL claims\n")
    assert f"**{ABOVE}**: holds in 3 of 4 that can be judged" in text
    assert "| ktpfl-small cifar20k-two | kt_pfl 90.00, sim_pfl 91.00 | does not hold |" in text
