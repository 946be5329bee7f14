"""What runs of recipes say of APFL's claims, of runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.algorithms import APFLNi
from fedloom_papers import recipes, study
from fedloom_papers.apfl.claims import NOTE, remarks
from fedloom_papers.apfl.recipes import LAMBDAS
from fedloom_papers.reproduction.claim_verdicts import verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOT_RUN
from fedloom_papers.reproduction.results import read
from published_runs import cell, made


def of(folder: Path, table: str, column: str) -> list[str]:
    return remarks([r for r in read(recipes(table), [folder]) if r.recipe.column == column])


def noted(folder: Path, measured: list[int]) -> None:
    """Write down in which rounds a run has measured importance."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["server_measured"] = line["round"] in measured
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_gains_are_told_in_both_readings(tmp_path: Path) -> None:
    """Made runs have 10 % before training: the mean over 200 rounds and that one is a little less."""
    made(tmp_path, cell("apfl-comparison", "letters", "fedavg"), 0, 40.0)
    made(tmp_path, cell("apfl-comparison", "letters", "fedprox"), 0, 41.0)
    made(tmp_path, cell("apfl-comparison", "letters", "apfl_ni"), 0, 70.0)
    made(tmp_path, cell("apfl-comparison", "letters", "fedmeta"), 0, 90.0, rounds=50)  # not as long: left out
    assert of(tmp_path, "apfl-comparison", "letters") == [
        "fedprox less fedavg: +1.00 points in the mean over rounds, +1.00 in the best round.",
        "apfl_ni less fedavg: +29.85 points in the mean over rounds (published +30.42), +30.00 in the best round.",
    ]
    assert study("apfl-comparison").remarks is remarks
    assert of(tmp_path, "apfl-comparison", "mnist") == []


def test_a_published_gain_stands_beside_runs_with_its_settings_and_says_over_how_many_rounds(tmp_path: Path) -> None:
    for row, accuracy in (("fedavg", 40.0), ("apfl_ni", 50.0)):
        made(tmp_path, cell("apfl-comparison", "cifar10", row), 0, accuracy, rounds=40)
        made(tmp_path / "other", cell("apfl-comparison", "cifar10", row), 0, accuracy, rounds=100, local__epochs=1)
    noted(tmp_path / "apfl-comparison/cifar10/apfl_ni/seed-0", [1, 2, 3])
    assert of(tmp_path, "apfl-comparison", "cifar10") == [
        "apfl_ni less fedavg: +9.76 points in the mean over rounds (published +10.26 over 100 rounds, here 40), +10.00 "
        "in the best round.",
        "apfl_ni, seed 0: importance measured 0 times after the forced ones; published: once over 100 rounds, here 40.",
    ]
    (told,) = of(tmp_path / "other", "apfl-comparison", "cifar10")
    assert told == "apfl_ni less fedavg: +9.90 points in the mean over rounds, +10.00 in the best round."


def test_what_consolidation_adds_to_decomposition(tmp_path: Path) -> None:
    for row, accuracies in (("fedavg", (70, 71)), ("decomposition", (80, 81)), ("apfl_ni", (82,))):
        for seed, accuracy in enumerate(accuracies):
            made(tmp_path, cell("apfl-ewc", "letters", row), seed, accuracy)
    told = of(tmp_path, "apfl-ewc", "letters")
    assert [line.partition(":")[0] for line in told] == [
        "decomposition less fedavg", "apfl_ni less fedavg", "apfl_ni less decomposition",
    ]  # fmt: skip
    assert told[-1].endswith(
        "less decomposition: +1.99 points in the mean over rounds, +2.00 in the best round, of seed 0."
    )
    assert "published" not in told[-1]


def test_measurements_after_the_forced_ones_are_counted(tmp_path: Path) -> None:
    noted(made(tmp_path, cell("apfl-comparison", "mnist", "apfl_ni"), 0, 80.0, rounds=150), [1, 2, 3, 9])
    noted(made(tmp_path, cell("apfl-comparison", "mnist", "apfl_ni"), 1, 80.0, rounds=150), [1, 2, 3])
    assert of(tmp_path, "apfl-comparison", "mnist") == [
        "apfl_ni, seed 0: importance measured 1 times after the forced ones (in round 9); published: once.",
        "apfl_ni, seed 1: importance measured 0 times after the forced ones; published: once.",
    ]


def test_without_consolidation_nothing_is_measured(tmp_path: Path) -> None:
    noted(made(tmp_path, cell("apfl-ewc", "mnist", "decomposition"), 0, 80.0, rounds=150), [])
    assert of(tmp_path, "apfl-ewc", "mnist") == []


def test_gains_are_of_the_seeds_that_both_have(tmp_path: Path) -> None:
    made(tmp_path, cell("apfl-comparison", "letters", "fedavg"), 0, 40.0)
    made(tmp_path, cell("apfl-comparison", "letters", "fedprox"), 0, 41.0)
    made(tmp_path, cell("apfl-comparison", "letters", "fedprox"), 1, 91.0)
    (told,) = of(tmp_path, "apfl-comparison", "letters")
    assert told == "fedprox less fedavg: +1.00 points in the mean over rounds, +1.00 in the best round, of seed 0."


def test_a_gain_says_its_seeds_also_where_fedavg_alone_has_others(tmp_path: Path) -> None:
    made(tmp_path, cell("apfl-comparison", "letters", "fedprox"), 0, 41.0)
    for seed, accuracy in enumerate((40.0, 90.0)):
        made(tmp_path, cell("apfl-comparison", "letters", "fedavg"), seed, accuracy)
    (told,) = of(tmp_path, "apfl-comparison", "letters")
    assert told == "fedprox less fedavg: +1.00 points in the mean over rounds, +1.00 in the best round, of seed 0."


def test_what_is_published_over_lambda_is_of_its_data_and_settings(tmp_path: Path) -> None:
    for i, lam in enumerate(LAMBDAS):
        made(tmp_path, cell("apfl-lambda", "vehicle-part-e5", f"apfl_ni-{lam:g}"), 0, 80.0 + i, rounds=20)
        made(tmp_path, cell("apfl-lambda", "mnist-e5", f"apfl_ni-{lam:g}"), 0, 80.0 + i, rounds=9, local__epochs=1)
        if lam < 1:
            made(tmp_path, cell("apfl-lambda", "mnist-e5", f"apfl_ni-{lam:g}"), 1, 80.0, rounds=9, local__epochs=1)
    said = "Over lambda accuracy rises throughout and spreads over"
    assert of(tmp_path, "apfl-lambda", "vehicle-part-e5") == [f"{said} 3.81 points."]
    assert of(tmp_path, "apfl-lambda", "mnist-e5") == [f"{said} 3.60 points, of seed 0."]
    for lam in LAMBDAS:
        made(tmp_path / "short", cell("apfl-lambda", "mnist-e5", f"apfl_ni-{lam:g}"), 0, 80.0 + lam, rounds=9)
    (told,) = of(tmp_path / "short", "apfl-lambda", "mnist-e5")
    assert told.endswith("(published: rises throughout and spreads over 0.46 points over 150 rounds, here 9).")


def test_nothing_is_said_of_lambda_where_runs_are_not_equally_long(tmp_path: Path) -> None:
    for lam in LAMBDAS:
        rounds = 5 if lam == 1 else 150
        made(tmp_path, cell("apfl-lambda", "mnist-e20", f"apfl_ni-{lam:g}"), 0, 80.0, rounds=rounds)
    assert of(tmp_path, "apfl-lambda", "mnist-e20") == []


def test_what_lambda_does(tmp_path: Path) -> None:
    accuracies = [80.0, 80.1, 80.3, 80.2, 80.5]
    for lam, accuracy in zip(LAMBDAS, accuracies, strict=True):
        assert of(tmp_path, "apfl-lambda", "mnist-e20") == []  # before all are there
        made(tmp_path, cell("apfl-lambda", "mnist-e20", f"apfl_ni-{lam:g}"), 0, accuracy, rounds=150)
    (told,) = of(tmp_path, "apfl-lambda", "mnist-e20")
    printed = "(published: rises throughout and spreads over 0.86 points)"
    assert told == f"Over lambda accuracy does not rise throughout and spreads over 0.50 points {printed}."
    for lam, accuracy in zip(LAMBDAS, sorted(accuracies), strict=True):
        made(tmp_path / "again", cell("apfl-lambda", "mnist-e20", f"apfl_ni-{lam:g}"), 0, accuracy, rounds=150)
    assert of(tmp_path / "again", "apfl-lambda", "mnist-e20")[0].startswith("Over lambda accuracy rises throughout and")


def verdict(folder: Path, words: str) -> tuple[str, str]:
    (found,) = [one for one in verdicts("apfl", [folder]) if one.claim.text.startswith(words)]
    return found.verdict, found.ours


def test_importance_is_to_be_measured_once_after_the_forced_rounds(tmp_path: Path) -> None:
    words = "Importance is measured once"
    place = made(tmp_path, cell("apfl-comparison", "mnist", "apfl_ni"), 0, 80.0, rounds=150)
    assert verdict(tmp_path, words)[0] == NOT_RUN
    for rounds, expected in (([1, 2, 3, 9], HOLDS), ([1, 2, 3], FAILS), ([1, 2, 3, 9, 12], FAILS)):
        noted(place, rounds)
        assert verdict(tmp_path, words)[0] == expected
    assert verdict(tmp_path, words)[1].endswith("mnist apfl_ni: 2 times (round 9, 12)")


def test_importance_costs_bytes_and_the_loss_of_all_clients_is_told_beside_them(tmp_path: Path) -> None:
    for fisher, up, expected in ((5, 105, HOLDS), (20, 100, FAILS), (5, 120, FAILS)):
        folder = tmp_path / f"{fisher}-{up}"
        for row, logged in (
            ("apfl_ni", {"bytes_down": 1000 + fisher, "bytes_down_fisher": fisher, "bytes_up": up}),
            ("fedavg", {"bytes_down": 100, "bytes_up": 100}),
        ):
            place = made(folder, cell("apfl-comparison", "mnist", row), 0, 80.0, rounds=150)
            lines = [json.loads(line) | logged for line in (place / "metrics.jsonl").read_text().splitlines()]
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert verdict(folder, "Communication is almost")[0] == expected
    assert (
        "1.05 times the bytes down (10.1 with the loss of all clients), 1.20 times up"
        in (verdict(folder, "Communication is almost")[1])
    )


@pytest.mark.slow
def test_gains_are_beside_the_printed_ones(tmp_path: Path) -> None:
    for seed in (0, 1):
        for row, accuracy in (("fedavg", 40.0), ("apfl_ni", 60.0), ("fedprox", 40.5)):
            made(tmp_path, cell("apfl-comparison", "letters", row), seed, accuracy + seed * (row == "apfl_ni") / 10)
    assert verdict(tmp_path, "APFL gains 30.42 points over FedAvg on letters") == (FAILS, "letters +19.95")
    assert verdict(tmp_path, "APFL is above FedAvg on all four data sets, in the best round")[0] == HOLDS
    assert verdict(tmp_path, "FedProx hardly differs")[0] == HOLDS


def test_the_loss_over_all_clients_is_lower_and_steadier(tmp_path: Path) -> None:
    words = "APFL's training loss over all clients"

    def logs(folder: Path, row: str, losses: list[float]) -> None:
        place = made(folder, cell("apfl-comparison", "mnist", row), 0, 80.0, rounds=len(losses))
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        for line, loss in zip(lines[1:], losses, strict=True):
            line["personal_train_loss"] = loss
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    for name, fedavg, apfl in (
        ("both", [1.0, 0.4, 0.9], [0.8, 0.5, 0.4]), ("lower alone", [1.0, 0.9, 0.8], [0.8, 0.1, 0.6]),
        ("steadier alone", [0.1, 0.4, 0.1], [0.6, 0.5, 0.4]),
    ):  # fmt: skip
        logs(tmp_path / name, "fedavg", fedavg)
        logs(tmp_path / name, "apfl_ni", apfl)
    assert verdict(tmp_path / "both", words) == (
        HOLDS, "1 holds; mnist apfl_ni and fedavg: 0.567 and 0.767 in the mean, moving by 0.200 and 0.550 a round",
    )  # fmt: skip
    assert verdict(tmp_path / "lower alone", words)[0] == FAILS
    assert verdict(tmp_path / "steadier alone", words)[0] == FAILS
    made(tmp_path / "none", cell("apfl-comparison", "mnist", "fedavg"), 0, 80.0, rounds=3)
    made(tmp_path / "none", cell("apfl-comparison", "mnist", "apfl_ni"), 0, 80.0, rounds=3)
    assert verdict(tmp_path / "none", words)[0] == NOT_RUN


def logs(folder: Path, row: str, lines: dict[str, object], rounds: int = 4, **last: object) -> None:
    """A run of MNIST whose log has these entries after every round, and `last` after the last one."""
    place = made(folder, cell("apfl-comparison", "mnist", row), 0, 80.0, rounds=rounds)
    found = [json.loads(line) | lines for line in (place / "metrics.jsonl").read_text().splitlines()]
    found[-1] |= last
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))


def test_fedcurv_costs_twice_the_traffic_in_both_directions(tmp_path: Path) -> None:
    for down, up, expected in ((2.0, 2.0, HOLDS), (2.04, 1.96, HOLDS), (2.0, 1.0, FAILS), (2.2, 2.0, FAILS)):
        folder = tmp_path / f"{down}-{up}"
        logs(folder, "fedavg", {"bytes_down": 100, "bytes_up": 100})
        logs(folder, "fedcurv_ni", {"bytes_down": round(100 * down), "bytes_up": round(100 * up)})
        assert verdict(folder, "FedCurv costs twice") == (
            expected, f"1 {'holds' if expected == HOLDS else 'fails'}; mnist fedcurv_ni and fedavg: {down:g} times the "
            f"bytes down, {up:g} times up",
        )  # fmt: skip
    made(tmp_path / "none", cell("apfl-comparison", "mnist", "fedavg"), 0, 80.0, rounds=3)
    made(tmp_path / "none", cell("apfl-comparison", "mnist", "fedcurv_ni"), 0, 80.0, rounds=3)
    assert verdict(tmp_path / "none", "FedCurv costs twice")[0] == NOT_RUN


def test_most_clients_gain_where_more_than_half_do(tmp_path: Path) -> None:
    words = "Most clients gain"
    logs(tmp_path, "fedavg", {}, personal_by_client={"0": 0.5, "1": 0.5, "2": 0.5, "3": 0.5})
    for better, expected in ((3, HOLDS), (2, FAILS)):  # the others are level, or worse
        folder = tmp_path / str(better)
        gains = {str(i): 0.6 if i < better else 0.5 - 0.1 * (i == 3) for i in range(4)}
        logs(folder, "fedavg", {}, personal_by_client=dict.fromkeys("0123", 0.5))
        logs(folder, "apfl_ni", {}, personal_by_client=gains)
        found = verdict(folder, words)
        assert found[0] == expected
        assert found[1].endswith(f"{better} of 4 clients better, 1 worse")
    logs(tmp_path, "apfl_ni", {}, rounds=3, personal_by_client={"0": 0.5})  # of other rounds
    assert verdict(tmp_path, words)[0] == NOT_RUN


def test_the_second_half_alone_says_who_is_unsteady_later_on(tmp_path: Path) -> None:
    for row, early, late in (("apfl_ni", 0.3, 0.001), ("fedmeta", 0.0, 0.05)):
        place = made(tmp_path, cell("apfl-comparison", "mnist", row), 0, 80.0, rounds=150)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        for line in lines[1:]:
            line["personal_accuracy_by_samples"] = 0.5 + (line["round"] % 2) * (early if line["round"] < 75 else late)
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = verdict(tmp_path, "FedMeta is unsteady later on")
    assert found == (HOLDS, "1 holds; mnist fedmeta 5.00 points a round, apfl_ni 0.10 points a round")


@pytest.mark.slow
def test_the_pages_say_how_decomposition_began() -> None:
    docs, kept = Path(__file__).parents[2] / "docs", []
    for table in ("apfl-comparison", "apfl-lambda", "apfl-epochs", "apfl-rate", "apfl-ewc"):
        for r in read(recipes(table), [docs / "results" / "apfl"]):
            if r.recipe.row.startswith(("apfl_ni", "decomposition", "ewc")) and r.runs:
                kept.append(r.recipe.experiment.settings["apfl_ni"].get("decomposition", APFLNi().decomposition))
    assert len(kept) > 20
    assert set(kept) == {"function_preserving"}
    assert NOTE in (docs / "claims.md").read_text(encoding="utf-8")
    assert "`function_preserving`" in (docs / "apfl.md").read_text(encoding="utf-8").partition("## Protocol")[2]
