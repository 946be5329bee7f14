"""What runs say of KT-pFL's claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom_papers import recipes, study
from fedloom_papers.reproduction.claim_verdicts import verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Finding
from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.results import read
from fedloom_papers.reproduction.results_page import write
from published_runs import cell, made

TABLE = "ktpfl-small"
ABOVE = "KT-pFL is above FedMD on all data sets and label skews"


def runs(folder: Path, **accuracy: float) -> None:
    for name, value in accuracy.items():
        row, _, column = name.partition("__")
        made(folder, cell(TABLE, f"cifar20k-{column}", row), 0, value, rounds=20)


def findings(folder: Path) -> dict[tuple[str, str], Finding]:
    """What is known of each part, by the claim and what is said of the runs."""
    found = verdicts("ktpfl", [folder])
    return {(one.claim.text, f.ours): f for one in found for f in one.findings if f.ours and f.results}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs(tmp_path, kt_pfl__two=90, fedmd_kt__two=80, sim_pfl__two=91, topk_pfl__two=70, local_only__two=88)
    runs(tmp_path, kt_pfl__all=60, fedmd_kt__all=45, local_only__all=50)
    return tmp_path


def test_each_claim_has_a_verdict(folder: Path) -> None:
    two, every = "cifar20k-two", "cifar20k-all"
    skews = "on all data sets and label skews"
    said = "within a point of its end from round 1 on"
    easier = "Two classes a client are easier than every class"
    assert {key: f.verdict for key, f in findings(folder).items()} == {
        (f"KT-pFL is above FedMD {skews}", f"{two} kt_pfl 90.00, fedmd_kt 80.00"): HOLDS,
        (f"KT-pFL is above FedMD {skews}", f"{every} kt_pfl 60.00, fedmd_kt 45.00"): HOLDS,
        (f"KT-pFL is above Sim-pFL {skews}", f"{two} kt_pfl 90.00, sim_pfl 91.00"): NOISE,
        (f"KT-pFL is above TopK-pFL {skews}", f"{two} kt_pfl 90.00, topk_pfl 70.00"): HOLDS,
        ("KT-pFL is above local training alone", f"{two} kt_pfl 90.00, local_only 88.00"): NOISE,
        ("KT-pFL is above local training alone", f"{every} kt_pfl 60.00, local_only 50.00"): HOLDS,
        ("Sim-pFL is above FedMD", f"{two} sim_pfl 91.00, fedmd_kt 80.00"): HOLDS,
        ("TopK-pFL is above FedMD", f"{two} topk_pfl 70.00, fedmd_kt 80.00"): FAILS,
        ("KT-pFL no longer rises after 10 to 13 rounds", f"{two} kt_pfl: {said}"): HOLDS,
        ("KT-pFL no longer rises after 10 to 13 rounds", f"{every} kt_pfl: {said}"): HOLDS,
        ("The gain over FedMD is largest with two classes a client", f"{two} +10.00, {every} +15.00"): FAILS,
        (easier, f"kt_pfl at {two} 90.00, kt_pfl at {every} 60.00"): HOLDS,
        (easier, f"local_only at {two} 88.00, local_only at {every} 50.00"): HOLDS,
    }


def test_predictions_cost_little_whatever_was_run(tmp_path: Path) -> None:
    (found,) = [one for one in verdicts("ktpfl", [tmp_path]) if one.claim.text.startswith("Predictions cost")]
    assert (found.verdict, found.ours) == (HOLDS, "2.4 MB of predictions, 652.8 MB of models each way")


def test_other_settings_cannot_be_compared(tmp_path: Path) -> None:
    made(tmp_path, cell(TABLE, "cifar20k-two", "kt_pfl"), 0, 90, rounds=20)
    made(tmp_path, cell(TABLE, "cifar20k-two", "fedmd_kt"), 0, 80, rounds=20, local__epochs=1)
    (found,) = [one for one in verdicts("ktpfl", [tmp_path]) if one.claim.text == ABOVE]
    assert (found.verdict, "not comparable" in found.ours) == (NOT_RUN, True)


def test_numbers_that_are_of_fewer_seeds_than_the_table_says_name_these(folder: Path) -> None:
    made(folder, cell(TABLE, "cifar20k-two", "kt_pfl"), 1, 50, rounds=20)
    assert {
        "cifar20k-two kt_pfl 90.00, fedmd_kt 80.00, of seed 0",
        "kt_pfl at cifar20k-two 90.00, kt_pfl at cifar20k-all 60.00, of seed 0",
        "local_only at cifar20k-two 88.00, local_only at cifar20k-all 50.00",
        "cifar20k-two +10.00, cifar20k-all +15.00, of seed 0",
    } <= {ours for _, ours in findings(folder)}


def test_a_run_that_still_rises_has_no_plateau(tmp_path: Path) -> None:
    place = made(tmp_path, cell(TABLE, "cifar20k-two", "kt_pfl"), 0, 90, rounds=20)
    lines = [{"round": t, "personal_accuracy": 0.04 * t} for t in range(21)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((key, found),) = findings(tmp_path).items()
    assert (key[0], found.verdict) == ("KT-pFL no longer rises after 10 to 13 rounds", FAILS)
    assert found.ours.endswith("within a point of its end from round 20 on")
    made(tmp_path / "short", cell(TABLE, "cifar20k-two", "kt_pfl"), 0, 90, rounds=14)
    assert findings(tmp_path / "short") == {}


def test_coefficients_lie_in_the_group_or_not(tmp_path: Path) -> None:
    place = made(tmp_path, cell("ktpfl-groups", "cifar20k-groups", "kt_pfl-rho0.1"), 0, 90, rounds=20)
    counts = {"train": [[3, 0], [0, 4]], "test": None}
    (place / "federation.json").write_text(json.dumps({"clients": 2, "classes": 2, "shown": [0, 1], **counts}))
    for row, verdict in (([0.9, 0.1, 0.2, 0.8], HOLDS), ([0.9, 0.1, 0.3, 0.7], FAILS)):
        line = {"round": 20, "personal_accuracy": 0.9, "server_coefficients": row}
        (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (found,) = findings(tmp_path).values()
        assert found.verdict == verdict, found.ours
    assert found.ours == "cifar20k-groups kt_pfl-rho0.1: 0.80 in the mean, 1 of 2 rows"


def test_a_client_that_is_alone_keeps_to_itself_or_not(tmp_path: Path) -> None:
    place = made(tmp_path, cell("ktpfl-alone", "cifar20k-two", "kt_pfl-rho0"), 0, 90, rounds=20)
    for row, verdict in (([0.99, 0.01, 0.0, 1.0], HOLDS), ([0.98, 0.02, 0.0, 1.0], FAILS)):
        line = {"round": 20, "personal_accuracy": 0.9, "server_coefficients": row}
        (place / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (found,) = findings(tmp_path).values()
        assert found.verdict == verdict, found.ours
    assert found.ours == "cifar20k-two kt_pfl-rho0: own coefficients of 0.98 to 1.00"


def test_clients_are_judged_before_distillation_too(tmp_path: Path) -> None:
    """In groups, beside uniform mixing and local training alone, after as many rounds as both have."""
    column = "cifar20k-groups"
    for table, row, after, before, rounds in (
        ("ktpfl-groups", "kt_pfl-rho0.1", 60, None, 20), ("ktpfl-useful", "kt_pfl", 61, 70, 5),
        ("ktpfl-useful", "fedmd_kt", 65, 68, 20), ("ktpfl-useful", "local_only", 66, 66, 20),
    ):  # fmt: skip
        place = made(tmp_path, cell(table, column, row), 0, after, rounds=rounds)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        lines = [line | ({} if before is None else {"trained_accuracy": before / 100}) for line in lines]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert {key: f.verdict for key, f in findings(tmp_path).items()} == {
        ("KT-pFL is above local training alone", f"{column} kt_pfl-rho0.1 60.00, local_only 66.00"): FAILS,
        ("Evaluated before distillation, KT-pFL is above local training alone",
         f"{column} kt_pfl before distillation 70.00, local_only 66.00"): HOLDS,
        ("Where clients make two groups, KT-pFL is above uniform mixing",
         f"{column} kt_pfl-rho0.1 60.00, fedmd_kt 65.00"): FAILS,
    }  # fmt: skip


def test_a_column_is_told_in_sentences_with_its_coefficients(folder: Path) -> None:
    place = folder / cell(TABLE, "cifar20k-two", "kt_pfl").place / "seed-0"
    lines = (place / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"server_coefficients": [0.6, 0.4, 0.3, 0.7]}
    (place / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    counts = {"train": [[3, 0], [0, 4]], "test": None}
    (place / "federation.json").write_text(json.dumps({"clients": 2, "classes": 2, "shown": [0, 1], **counts}))
    column = [r for r in read(recipes(TABLE), [folder]) if r.recipe.column == "cifar20k-two"]
    told = study(TABLE).remarks(column)
    assert f"{ABOVE}: holds (cifar20k-two kt_pfl 90.00, fedmd_kt 80.00)." in told
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
