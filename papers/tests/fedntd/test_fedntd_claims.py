"""Which claims of FedNTD hold: of runs made by hand, and those that are computed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fedloom_papers import claims, recipes
from fedloom_papers.fedntd import STUDY, proposition_1, proposition_2, proposition_3
from fedloom_papers.fedntd.recipes import BETAS, cells
from fedloom_papers.reproduction.claim_verdicts import ClaimVerdict, verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Claim
from published_runs import cell, made

TABLE = "fedntd-table1"


def claim(words: str) -> Claim:
    (found,) = [c for c in claims("fedntd") if c.text.startswith(words)]
    return found


def judged(folder: Path, words: str) -> ClaimVerdict:
    (found,) = [one for one in verdicts("fedntd", [folder]) if one.claim.text.startswith(words)]
    return found


def evidence(run: Path, name: str, text: str) -> None:
    (run / "analysis").mkdir(exist_ok=True)
    (run / "analysis" / f"{name}.csv").write_text(text)


def test_orders_are_those_of_print() -> None:
    """FedNTD is above the six others but for SCAFFOLD in four columns, and two methods failed in one."""
    best = claim("FedNTD is the most accurate method wherever it is printed so, over shards")
    pairs = [tuple(c.key[1:] for c in part.cells) for part in best.parts]
    assert len(pairs) == 14 * 6 - 4 - 2
    assert {high[1] for high, _ in pairs} == {"fedntd"}
    assert (("cifar10-s5", "fedntd"), ("cifar10-s5", "scaffold")) not in pairs
    assert (("cifar10-s2", "fedntd"), ("cifar10-s2", "fednova-released")) in pairs
    others = claim("The orders of the other methods")
    pairs = [tuple(c.key[1:] for c in part.cells) for part in others.parts]
    assert (("cifar10-s2", "fedcurv"), ("cifar10-s2", "fedprox")) in pairs
    assert (("cifar10-s2", "scaffold"), ("cifar10-s2", "fedcurv")) not in pairs  # 0.08 points apart
    assert not any("fednova" in row or row == "fedntd" for pair in pairs for _, row in pair)


def test_which_values_of_beta_and_tau_are_compared() -> None:
    level = {cell.row for part in claim("FedNTD is not sensitive to beta").parts for cell in part.cells}
    assert level == {f"fedntd-beta{beta:g}" for beta in BETAS if beta >= 0.3}
    hurts = {tuple(cell.row for cell in part.cells) for part in claim("A small tau hurts").parts}
    assert hurts == {("fedntd-tau1", "fedntd-tau0.3")}
    printed = {c.key for part in claim("The printed accuracies themselves").parts for c in part.cells}
    failed = {(TABLE, c.column, c.row) for c in cells(TABLE) if c.note}
    assert failed
    assert not failed & printed
    assert (TABLE, "cifar10-s2", "fedntd") in printed


def test_the_method_that_forgets_less_is_the_better_one(tmp_path: Path) -> None:
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedntd"), 0, 50.0, forgetting=0.3)
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedavg"), 0, 50.0, forgetting=0.5)
    least = judged(tmp_path, "FedNTD forgets least")
    assert (least.verdict, least.judged_parts) == (HOLDS, "1 of 78")
    made(tmp_path, cell(TABLE, "cifar10-s2", "fedprox"), 0, 50.0, forgetting=0.1)
    assert judged(tmp_path, "FedNTD forgets least").verdict == FAILS


@pytest.mark.slow
def test_features_are_compared_where_runs_were_analysed(tmp_path: Path) -> None:
    head = "round,layer,model,neurons,share,share_alive,dead_in_received,dead_in_model\n"
    for row, shares in (("fedntd", (0.9, 0.7)), ("fedavg", (0.6, 0.5))):
        place = made(tmp_path, cell(TABLE, "cifar10-s2", row), 0, 50.0)
        lines = [f"200,a,{k},10,{share},0,0,0\n" for k, share in enumerate(shares)]
        evidence(place, "alignment", head + "".join(lines) + "200,a,aggregated,10,0,0,0,0\n")
    found = judged(tmp_path, "Features stay aligned")
    assert (found.verdict, found.judged_parts, found.ours.endswith("fedntd and fedavg: 0.8, 0.55 (round 200)")) == (
        HOLDS,
        "1 of 2",
        True,
    )
    assert judged(tmp_path, "Local models move less far").verdict == NOT_RUN
    places = [made(tmp_path, cell("fedntd-table2", "cifar10-iid", row), 0, 50.0) for row in ("fedntd", "fedavg")]
    for shares, verdict in (((0.66, 0.7), HOLDS), ((0.7, 0.66), HOLDS), ((0.6, 0.7), FAILS), ((0.8, 0.7), FAILS)):
        for place, share in zip(places, shares, strict=True):
            evidence(place, "alignment", head + f"200,a,1,10,{share},0,0,0\n")
        assert judged(tmp_path, "On IID clients as many neurons").verdict == verdict


def test_what_was_analysed_beside_runs_is_kept_with_them() -> None:
    """What a claim or a figure reads of a run's folder must be exported with the run."""
    assert {Path(name).stem for name in STUDY.evidence} == {
        *("alignment", "local-accuracy", "local-accuracy-rounds", "weight-divergence", "personalised"),
        *("class-preference", "landscape-noise"),
    }


def test_local_models_are_compared_where_runs_were_analysed(tmp_path: Path) -> None:
    column = "cifar10-lda0.3-e10"
    for row, inside, outside in (("fedntd", 0.89, 0.3), ("fedavg", 0.9, 0.1)):
        place = made(tmp_path, cell("fedntd-learning-curves", column, row), 0, 50.0)
        lines = [f"{t},{inside},{outside}\n" for t in (1, 200)] + ["7,0,0.9\n"] * (row == "fedavg")  # in one alone
        evidence(place, "local-accuracy-rounds", "round,in_after_mean,out_after_mean\n" + "".join(lines))
    lacking = judged(tmp_path, "FedNTD's local models know the classes that their clients lack")
    assert (lacking.verdict, lacking.judged_parts) == (HOLDS, "1 of 16")
    assert lacking.ours.endswith("cifar10-lda0.3-e10 fedntd and fedavg: 0.3, 0.1 (2 rounds from 1 to 200)")
    assert (
        judged(tmp_path, "FedNTD's local models know their clients' own classes as well").verdict == HOLDS
    )  # a point less
    evidence(
        tmp_path / cell("fedntd-learning-curves", column, "fedntd").place / "seed-0",
        "local-accuracy-rounds", "round,in_after_mean,out_after_mean\n1,0.87,0.05\n",
    )  # fmt: skip
    assert (
        judged(tmp_path, "FedNTD's local models know their clients' own classes as well").verdict == FAILS
    )  # three points
    assert judged(tmp_path, "FedNTD's local models know the classes that their clients lack").verdict == FAILS
    evidence(
        tmp_path / cell("fedntd-learning-curves", column, "fedntd").place / "seed-0",
        "local-accuracy-rounds", "round,in_after_mean,out_after_mean\n3,0.9,0.5\n",
    )  # fmt: skip
    assert judged(tmp_path, "FedNTD's local models know the classes that their clients lack").verdict == NOT_RUN


def test_personal_accuracy_and_the_landscape_are_compared(tmp_path: Path) -> None:
    for row, kept in (("fedntd", 0.85), ("fedavg", 0.86)):
        place = made(tmp_path, cell(TABLE, "cifar10-s2", row), 0, 50.0)
        evidence(place, "personalised", f"round,client,test_before,test_after\n200,1,0.1,{kept}\n")
    assert judged(tmp_path, "FedNTD's local models keep personal accuracy").verdict == HOLDS
    for row, rise in (("fedntd", 0.4), ("fedavg", 0.6)):
        place = made(tmp_path, cell("fedntd-table13", "cifar10-lda0.5-k16", row), 0, 50.0, rounds=25)
        head = "round,noise,strength,draw,loss,accuracy\n"
        own = 2.0 if row == "fedntd" else 1.0  # not the loss itself, but what noise adds to it
        lines = [
            f"25,relative,0,0,{own},0.5\n",
            f"25,relative,0.5,0,{own + rise},0.4\n",
            f"25,absolute,0.1,0,{9 - own},0.1\n",
        ]
        evidence(place, "landscape-noise", head + "".join(lines))
    flat = judged(tmp_path, "FedNTD's loss landscape is flatter")
    assert (flat.verdict, flat.ours) == (HOLDS, "cifar10-lda0.5-k16 fedntd and fedavg: -0.4, -0.6 (round 25)")


@pytest.mark.slow
def test_the_gain_with_ten_epochs_is_compared_with_that_of_one(tmp_path: Path) -> None:
    for skew, gains in (("s2", (6.0, 11.0)), ("lda0.1", (9.0, 2.0)), ("s5", (6.0, 7.0))):
        for epochs, gain in zip((1, 10), gains, strict=True):
            for row, accuracy in (("fedavg", 40.0), ("fedntd", 40.0 + gain)):
                made(tmp_path, cell("fedntd-learning-curves", f"cifar10-{skew}-e{epochs}", row), 0, accuracy)
    found = judged(tmp_path, "The gain of FedNTD over FedAvg is larger with 10")
    by_skew = {f.ours.partition(" ")[0]: f for f in found.findings if f.ours}
    assert {name: f.verdict for name, f in by_skew.items()} == {
        "cifar10-s2": HOLDS, "cifar10-s5": NOISE, "cifar10-lda0.1": FAILS,
    }  # fmt: skip
    assert by_skew["cifar10-s2"].ours == "cifar10-s2 +11.00 at E = 10, +6.00 at E = 1"
    above = judged(tmp_path, "The global model of FedNTD is more accurate than FedAvg's, with 1 and 10")
    assert above.judged_parts == "6 of 16"
    few = tmp_path / "few"
    for row, accuracy in (("fedavg", 40.0), ("fedntd", 50.0)):
        made(few, cell("fedntd-learning-curves", "cifar10-s2-e1", row), 0, accuracy)
    assert judged(few, "The global model of FedNTD is more accurate").verdict == NOT_RUN  # ten epochs were not run


def test_iid_data_give_steadier_classes(tmp_path: Path) -> None:
    table = "fedntd-section2"
    for column, rows in (
        ("cifar10-iid", [[0.5, 0.5], [0.6, 0.6], [0.7, 0.7]]),
        ("cifar10-lda0.1", [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
    ):
        place = made(tmp_path, cell(table, column, "fedavg"), 0, 50.0, rounds=3)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        for line, accuracies in zip(lines[1:], rows, strict=True):
            line["class_accuracy"] = accuracies
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = judged(tmp_path, "Accuracy by class is steady")
    assert (found.verdict, found.ours) == (HOLDS, "cifar10-iid fedavg: cosine 1.000, LDA 0.354")


def logged(folder: Path, row: str, column: str = "cifar10-s2", **entries: object) -> Path:
    """A run of Table 1 whose log has these entries after each of three rounds."""
    place = made(folder, cell(TABLE, column, row), 0, 50.0, rounds=3)
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    lines = [lines[0], *(line | entries for line in lines[1:])]
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


@pytest.mark.slow
def test_accuracy_goes_with_forgetting_over_methods(tmp_path: Path) -> None:
    words, rows = "Over methods, accuracy rises", ("fedavg", "fedprox", "fedcurv", "moon", "fedntd")
    for name, sign, expected in (("falls", -1, HOLDS), ("rises", 1, FAILS)):
        for i, row in enumerate(rows):
            assert i > 3 or judged(tmp_path / name, words).verdict == NOT_RUN  # it needs four
            forgetting = 0.5 + sign * (i + (i == 2) / 5) / 20
            made(tmp_path / name, cell(TABLE, "cifar10-s2", row), 0, 40.0 + i, rounds=40, forgetting=forgetting)
        found = judged(tmp_path / name, words)
        assert (found.verdict, found.judged_parts) == (expected, "1 of 14")
    assert "cifar10-s2 5 methods, correlation -1.00" in judged(tmp_path / "falls", words).ours
    for i, row in enumerate(rows):
        made(tmp_path / "open", cell(TABLE, "cifar10-s2", row), 0, 40.0 + i, forgetting=0.5 - (i % 3) / 20)
    assert judged(tmp_path / "open", words).verdict == NOISE
    for i, row in enumerate(rows[:4]):
        epochs = {"local__epochs": 1} if row == "moon" else {}
        made(tmp_path / "other", cell(TABLE, "cifar10-s2", row), 0, 40.0 + i, forgetting=0.5 - i / 20, **epochs)
    found = judged(tmp_path / "other", words)
    assert (found.verdict, "not comparable" in found.ours) == (NOT_RUN, True)


@pytest.mark.slow
def test_classes_are_even_where_their_shares_are_near(tmp_path: Path) -> None:
    words = "Classes become even earlier"
    logged(tmp_path, "fedavg", class_accuracy=[0.2, 0.4])  # shares of a third and two thirds
    assert judged(tmp_path, words).verdict == NOT_RUN
    for name, accuracies, expected in (("even", [0.1, 0.12], HOLDS), ("uneven", [0.9, 0.3], FAILS)):
        logged(tmp_path / name, "fedavg", class_accuracy=[0.2, 0.4])
        logged(tmp_path / name, "fedntd", class_accuracy=accuracies)
        assert judged(tmp_path / name, words).verdict == expected
    assert "deviation over classes 0.045, 0.167" in judged(tmp_path / "even", words).ours
    logged(tmp_path / "none", "fedavg", class_accuracy=[0.0, 0.0])
    logged(tmp_path / "none", "fedntd", class_accuracy=[0.2, 0.4])
    assert judged(tmp_path / "none", words).verdict == NOT_RUN


def test_traffic_and_states_of_the_others(tmp_path: Path) -> None:
    words = "MOON sends no byte more"
    found = judged(tmp_path, words)
    assert (found.verdict, found.judged_parts) == (HOLDS, "1 of 29")
    assert "clients of moon, scaffold keep a state, of fedavg, fedntd, moon, scaffold" in found.ours
    for row, sent in (("fedavg", 10), ("moon", 10), ("scaffold", 20)):
        logged(tmp_path, row, bytes_down=sent, bytes_up=sent)
    assert (judged(tmp_path, words).verdict, judged(tmp_path, words).judged_parts) == (HOLDS, "3 of 29")
    assert "scaffold and fedavg: 2 times the bytes" in judged(tmp_path, words).ours
    logged(tmp_path / "level", "fedavg", bytes_down=10, bytes_up=10)
    logged(tmp_path / "level", "scaffold", bytes_down=10, bytes_up=10)
    assert judged(tmp_path / "level", words).verdict == FAILS


@pytest.mark.slow
def test_weights_move_with_the_distance_of_classes(tmp_path: Path) -> None:
    words = "Weights move further where"
    head = "round,client,distribution_l1,distribution_l2,weights_l1,weights_l2\n"
    place = made(tmp_path, cell(TABLE, "cifar10-s2", "fedntd"), 0, 50.0)
    assert judged(tmp_path, words).verdict == NOT_RUN
    for moved, expected in (((1, 2, 3), HOLDS), ((1, 4, 1), FAILS), ((3, 2, 1), FAILS)):
        lines = [f"200,{k},1,{0.1 * k},1,{w}\n" for k, w in enumerate(moved)]
        evidence(place, "weight-divergence", head + "".join(lines))
        found = judged(tmp_path, words)
        assert (found.verdict, found.judged_parts) == (expected, "1 of 2")
    assert found.ours.endswith("correlation -1.00 of 3 local models")


@pytest.mark.slow
def test_local_models_of_others_are_compared_with_those_of_fedntd(tmp_path: Path) -> None:
    head = "round,client,test_after\n"
    for table, row, value in (
        (TABLE, "fedntd", 0.8), (TABLE, "scaffold", 0.7), ("fedntd-table12", "kd_ntd-1", 0.6),
        ("fedntd-table12", "kd_ntd-0", 0.65),
    ):  # fmt: skip
        place = made(tmp_path, cell(table, "cifar10-s2", row), 0, 50.0)
        evidence(place, "personalised", head + f"200,0,{value}\n")
    assert judged(tmp_path, "Local models of SCAFFOLD").verdict == HOLDS
    assert judged(tmp_path, "Local models of distillation over all classes").verdict == FAILS


def test_section_2_trains_at_a_constant_rate() -> None:
    found = {r.column: r.experiment for r in recipes("fedntd-section2")}
    skews = ("iid", "lda0.5", "lda0.3", "lda0.1", "lda0.05")
    assert list(found) == [f"{data}-{skew}" for data in ("cifar10", "cifar100") for skew in skews]
    table_1 = cell(TABLE, "cifar10-lda0.1", "fedavg").experiment
    assert found["cifar10-lda0.1"] == table_1.changed("local.decay", "1.0")
    assert found["cifar10-lda0.1"].local.rate(199) == 0.01
    assert found["cifar10-iid"] == found["cifar10-lda0.1"].changed("data.partition", "iid")
    assert found["cifar100-lda0.3"].data.partition == "dirichlet:0.3"


def test_propositions_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proposition_1.holds() == (
        True, "4 families of clients: diversity is within 1e-9 of the closed form, which falls as fast as claimed",
    )  # fmt: skip
    assert proposition_2.holds()[0]
    assert proposition_3.holds_as_printed() == (
        False,
        "classes with optima 0, 0, 1 and clients of one class each: 0.444 for uniform classes, 0.333 for "
        "p = (1/2, 1/2, 0)",
    )
    assert proposition_3.holds_equidistant()[0]
    monkeypatch.setattr(proposition_1.ClosedForm, "slope", lambda self, betas: -self.M / (2 + np.asarray(betas)) ** 2)
    assert proposition_1.holds()[1].endswith("NOT as fast as claimed")
    monkeypatch.undo()
    right = proposition_2.kl_parts
    monkeypatch.setattr(
        proposition_2, "kl_parts", lambda *asked: dataclasses.replace(right(*asked), true=right(*asked).true + 1e-6)
    )
    assert not proposition_2.holds()[0]
    monkeypatch.setattr(proposition_3, "expected_distance", lambda share, *rest: float(np.max(share)) * -1)
    assert not proposition_3.holds_equidistant()[0]
