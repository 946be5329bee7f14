"""What pages of results say of pFedSD's other claims, of runs made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom_papers import recipes, study
from fedloom_papers.pfedsd.claims import RECOVERY, drops, remarks
from fedloom_papers.reproduction.claim_verdicts import verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN
from fedloom_papers.reproduction.copies import export
from fedloom_papers.reproduction.results import read
from fedloom_papers.reproduction.results_page import write
from published_runs import cell, made

COLUMN = "cifar10-s2-r0.6"
HEAD = "variant,step,client,former,accuracy\n"
AS_CLAIMED = (
    HEAD
    + """as in the run,0,3,0.9,0.5
as in the run,0,5,0.8,0.9
as in the run,2,3,0.9,0.895
as in the run,2,5,0.8,0.7
without the term,0,3,0.9,0.5
without the term,0,5,0.8,0.9
without the term,2,3,0.9,0.6
without the term,2,5,0.8,0.7
"""
)


def trained(folder: Path, row: str, losses: list[float], seed: int = 0, column: str = COLUMN) -> Path:
    place = made(folder, cell("pfedsd-a", column, row), seed, 80.0, rounds=len(losses))
    lines = [
        {"round": 0},
        *({"round": t, "train_loss": loss, "personal_accuracy": 0.8} for t, loss in enumerate(losses, 1)),
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def personal(folder: Path, row: str, accuracies: list[float], losses: list[float], column: str = COLUMN) -> None:
    place = trained(folder, row, losses, column=column)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    for line, accuracy in zip(lines[1:], accuracies, strict=True):
        line["personal_accuracy"] = accuracy
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def analysed(place: Path, text: str) -> None:
    (place / RECOVERY).parent.mkdir()
    (place / RECOVERY).write_text(text)


def said(folder: Path) -> list[str]:
    return remarks([r for r in read(recipes("pfedsd-a"), [folder]) if r.runs])


def test_the_control_is_compared_round_by_round(tmp_path: Path) -> None:
    trained(tmp_path, "pfedsd_lam0", [2.0, 1.5, 1.25])
    assert said(tmp_path) == []
    trained(tmp_path, "fedavg", [2.0, 1.5])
    trained(tmp_path, "fedavg_stored", [2.0, 1.5, 1.25])
    assert said(tmp_path) == [
        "lambda = 0, seed 0: training losses are those of fedavg in all of 2 rounds.",
        "lambda = 0, seed 0: personal accuracies are those of fedavg_stored in all of 3 rounds.",
    ]


def test_controls_are_compared_in_rounds_that_both_measured_with_the_same_settings(tmp_path: Path) -> None:
    place = trained(tmp_path, "pfedsd_lam0", [2.0, 1.5, 1.25])
    trained(tmp_path, "fedavg_stored", [2.0, 1.5, 1.25])
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    del lines[2]["personal_accuracy"]  # as with run.eval_every
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert said(tmp_path) == ["lambda = 0, seed 0: personal accuracies are those of fedavg_stored in all of 2 rounds."]
    made(tmp_path, cell("pfedsd-a", COLUMN, "fedavg"), 0, 80.0, rounds=3, local__epochs=1)
    assert said(tmp_path) == ["lambda = 0, seed 0: personal accuracies are those of fedavg_stored in all of 2 rounds."]


def test_a_control_that_is_not_fedavg_is_named(tmp_path: Path) -> None:
    trained(tmp_path, "pfedsd_lam0", [2.0, 1.5, 1.25], seed=1)
    trained(tmp_path, "fedavg", [2.0, 1.500001, 1.25], seed=1)
    assert said(tmp_path) == ["lambda = 0, seed 1: training losses are NOT those of fedavg from round 2 on."]


def test_drop_and_recovery_are_judged(tmp_path: Path) -> None:
    analysed(trained(tmp_path, "pfedsd", [1.0]), AS_CLAIMED)
    assert said(tmp_path) == [
        "pfedsd, seed 0: the global model is worse than the former one of 1 of 2 clients, by 15.0 points in the mean; "
        "the median client comes back within a point after 0 steps with the term, 0 steps without: as claimed, NO. The "
        "mean is higher with the term after 2 of 2 steps."
    ]


def test_a_median_client_that_recovers_earlier_is_as_claimed(tmp_path: Path) -> None:
    both_drop = AS_CLAIMED.replace(",5,0.8,0.9", ",5,0.8,0.1").replace("run,2,5,0.8,0.7", "run,2,5,0.8,0.85")
    analysed(trained(tmp_path, "pfedsd", [1.0]), both_drop)
    (line,) = said(tmp_path)
    assert "worse than the former one of 2 of 2 clients, by 55.0 points in the mean" in line
    assert "after 2 steps with the term, not at all without: as claimed, yes. The mean is higher" in line


def test_a_term_that_does_not_help_is_nowhere_ahead(tmp_path: Path) -> None:
    worse = AS_CLAIMED.replace("run,2,3,0.9,0.895", "run,2,3,0.9,0.2")
    analysed(trained(tmp_path, "pfedsd", [1.0]), worse)
    assert said(tmp_path)[0].endswith("The mean is higher with the term after none of 2 steps.")


def verdict(folder: Path, words: str) -> tuple[str, str]:
    (found,) = [one for one in verdicts("pfedsd", [folder]) if one.claim.text.startswith(words)]
    return found.verdict, found.ours


def test_forgetting_and_recovery_are_claims(tmp_path: Path) -> None:
    place = trained(tmp_path, "pfedsd", [1.0])
    assert verdict(tmp_path, "The global model is worse")[0] == NOT_RUN
    analysed(place, AS_CLAIMED)
    assert verdict(tmp_path, "The global model is worse")[0] == HOLDS
    found, ours = verdict(tmp_path, "With the term clients come back")
    assert (found, ours.endswith("pfedsd: 0 steps with the term, 0 without")) == (FAILS, True)
    both_drop = AS_CLAIMED.replace(",5,0.8,0.9", ",5,0.8,0.1").replace("run,2,5,0.8,0.7", "run,2,5,0.8,0.85")
    (place / RECOVERY).write_text(both_drop)
    assert verdict(tmp_path, "With the term clients come back")[0] == HOLDS


def test_local_models_of_fedavg_are_above_its_global_one_by_round(tmp_path: Path) -> None:
    words = "The global model is worse"
    for name, received, losses in (
        ("above", [0.2, 0.5], [2.0, 1.0]), ("once", [0.2, 0.95], [2.0, 1.0]), ("others", [0.2, 0.5], [2.0, 1.1]),
    ):  # fmt: skip
        personal(tmp_path / name, "fedavg_stored", [0.5, 0.9], [2.0, 1.0])
        personal(tmp_path / name, "fedavg", received, losses)
    assert verdict(tmp_path / "above", words) == (
        HOLDS, f"1 holds; {COLUMN} fedavg_stored and fedavg: 35.0 points worse in the mean, in 2 of 2 rounds",
    )  # fmt: skip
    assert verdict(tmp_path / "once", words)[0] == FAILS
    assert verdict(tmp_path / "others", words)[0] == NOT_RUN  # they trained other models


@pytest.mark.slow
def test_the_drop_of_fedavg_is_compared_over_skew_and_participation(tmp_path: Path) -> None:
    def both(column: str, stored: list[float], received: list[float]) -> None:
        personal(tmp_path, "fedavg_stored", stored, [2.0, 1.0], column)
        personal(tmp_path, "fedavg", received, [2.0, 1.0], column)

    def of(words: str) -> tuple[str, str]:
        return verdict(tmp_path, f"That drop grows {words}")

    both("cifar10-dir0.1-r0.6", [0.8, 0.9], [0.2, 0.4])
    assert of("with heterogeneity (Dirichlet")[0] == NOT_RUN
    both("cifar10-dir0.5-r0.6", [0.7, 0.7], [0.5, 0.5])
    said = "cifar10-dir0.1-r0.6 a drop of 55.00 points, cifar10-dir0.5-r0.6 of 20.00"
    assert of("with heterogeneity (Dirichlet") == (HOLDS, f"1 holds; {said}")
    both("cifar10-dir1-r0.6", [0.6, 0.6], [0.4, 0.395])  # within noise of the one before
    assert of("with heterogeneity (Dirichlet")[0] == NOISE
    both("cifar10-dir0.1-r1", [0.9, 0.9], [0.1, 0.2])
    assert of("as fewer clients take part")[0] == FAILS
    assert of("with heterogeneity (classes")[0] == NOT_RUN


def test_without_the_term_training_is_that_of_fedavg_or_not(tmp_path: Path) -> None:
    words = "Without the term"
    trained(tmp_path, "pfedsd_lam0", [2.0, 1.5, 1.25])
    assert verdict(tmp_path, words)[0] == NOT_RUN
    trained(tmp_path, "fedavg", [2.0, 1.5, 1.25])
    assert verdict(tmp_path, words) == (HOLDS, f"1 holds; {COLUMN} pfedsd_lam0 and fedavg: 3 rounds alike")
    trained(tmp_path, "pfedsd_lam0", [2.0, 1.5], seed=1)
    trained(tmp_path, "fedavg", [2.0, 1.6], seed=1)
    assert verdict(tmp_path, words)[0] == NOISE


def test_what_is_said_stands_on_the_page_and_goes_with_copies(tmp_path: Path) -> None:
    out, to = tmp_path / "runs", tmp_path / "copies"
    place = trained(out, "pfedsd", [1.0])
    room, table = study("pfedsd-a"), recipes("pfedsd-a")
    export(table, out, to, rounds=1, evidence=room.evidence)
    analysed(place, AS_CLAIMED)  # after the run was copied
    export(table, out, to, rounds=1, evidence=room.evidence)
    write("Title", table, [to], remarks=room.remarks)
    assert "as claimed, NO. " in (to / "pfedsd-a" / "results.md").read_text()


def test_drops_of_all_runs_in_one_figure(tmp_path: Path) -> None:
    analysed(trained(tmp_path, "pfedsd", [1.0]), AS_CLAIMED)
    analysed(
        trained(tmp_path, "pfedsd_lam0", [1.0], column="cifar10-dir0.1-r1"), "".join(AS_CLAIMED.splitlines(True)[:5])
    )
    found = drops("pfedsd-a", [tmp_path])
    assert [row[:3] for row in found.summary.rows] == [
        ["cifar10-s2-r0.6", "pfedsd", 0], ["cifar10-dir0.1-r1", "pfedsd_lam0", 0],
    ]  # fmt: skip
    assert [row[5] for row in found.summary.rows] == pytest.approx([0.15, 0.15])
    ticks = [label.get_text() for label in found.figure.axes[0].get_xticklabels()]
    assert ticks == ["cifar10-s2-r0.6", "cifar10-dir0.1-r1"]
    assert found.figure.axes[0].get_title(loc="left").endswith("\n1 of 100 rounds, 1 seed")
    heights = [line.get_ydata().tolist() for line in found.figure.axes[0].lines if line.get_marker() == "o"]
    assert heights == [pytest.approx([15.0])] * 2


def test_nothing_that_was_analysed_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "pfedsd", [1.0])
    with pytest.raises(
        SettingError, match=r"holds no run of pfedsd-a with its analysis/recovery\.csv: fedloom analyse"
    ):
        drops("pfedsd-a", [tmp_path])


@pytest.mark.parametrize(
    "text",
    ["", HEAD, "a,b\n1,2\n", AS_CLAIMED.replace("0.895", "much"), AS_CLAIMED[: AS_CLAIMED.index("without")][:-30]],
)
def test_a_damaged_analysis_is_named(text: str, tmp_path: Path) -> None:
    place = trained(tmp_path, "pfedsd", [1.0])
    analysed(place, text)
    with pytest.raises(SettingError, match=r"recovery\.csv is not what recovery wrote .* writes it anew"):
        said(tmp_path)
