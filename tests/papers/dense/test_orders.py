"""Which required orders hold, of runs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.papers import recipes, study
from fedloom.papers.dense.orders import page, remarks, required
from fedloom.papers.reproduction.claims import Claim
from fedloom.papers.reproduction.results import NOT_COMPARABLE, read
from published_runs import cell, made

COLUMN = "cifar10-a0.1-m5-cnn"


def judged(folder: Path, words: str) -> list[Claim]:
    return [o for o in required([folder]) if o.text.startswith(words) and o.verdict != "not run"]


@pytest.mark.slow
def test_every_claim_is_there_before_anything_is_run(tmp_path: Path) -> None:
    found = required([tmp_path])
    assert {o.verdict for o in found} == {"not run"}
    counts = {o.text: sum(other.text == o.text for other in found) for o in found}
    assert counts == {
        "FedAvg is below every method that distils": 4 * (3 * (2 + 2 + 2 + 1) + 2 * 2),
        "The ensemble is above every student": 4 * 33,
        "DENSE rises with alpha": 2 * (2 * 5 + 1),
        "DENSE is above FedAvg at 5 to 50 clients": 16,
        "DENSE is above CE alone": 6,
    }
    assert "holds in 0 of 0 that can be judged, of 6." in page([tmp_path])


@pytest.mark.slow
def test_verdicts(tmp_path: Path) -> None:
    made(tmp_path, cell("dense-table1", COLUMN, "fedavg"), 0, 30.0, rounds=1)
    made(tmp_path, cell("dense-table1", COLUMN, "dense"), 0, 50.0, rounds=201)
    made(tmp_path, cell("dense-table1", COLUMN, "fed_adi"), 0, 20.0, rounds=201)
    below = judged(tmp_path, "FedAvg is below")
    assert {(o.numbers, o.verdict) for o in below} == {
        ("dense 50.00, fedavg 30.00", "holds"), ("fed_adi 20.00, fedavg 30.00", "does not hold"),
    }  # fmt: skip
    text = page([tmp_path])
    assert f"| dense-table1 {COLUMN} | dense 50.00, fedavg 30.00 | holds |" in text
    assert "holds in 1 of 2 that can be judged, of 100." in text
    mine = [r for r in read(recipes("dense-table1"), [tmp_path]) if r.recipe.column == COLUMN]
    assert remarks(mine) == [
        "Required: FedAvg is below every method that distils: does not hold (fed_adi 20.00, fedavg 30.00).",
        "Required: FedAvg is below every method that distils: holds (dense 50.00, fedavg 30.00).",
    ]
    assert study("dense-table1").remarks is remarks
    assert remarks(read(recipes("dense-ldam"), [tmp_path])) == []


@pytest.mark.slow
def test_shorter_training_is_compared_with_its_like_alone(tmp_path: Path) -> None:
    """Both clients of 50 epochs: DENSE after 41 of 201 rounds beside FedAvg, which has one."""
    fedavg, dense = (cell("dense-table1", COLUMN, row) for row in ("fedavg", "dense"))
    made(tmp_path, dense, 0, 50.0, rounds=41, local__epochs=50)
    made(tmp_path, fedavg, 0, 30.0, rounds=1)
    (order,) = judged(tmp_path, "FedAvg is below")
    assert order.verdict == NOT_COMPARABLE
    made(tmp_path / "again", dense, 0, 50.0, rounds=41, local__epochs=50)
    made(tmp_path / "again", fedavg, 0, 30.0, rounds=1, local__epochs=50)
    (order,) = judged(tmp_path / "again", "FedAvg is below")
    assert order.verdict == "holds"


@pytest.mark.slow
def test_an_order_that_holds_in_the_mean_alone_names_the_seeds_against_it(tmp_path: Path) -> None:
    for seed, fedavg, dense in [(0, 30.0, 29.0), (1, 30.0, 50.0), (2, 30.0, 30.0)]:
        made(tmp_path, cell("dense-table1", COLUMN, "fedavg"), seed, fedavg, rounds=1)
        made(tmp_path, cell("dense-table1", COLUMN, "dense"), seed, dense, rounds=201)
    (order,) = judged(tmp_path, "FedAvg is below")
    numbers = "dense 36.33, fedavg 30.00; in the mean, not in seed 0, 2"
    assert (order.verdict, order.numbers) == ("holds", numbers)
    assert f"| {numbers} | holds |" in page([tmp_path])
    mine = [r for r in read(recipes("dense-table1"), [tmp_path]) if r.recipe.column == COLUMN]
    assert remarks(mine) == [f"Required: FedAvg is below every method that distils: holds ({numbers})."]


@pytest.mark.slow
def test_what_is_compared_over_columns_names_both(tmp_path: Path) -> None:
    made(tmp_path, cell("dense-table1", COLUMN, "dense"), 0, 50.0, rounds=201)
    made(tmp_path, cell("dense-table1", COLUMN.replace("a0.1", "a0.3"), "dense"), 0, 40.0, rounds=201)
    (order,) = judged(tmp_path, "DENSE rises")
    assert order.verdict == "does not hold"
    assert order.numbers == "dense at cifar10-a0.3-m5-cnn 40.00, dense at cifar10-a0.1-m5-cnn 50.00"
