"""Which claims of DENSE hold, of runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom_papers import recipes, study
from fedloom_papers.dense.claims import claims, remarks
from fedloom_papers.reproduction.claim_verdicts import verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Finding
from fedloom_papers.reproduction.results import read
from published_runs import cell, made

COLUMN = "cifar10-a0.1-m5-cnn"
BELOW = "One-shot FedAvg is below all that distil, at alpha 0.1 and on images in colour"


def findings(folder: Path, words: str) -> list[Finding]:
    (found,) = [one for one in verdicts("dense", [folder]) if one.claim.text.startswith(words)]
    return [f for f in found.findings if f.ours]


def uploaded(place: Path, **accuracy: object) -> None:
    """Write into the record of the upload what a run of DENSE has there."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    lines[1] |= accuracy
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_every_claim_is_there_before_anything_is_run(tmp_path: Path) -> None:
    assert {one.verdict for one in verdicts("dense", [tmp_path])} == {NOT_RUN}
    counts = {claim.text: len(claim.parts) for claim in claims()}
    assert counts[BELOW] == 4 * (3 * (2 + 2 + 2 + 1) + 2 * 2)
    assert counts["The ensemble is above every student"] == 4 * 33
    assert counts["DENSE is above FedDF"] == 33
    assert counts["DENSE rises with alpha"] == 2 * (2 * 5 + 1)
    assert counts["DENSE is above one-shot FedAvg with 5 to 50 clients"] == 16
    assert counts["L_div helps"] == counts["Both together help"] == 6
    assert counts["L_BN helps"] == 6 + 9
    assert counts["L_BN brings images nearer to the statistics of the clients"] == 9
    assert counts["Accuracy is best after five rounds of uploads"] == 6 * 4
    assert counts["Clients that train with margins help where labels are highly skewed (alpha 0.1)"] == 4


@pytest.mark.slow
def test_one_shot_fedavg_stands_in_the_record_of_an_upload(tmp_path: Path) -> None:
    for seed in (0, 1):
        place = made(tmp_path, cell("dense-table1", COLUMN, "dense"), seed, 50.0, rounds=201)
        uploaded(place, mean_accuracy=0.3, ensemble_accuracy=0.6)
        made(tmp_path, cell("dense-table1", COLUMN, "fed_adi"), seed, 20.0 + seed / 100, rounds=201)
    assert {(f.ours, f.verdict) for f in findings(tmp_path, BELOW)} == {
        (f"{COLUMN} dense 50.00, fedavg 30.00", HOLDS), (f"{COLUMN} fed_adi 20.01, fedavg 30.00", FAILS),
    }  # fmt: skip
    mine = [r for r in read(recipes("dense-table1"), [tmp_path]) if r.recipe.column == COLUMN]
    assert f"{BELOW}: fails ({COLUMN} fed_adi 20.01, fedavg 30.00)." in remarks(mine)
    assert study("dense-table1").remarks is remarks
    assert remarks(read(recipes("dense-ldam"), [tmp_path])) == []


@pytest.mark.slow
def test_shorter_training_is_compared_with_its_like_alone(tmp_path: Path) -> None:
    """Both clients of 50 epochs: DENSE after 41 of 201 rounds beside FedDF, which has one."""
    feddf, dense = (cell("dense-table1", COLUMN, row) for row in ("feddf", "dense"))
    made(tmp_path, dense, 0, 50.0, rounds=41, local__epochs=50)
    made(tmp_path, feddf, 0, 30.0, rounds=1)
    (order,) = findings(tmp_path, "DENSE is above FedDF")
    assert (order.verdict, "not comparable" in order.ours) == (NOT_RUN, True)
    made(tmp_path / "again", dense, 0, 50.0, rounds=41, local__epochs=50)
    made(tmp_path / "again", feddf, 0, 30.0, rounds=1, local__epochs=50)
    (order,) = findings(tmp_path / "again", "DENSE is above FedDF")
    assert order.verdict == HOLDS


@pytest.mark.slow
def test_an_order_within_noise_that_holds_in_the_mean_names_the_seeds_against_it(tmp_path: Path) -> None:
    for seed, adi, dense in [(0, 30.0, 29.0), (1, 30.0, 50.0), (2, 30.0, 30.0)]:
        made(tmp_path, cell("dense-table1", COLUMN, "fed_adi"), seed, adi, rounds=201)
        made(tmp_path, cell("dense-table1", COLUMN, "dense"), seed, dense, rounds=201)
    (order,) = findings(tmp_path, "DENSE is above Fed-ADI")
    assert order.verdict == NOISE
    assert order.ours == f"{COLUMN} dense 36.33, fed_adi 30.00; in the mean, not in seed 0, 2"


@pytest.mark.slow
def test_what_is_compared_over_columns_names_both(tmp_path: Path) -> None:
    made(tmp_path, cell("dense-table1", COLUMN, "dense"), 0, 50.0, rounds=201)
    made(tmp_path, cell("dense-table1", COLUMN.replace("a0.1", "a0.3"), "dense"), 0, 40.0, rounds=201)
    (order,) = findings(tmp_path, "DENSE rises")
    assert order.verdict == FAILS
    assert order.ours == "dense at cifar10-a0.3-m5-cnn 40.00, dense at cifar10-a0.1-m5-cnn 50.00"


@pytest.mark.slow
def test_local_models_and_uploads_are_those_of_the_record(tmp_path: Path) -> None:
    singly = {"0": 0.5, "1": 0.4}
    place = made(tmp_path, cell("dense-readme", "cifar10-a0.5-m5", "dense"), 0, 45.0, rounds=201)
    uploaded(place, upload_accuracy=singly, mean_accuracy=0.3)
    (student,) = findings(tmp_path, "After 400 local epochs")
    (mean,) = findings(tmp_path, "There one-shot FedAvg")
    assert [f.verdict for f in (student, mean)] == [FAILS, HOLDS]
    assert student.ours.endswith("45.0, local models 40.0 to 50.0")
    place = made(tmp_path, cell("dense-table1", COLUMN, "dense"), 0, 45.0, rounds=201)
    uploaded(place, upload_accuracy=singly, bytes_up=2000)
    (once,) = findings(tmp_path, "Clients upload once")
    assert (once.verdict, once.ours.endswith("1,000 bytes a client, then 0")) == (HOLDS, True)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line | {"bytes_up": 2000}) + "\n" for line in lines))
    (again,) = findings(tmp_path, "Clients upload once")
    assert again.verdict == FAILS


@pytest.mark.slow
def test_the_weight_of_the_statistics_is_judged_by_accuracy_and_by_distance(tmp_path: Path) -> None:
    """L_BN at a weight beside none: which student is better, and whose images lie nearer."""
    column = "fmnist10k-a0.5-m5-cnn"
    for row, accuracy, distance in (("dense-lambda0", 60.0, 6.0), ("dense-lambda0.1", 70.0, 1.5)):
        place = made(tmp_path, cell("dense-lambda1", column, row), 0, accuracy, rounds=16)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        lines = [line | ({"server_bn": distance + line["round"] % 2} if line["round"] > 1 else {}) for line in lines]
        lines[-1]["server_bn"] = distance + 1  # as many above as at it
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (helps,) = findings(tmp_path, "L_BN helps")
    assert (helps.verdict, helps.ours) == (HOLDS, f"{column} dense-lambda0.1 70.00, dense-lambda0 60.00")
    (nearer,) = findings(tmp_path, "L_BN brings images nearer")
    assert nearer.verdict == HOLDS
    assert nearer.ours == f"{column} dense-lambda0 6.53, dense-lambda0.1 2.03"
