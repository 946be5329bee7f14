"""What runs gave beside what was published: verdicts by hand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import pytest

from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import SettingError
from fedloom_papers import find, recipes, study
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import FAILED, curve, mean_curve, orderings, read, runs
from fedloom_papers.reproduction.results_page import as_csv, as_markdown, order_lines, summary
from fedloom_papers.reproduction.running import with_changes
from published_runs import cell, made, result


@pytest.mark.parametrize(
    ("accuracies", "verdict"),
    [
        ((40.14,), "within noise"),
        ((40.14 + 3.25,), "within noise"),  # 2 sqrt(2) 1.15 = 3.253
        ((40.14 + 3.26,), "higher"),
        ((36.0,), "lower"),
        # mean 42.5, std 0.7071, so 2 sqrt(1.15^2 + 0.5 / 2) = 2.508; 42.5 - 40.14 = 2.36
        ((42.0, 43.0), "within noise"),
        ((42.2, 43.2), "higher"),
    ],
)
def test_within_noise_by_hand(tmp_path: Path, accuracies: tuple[float, ...], verdict: str) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")  # 40.14 ± 1.15
    for seed, accuracy in enumerate(accuracies):
        made(tmp_path, recipe, seed, accuracy, forgetting=0.55)
    found = result(recipe, tmp_path)
    assert found.verdict == verdict
    assert found.accuracy == pytest.approx(sum(accuracies) / len(accuracies))
    assert found.difference == pytest.approx(sum(accuracies) / len(accuracies) - 40.14)
    assert found.forgetting_difference == pytest.approx(0.55 - 0.59)
    assert found.seeds == list(range(len(accuracies)))


def test_short_runs_reproduce_nothing(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path, recipe, 0, 40.14, rounds=199)
    assert result(recipe, tmp_path).verdict == "short run (199 of 200)"
    made(tmp_path, recipe, 3, 40.14)
    found = result(recipe, tmp_path)
    assert (found.verdict, found.seeds, found.rounds) == ("within noise", [3], 200)
    found = result(recipe, tmp_path, rounds=40)
    assert (found.verdict, found.seeds, found.rounds) == ("short run (40 of 200)", [0, 3], 40)


def test_rounds_after_the_published_ones_do_not_count(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")  # 40.14 ± 1.15 after 200
    place = made(tmp_path, recipe, 0, 40.14, rounds=250)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    lines[200]["global_accuracy"] = 0.60
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for rounds in (None, 200, 250):
        found = result(recipe, tmp_path, rounds)
        assert (found.rounds, found.accuracy, found.verdict) == (200, pytest.approx(60.0), "higher"), rounds


def test_runs_of_other_folders_count_with_the_settings_that_are_asked_for(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    fedprox = cell("fedntd-table1", "cifar10-s2", "fedprox")
    asked, _ = with_changes([recipe, fedprox], {"local.lr": "0.5", "fedprox.mu": "1.0", "run.threads": "1"})
    out, known = tmp_path / "out", tmp_path / "known"
    made(out, recipe, 0, 30.0, rounds=3)
    made(known, recipe, 0, 40.0, local__lr=0.5)
    made(known, recipe, 1, 41.0, local__lr=0.5)
    made(known, recipe, 2, 42.0, run__threads=8)
    assert {seed: run.rounds for seed, run in runs(recipe, [out, known]).items()} == {0: 3, 2: 200}
    assert {seed: run.rounds for seed, run in runs(asked, [out, known]).items()} == {0: 200, 1: 200}
    assert {seed: run.rounds for seed, run in runs(asked, [out]).items()} == {0: 3}  # and its verdict says so
    assert result(asked, known).verdict == "other settings: local.lr"


def test_other_settings_reproduce_nothing(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path, recipe, 0, 40.14, run__threads=1, run__checkpoint_every=20)
    assert result(recipe, tmp_path).verdict == "within noise"  # how it is computed is free
    made(tmp_path, recipe, 1, 40.14, local__lr=0.1, run__bf16=True)
    assert result(recipe, tmp_path).verdict == "other settings: local.lr, run.bf16"
    place = made(tmp_path / "other", recipe, 0, 40.14, data__source="mnist:/some/where")
    assert result(recipe, tmp_path / "other").verdict == "other settings: data.source"
    made(tmp_path / "warm", recipe, 0, 40.14, start="weights.pt")
    assert result(recipe, tmp_path / "warm").verdict == "other settings: start"
    (place / "settings.json").write_text('{"algorithm": "FedNTD", "run": {}}')  # started from Python
    assert result(recipe, tmp_path / "other").verdict == "other settings: algorithm, data.source"


def test_cells_that_are_no_targets_say_so(tmp_path: Path) -> None:
    for column, row in (("cifar10-s5", "scaffold"), ("cifar10-s2", "fednova")):
        recipe = cell("fedntd-table1", column, row)
        made(tmp_path, recipe, 0, recipe.accuracy or 0)
        assert result(recipe, tmp_path).verdict == "no target"


def test_failures(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-lda0.05", "scaffold")
    place = made(tmp_path, recipe, 0, 10.0, rounds=7)
    (place / FAILED).write_bytes(reading.sealed({"why": "client 3, round 7: the loss is NaN"}))
    assert result(recipe, tmp_path).verdict == "failed, as published"
    made(tmp_path, recipe, 1, 30.0)
    found = result(recipe, tmp_path)
    assert (found.verdict, found.seeds) == ("1 of 2 failed", [1])
    assert summary([found]) == "1 of 1 cells have runs, 1 with some seeds failed."
    text = as_markdown("Some title", [found])
    assert "- cifar10-lda0.05 scaffold, seed 0: client 3, round 7: the loss is NaN" in text
    assert "- cifar10-lda0.05 scaffold: the published run failed." in text


def test_a_run_without_a_round_is_no_run(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    place = made(tmp_path, recipe, 0, 40.0, rounds=0)
    found = result(recipe, tmp_path)
    assert (found.runs, found.verdict) == ({}, "not run")
    assert summary([found]) == "0 of 1 cells have runs."
    made(tmp_path, recipe, 1, 40.0)
    assert result(recipe, tmp_path).seeds == list(result(recipe, tmp_path).runs) == [1]
    (place / FAILED).write_bytes(reading.sealed({"why": "the loss is NaN"}))
    assert result(recipe, tmp_path).verdict == "1 of 2 failed"


def test_smoothed_accuracy_by_hand(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    for seed, accuracies in enumerate([[99, 20, 40, 60], [99, 30, 50, 70, 10]]):  # of rounds 0, 1, ...
        log = made(tmp_path, recipe, seed, 1.0) / "metrics.jsonl"
        log.write_text("".join(f'{{"round": {t}, "global_accuracy": {a / 100}}}\n' for t, a in enumerate(accuracies)))
    smoothed = 0.6 * (0.6 * 20 + 0.4 * 40) + 0.4 * 60  # 40.8; seed 1 is ten points above it
    found = result(recipe, tmp_path, rounds=3)
    assert (found.accuracy, found.smoothed) == (pytest.approx(65), pytest.approx(smoothed + 5))
    line = next(line for line in as_markdown("Title", [found]).splitlines() if line.startswith("| fedavg |"))
    assert line == "| fedavg | 40.14 ± 1.15 | 65.00 ± 7.07 | +24.86 | 45.80 | 0.59 | 3 x 2 | short run (3 of 200) |"
    (row,) = csv.DictReader(io.StringIO(as_csv([found])))
    assert float(row["smoothed"]) == pytest.approx(smoothed + 5)
    assert result(recipe, tmp_path).smoothed == pytest.approx(0.6 * (smoothed + 10) + 0.4 * 10)
    assert result(cell("fedntd-table1", "cifar10-s2", "fedprox"), tmp_path).smoothed is None


def test_orders_are_between_targets_after_equal_rounds(tmp_path: Path) -> None:
    column = "cifar10-lda0.5"  # fedavg 62.53 ± 0.41, fedprox 62.39 ± 0.31, scaffold 66.16 ± 0.13, fedntd 66.12 ± 0.26
    ours = {"fedavg": 60.0, "fedprox": 61.0, "scaffold": 66.0, "fedntd": 65.0, "fednova": 1.0, "fedprox-config": 99.0}
    for row, accuracy in ours.items():
        made(tmp_path, cell("fedntd-table1", column, row), 0, accuracy)
    results = read([r for r in recipes("fedntd-table1") if r.column == column], [tmp_path])
    found = {(o.above, o.below): (o.clear, o.holds) for o in orderings(results)}
    assert found == {
        ("fedavg", "fedprox"): (False, False),
        ("scaffold", "fedavg"): (True, True),
        ("fedntd", "fedavg"): (True, True),
        ("scaffold", "fedprox"): (True, True),
        ("fedntd", "fedprox"): (True, True),
        ("scaffold", "fedntd"): (False, True),
    }
    text = as_markdown("Orders", results)
    assert (
        "Published orders that hold in ours: 5 of 6; of those clear of noise, 4 of 4. Not: fedavg above fedprox."
    ) in text
    made(tmp_path, cell("fedntd-table1", column, "moon"), 0, 99.0, rounds=100)
    results = read([r for r in recipes("fedntd-table1") if r.column == column], [tmp_path])
    assert len(orderings(results)) == 6
    assert len(orderings(read([r.recipe for r in results], [tmp_path], rounds=100))) == 10


def test_csv_has_every_cell_and_the_numbers(tmp_path: Path) -> None:
    recipe = cell("fedntd-table8", "cifar10-s2-e5", "fedntd")
    made(tmp_path, recipe, 0, 50.5)
    made(tmp_path, recipe, 2, 51.5)
    rows = list(csv.DictReader(io.StringIO(as_csv(read(find("fedntd-table8"), [tmp_path])))))
    assert len(rows) == 25
    (row,) = (row for row in rows if row["seeds"])
    assert (row["column"], row["method"], row["seeds"], row["rounds"]) == ("cifar10-s2-e5", "fedntd", "0 2", "200")
    assert float(row["accuracy"]) == pytest.approx(51.0)
    assert float(row["std"]) == pytest.approx(math.sqrt(0.5))
    assert float(row["difference"]) == pytest.approx(51.0 - 52.61)
    assert float(row["noise"]) == pytest.approx(2 * math.sqrt(1.0 + 0.25))
    assert (row["verdict"], row["place"]) == ("within noise", "fedntd-table1/cifar10-s2/fedntd")
    assert {row["verdict"] for row in rows if not row["seeds"]} <= {
        "not run", *(r.missing for r in find("fedntd-table8") if r.missing),
    }  # fmt: skip


def test_of_two_runs_with_a_seed_the_longer_one_counts(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path / "a", recipe, 0, 30.0, rounds=10)
    made(tmp_path / "b", recipe, 0, 35.0, rounds=20)
    (found,) = read([recipe], [tmp_path / "a", tmp_path / "b"])
    assert found.accuracy == pytest.approx(35.0)
    assert found.rounds == 20


def test_damaged_files_are_named(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    place = made(tmp_path, recipe, 0, 30.0)
    (place / "metrics.jsonl").write_text('{"round": 0, "global_accuracy": 7}\n')
    with pytest.raises(SettingError, match=r"line 1: global_accuracy must be a number in 0\.\.1"):
        read([recipe], [tmp_path])


# ---- numbers that are lost


def personal(folder: Path, row: str, accuracies: list[float]) -> Recipe:
    """A recipe of pFedSD's first scenario, and a run of it with these accuracies (in %) after rounds 1, 2, ..."""
    recipe = cell("pfedsd-a", "cifar10-s2-r0.6", row)
    place = made(folder, recipe, 0, 0.0, rounds=len(accuracies))
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line, accuracy in zip(lines, [99.0, *accuracies], strict=True):
        line["personal_accuracy"] = accuracy / 100  # of round 0 too, which is before training
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return recipe


def test_a_recipe_may_be_judged_by_its_best_round(tmp_path: Path) -> None:
    recipe = personal(tmp_path, "pfedsd", [50.0, 70.0, 60.0])
    found = result(recipe, tmp_path)
    assert (found.accuracy, found.last) == (pytest.approx(70.0), pytest.approx(60.0))
    assert result(recipe, tmp_path, rounds=1).accuracy == pytest.approx(50.0)
    assert (found.verdict, found.difference) == ("short run (3 of 100)", None)
    (row,) = csv.DictReader(io.StringIO(as_csv([found])))
    assert (row["measure"], row["published"]) == ("personal_accuracy, best round", "")
    assert float(row["last"]) == pytest.approx(60.0)
    text = as_markdown("Some title", [found])
    assert "\nPersonal accuracy of the best round, chosen on the test examples (optimistic), in %, mean" in text
    assert "| method | ours | last | F ours | rounds x seeds | verdict |" in text  # nothing is published
    assert "| pfedsd | 70.00 | 60.00 | 0.50 | 3 x 1 | short run (3 of 100) |" in text
    assert "Within noise" not in text


def test_a_recipe_may_be_judged_by_its_mean_over_rounds(tmp_path: Path) -> None:
    recipe = dataclasses.replace(personal(tmp_path, "pfedsd", [50.0, 70.0, 60.0]), reading="mean")
    found = result(recipe, tmp_path)
    assert found.accuracy == pytest.approx((99 + 50 + 70 + 60) / 4)  # of the round before training too
    assert (found.best, found.last) == (pytest.approx(70.0), pytest.approx(60.0))
    assert result(recipe, tmp_path, rounds=1).accuracy == pytest.approx((99 + 50) / 2)
    (row,) = csv.DictReader(io.StringIO(as_csv([found])))
    assert (row["measure"], float(row["best"])) == ("personal_accuracy, mean over rounds", pytest.approx(70.0))
    text = as_markdown("Some title", [found])
    assert (
        "\nPersonal accuracy, mean over all rounds with that before training; beside it that of the best round, "
        in text
    )
    assert "| method | ours | best | last | F ours | rounds x seeds | verdict |" in text
    assert "| pfedsd | 69.75 | 70.00 | 60.00 | 0.50 | 3 x 1 | short run (3 of 100) |" in text


def test_orders_may_be_published_in_words(tmp_path: Path) -> None:
    rows = {"pfedsd": [80.0], "fedavg": [60.0], "local_only": [85.0], "pfedsd_lam0": [90.0]}
    found = read([personal(tmp_path, row, values) for row, values in rows.items()], [tmp_path])
    assert [tuple(o) for o in orderings(found)] == [
        ("cifar10-s2-r0.6", "pfedsd", "fedavg", None, True, ()),
        ("cifar10-s2-r0.6", "pfedsd", "local_only", None, False, (0,)),
    ]
    assert "\n2 published orders left out, of unfinished runs or other settings.\n" in as_markdown("T", found)
    whole = [personal(tmp_path / "whole", row, values * 100) for row, values in rows.items()]
    assert "orders that hold in ours: 1 of 2; all are in words. Not: pfedsd above local_only.\n" in as_markdown(
        "T", read(whole, [tmp_path / "whole"])
    )
    some = [personal(tmp_path / "some", row, rows[row] * (1 if row == "local_only" else 100)) for row in rows]
    assert order_lines(read(some, [tmp_path / "some"])) == [
        "Published orders that hold in ours: 1 of 1; all are in words."  # a shorter run is compared with none
    ]


def test_orders_of_runs_that_depart_alike(tmp_path: Path) -> None:
    """Both train for fewer epochs: the order is evaluated; where one alone does, it is not."""
    column = "fmnist-a0.1-m5-cnn"
    fedavg, dense = (cell("dense-table1", column, row) for row in ("fedavg", "dense"))
    made(tmp_path, fedavg, 0, 40.0, rounds=1, local__epochs=50)
    made(tmp_path, dense, 0, 50.0, rounds=41, local__epochs=50)
    (order,) = orderings(read([fedavg, dense], [tmp_path]))
    assert (order.above, order.below, order.holds) == ("dense", "fedavg", True)
    made(tmp_path, fedavg, 1, 60.0, rounds=1, local__epochs=40)
    (order,) = orderings(read([fedavg, dense], [tmp_path]))  # of the seed that both have
    assert (order.above, order.holds) == ("dense", True)
    made(tmp_path, dense, 1, 50.0, rounds=41, local__epochs=50)
    assert orderings(read([fedavg, dense], [tmp_path])) == []
    made(tmp_path / "swapped", fedavg, 0, 40.0, rounds=1, local__epochs=40)
    made(tmp_path / "swapped", fedavg, 1, 40.0, rounds=1)
    made(tmp_path / "swapped", dense, 0, 50.0, rounds=41)
    made(tmp_path / "swapped", dense, 1, 50.0, rounds=41, local__epochs=40)
    assert orderings(read([fedavg, dense], [tmp_path / "swapped"])) == []  # the same changes, of other seeds


def test_orders_are_between_the_same_seeds(tmp_path: Path) -> None:
    fedavg, fedntd = (cell("fedntd-table1", "cifar10-s2", row) for row in ("fedavg", "fedntd"))
    made(tmp_path, fedntd, 0, 50.0)
    made(tmp_path, fedntd, 1, 90.0)
    made(tmp_path, fedavg, 0, 60.0)
    (order,) = orderings(read([fedavg, fedntd], [tmp_path]))
    assert (order.above, order.holds) == ("fedntd", False)
    made(tmp_path / "other", fedntd, 1, 90.0)
    made(tmp_path / "other", fedavg, 0, 60.0)
    assert orderings(read([fedavg, fedntd], [tmp_path / "other"])) == []


def test_an_order_that_holds_in_the_mean_alone_says_so(tmp_path: Path) -> None:
    fedavg, dense = (cell("dense-table1", "fmnist-a0.1-m5-cnn", row) for row in ("fedavg", "dense"))
    for seed, (above, below) in enumerate(((60.0, 40.0), (44.0, 45.0), (50.0, 49.0))):
        made(tmp_path, dense, seed, above, rounds=201)
        made(tmp_path, fedavg, seed, below, rounds=1)
    found = read([fedavg, dense], [tmp_path])
    assert [(o.holds, o.against) for o in orderings(found)] == [(True, (1,))]
    assert "In the mean, but not in every seed: dense above fedavg (not in 1)." in as_markdown("T", found)
    alone = [dataclasses.replace(r, runs={1: r.runs[1]}) for r in found]
    assert [(o.holds, o.against) for o in orderings(alone)] == [(False, (1,))]
    text = as_markdown("T", alone)
    assert "Not: dense above fedavg (clear)." in text
    assert "In the mean" not in text


def test_seeds_without_the_number_do_not_count(tmp_path: Path) -> None:
    """A run of an older version, whose upload has not evaluated the ensemble."""
    ensemble, dense = (cell("dense-table1", "fmnist-a0.1-m5-cnn", row) for row in ("ensemble", "dense"))
    for seed, accuracy in enumerate((50.0, 90.0)):
        place = made(tmp_path, dense, seed, accuracy, rounds=201)
    log = place / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[1]["ensemble_accuracy"] = 0.8
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read([ensemble, dense], [tmp_path])
    assert (found[0].accuracy, found[0].std) == (pytest.approx(80.0), None)
    assert found[0].noise == pytest.approx(2 * math.sqrt(2))  # of one seed
    (order,) = orderings(found)  # of the one in which both are: 80 less 90, not 80 less 70
    assert (order.above, order.holds) == ("ensemble", False)
    (row, _) = csv.DictReader(io.StringIO(as_csv(found)))
    assert row["seeds"] == "1"
    assert "| 1 x 1 | higher |" in as_markdown("T", found)


def test_runs_of_several_uploads_are_compared_when_each_is_done(tmp_path: Path) -> None:
    """They are one run, read after 201, 402, ... rounds: cut short, five uploads are none but the first of them."""
    rows = [cell("dense-rounds", "fmnist-a0.1-m5-cnn", f"dense-r{n}") for n in (1, 2, 5)]
    place = made(tmp_path, rows[0], 0, 60.0, rounds=402)
    for rounds in (41, 201, 402):
        assert orderings(read(rows, [tmp_path], rounds)) == []
    lines = [{"round": t, "global_accuracy": 0.6 + t / 10_000} for t in range(1006)]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = orderings(read(rows, [tmp_path]))
    assert {(o.above, o.below, o.holds) for o in found} == {
        ("dense-r5", "dense-r1", True), ("dense-r5", "dense-r2", True),
    }  # fmt: skip
    assert orderings(read(rows, [tmp_path], 1004)) == []


def test_a_method_that_has_only_begun_is_not_compared_with_one_that_is_done(tmp_path: Path) -> None:
    """DENSE's first round is its upload: its student is untrained. One-shot FedAvg has that round alone."""
    fedavg, dense = (cell("dense-table1", "fmnist-a0.1-m5-cnn", row) for row in ("fedavg", "dense"))
    made(tmp_path, fedavg, 0, 40.0, rounds=1)
    made(tmp_path, dense, 0, 4.0, rounds=1)
    found = read([fedavg, dense], [tmp_path])
    assert orderings(found) == []
    assert study("dense-table1").remarks(found) == []
    assert orderings(read([fedavg, dense], [tmp_path], 1)) == []


def test_nothing_is_said_of_a_method_of_which_a_seed_failed(tmp_path: Path) -> None:
    """Neither by orders nor by what studies say of their claims: the others may be the lucky ones."""
    for table, column, high, low, rounds in (
        ("dense-table1", "fmnist-a0.1-m5-cnn", "dense", "fedavg", (201, 1)),
        ("apfl-comparison", "mnist", "apfl_ni", "fedavg", (150, 150)),
        ("ktpfl-small", "cifar20k-two", "kt_pfl", "fedmd_kt", (20, 20)),
    ):
        first, second = (cell(table, column, row) for row in (high, low))
        for seed in (0, 1):
            made(tmp_path, second, seed, 40.0, rounds=rounds[1])
            place = made(tmp_path, first, seed, 50.0, rounds=rounds[0] - 9 * seed)
        assert study(table).remarks(read([first, second], [tmp_path])) != [], table
        (place / FAILED).write_bytes(reading.sealed({"why": "the loss is nan"}))
        found = read([first, second], [tmp_path])
        assert found[0].verdict == "1 of 2 failed"
        assert orderings(found) == []
        assert study(table).remarks(found) == [], table


def test_a_run_that_failed_later_has_the_rounds_before(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    place = made(tmp_path, recipe, 0, 40.0, rounds=150)
    (place / FAILED).write_bytes(reading.sealed({"why": "round 151: the loss is nan"}))
    assert (result(recipe, tmp_path).verdict, result(recipe, tmp_path).accuracy) == ("failed", None)
    assert result(recipe, tmp_path, 150).verdict == "short run (150 of 200)"
    assert result(recipe, tmp_path, 40).accuracy == pytest.approx(40.0)


def test_when_and_on_whom_accuracy_is_measured_counts_where_the_number_depends_on_it(tmp_path: Path) -> None:
    """The mean over rounds depends on which of them measure it, a personal accuracy on whose it is."""
    mean = cell("apfl-comparison", "mnist", "fedavg")
    made(tmp_path, mean, 0, 80.0, rounds=150, run__eval_every=50)
    made(tmp_path, mean, 1, 80.0, rounds=150, run__panel=3)
    assert result(mean, tmp_path).verdict == "other settings: run.eval_every, run.panel"
    last = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path, last, 0, 42.0, run__eval_every=50, run__panel=3)
    assert result(last, tmp_path).changed == {}


def test_a_method_of_fewer_rounds_is_compared_when_it_is_done(tmp_path: Path) -> None:
    column = "fmnist-a0.1-m5-cnn"
    names = ("fedavg", "fed_adi", "dense")
    rows = {row: cell("dense-table1", column, row) for row in names}
    for row, rounds in zip(names, (1, 20, 41), strict=True):
        made(tmp_path, rows[row], 0, 40.0 + rounds, rounds=rounds)
    found = orderings(read(rows.values(), [tmp_path]))
    assert {(o.above, o.below) for o in found} == {("fed_adi", "fedavg"), ("dense", "fedavg")}
    assert {o.above for o in orderings(read(rows.values(), [tmp_path], 20))} == {"fed_adi", "dense"}
    assert len(orderings(read(rows.values(), [tmp_path], 20))) == 3


def test_numbers_that_nothing_proves_are_doubtful(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path, recipe, 3, 40.0)
    found = result(recipe, tmp_path)
    assert "doubtful" not in as_markdown("Title", [found])
    (run,) = found.runs.values()
    history = dataclasses.replace(run.history, unproved="no checkpoint proves its logs")
    doubtful = dataclasses.replace(found, runs={3: dataclasses.replace(run, history=history)})
    assert "- cifar10-s2 fedavg, seed 3: no checkpoint proves its logs." in as_markdown("Title", [doubtful])


def test_a_curve_is_over_the_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    recipe = cell("fedntd-table1", "cifar10-s2", "fedavg")
    made(tmp_path, recipe, 0, 40.0, rounds=3)
    made(tmp_path, recipe, 1, 50.0, rounds=3)
    made(tmp_path, recipe, 2, 90.0, rounds=2)  # shorter: no seed of this result
    rounds, values = curve(result(recipe, tmp_path), "global_accuracy")
    assert (rounds, values.tolist()) == ([0, 1, 2, 3], pytest.approx([0.1, 0.45, 0.45, 0.45]))
    rounds, values = curve(result(recipe, tmp_path), "forgetting")
    assert rounds == [2, 3]
    rounds, values = mean_curve([{1: 0.2, 5: 0.6, 9: 1.0}, {5: 0.4, 9: 0.0}])
    assert (rounds, values.tolist()) == ([5, 9], [0.5, 0.5])
    assert mean_curve([])[0] == []
