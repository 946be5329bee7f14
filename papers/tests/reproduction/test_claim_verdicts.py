"""Verdicts on claims, from runs made by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedloom.coordinator import run_documents as reading
from fedloom.evaluate.paired_differences import Noise
from fedloom.storage import files
from fedloom_papers import STUDIES, claims, recipes, reduced, tables, title
from fedloom_papers.reproduction.claim_parts import (
    above,
    computed,
    diverges,
    early,
    gain,
    judged,
    jumps,
    larger_gain,
    level,
    number,
    observed,
    order,
    same_traffic,
    whole,
)
from fedloom_papers.reproduction.claim_verdicts import ClaimVerdict, comparisons, sentences, verdicts
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, SHORT, VERDICTS, Cell, Claim, Part
from fedloom_papers.reproduction.results import FAILED, Run
from published_runs import cell, made, result

TABLE, COLUMN = "fedntd-table1", "cifar10-s2"
NTD, AVG, PROX = (Cell(TABLE, COLUMN, row) for row in ("fedntd", "fedavg", "fedprox"))


def of(folder: Path, *parts: Part, why: str = "", lacks: str = "") -> ClaimVerdict:
    claim = Claim(where="Table 1", text="A claim", parts=parts, why=why, lacks=lacks)
    (found,) = verdicts("fedntd", [folder], declared=[claim])
    return found


def run(folder: Path, c: Cell, seed: int, accuracy: float, rounds: int = 200, **more: object) -> Path:
    return made(folder, cell(c.table, c.column, c.row), seed, accuracy, rounds, **more)  # type: ignore[arg-type]


def curve(place: Path, values: list[float], name: str = "global_accuracy") -> None:
    """Overwrite a log by these values after the rounds 0, 1, 2, ..."""
    lines = [json.dumps({"round": t, name: value}) + "\n" for t, value in enumerate(values)]
    (place / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("source", STUDIES)
def test_claims_name_recipes_that_exist_and_say_why_they_cannot_be_judged(source: str) -> None:
    declared = claims(source)
    assert len(declared) > 10
    assert title(source)
    assert set(reduced(source)) <= set(tables())
    known = {(r.table, r.column, r.row) for table in tables() for r in recipes(table)}
    for claim in declared:
        assert {c.key for part in claim.parts for c in part.cells} <= known, claim.text
        assert claim.parts or claim.lacks, claim.text
        assert not any(text.endswith(".") for text in (claim.text, claim.where, claim.published)), claim.text
        assert all(text.endswith(".") for text in (claim.why, claim.lacks) if text), claim.text
    assert len({(c.where, c.text) for c in declared}) == len(declared)


@pytest.mark.parametrize(
    ("gaps", "noise", "stds", "verdict"),
    [
        ([5.0, 5.2], None, (None, None), HOLDS),  # 5.1 +- 1.3
        ([-5.0, -5.2], None, (None, None), FAILS),
        ([5.0, -1.0], None, (None, None), NOISE),
        ([5.0, 6.0], None, (None, None), NOISE),  # 5.5 +- 6.4: twice the standard error would be 1
        ([0.3, 0.3], None, (None, None), NOISE),  # nothing tells how they vary
        ([5.0, 5.2], Noise(3.0, 9), (None, None), HOLDS),  # the deviation of the table: 4.8
        ([4.6, 4.8], Noise(3.0, 9), (None, None), NOISE),
        ([0.0, 10.0], Noise(1.0, 50), (None, None), NOISE),  # that of the pair is larger
        ([2.3], Noise(1.0, 9), (5.0, 5.0), HOLDS),  # one seed: that of the table, 2.26
        ([2.2], Noise(1.0, 9), (0.1, 0.1), NOISE),
        ([2.8], None, (None, None), NOISE),  # and where there is none, 2 sqrt(2)
        ([2.9], None, (None, None), HOLDS),
        ([2.9], None, (2.0, 2.0), NOISE),  # the printed deviations
        ([0.6], None, (0.1, 0.2), HOLDS),
    ],
)
def test_the_rule_of_noise(
    gaps: list[float], noise: Noise | None, stds: tuple[float | None, ...], verdict: str
) -> None:
    assert order(judged(gaps, noise, stds)) == verdict


def test_an_order_holds_fails_or_is_within_noise(tmp_path: Path) -> None:
    for seed, (ntd, avg, prox) in enumerate([(60.0, 50.0, 60.1), (61.0, 51.0, 60.9)]):
        for c, accuracy in ((NTD, ntd), (AVG, avg), (PROX, prox)):
            run(tmp_path, c, seed, accuracy)
    found = of(tmp_path, above(NTD, AVG), above(AVG, NTD), above(NTD, PROX))
    assert [f.verdict for f in found.findings] == [HOLDS, FAILS, NOISE]
    assert found.findings[0].ours == "cifar10-s2 fedntd 60.50, fedavg 50.50"
    assert found.findings[0].published == "52.61, 40.14"
    assert (found.verdict, found.seeds, found.length, found.tables) == (FAILS, "2", "full", [TABLE])
    assert found.ours.startswith("1 holds, 1 within noise, 1 fails; cifar10-s2 fedavg 50.50, fedntd 60.50; ")


@pytest.mark.slow
def test_a_claim_is_as_good_as_its_worst_part(tmp_path: Path) -> None:
    for seed in (0, 1):
        for c, accuracy in ((NTD, 60.0 + seed / 10), (AVG, 50.0 + seed / 5), (PROX, 60.1 + seed / 10)):
            run(tmp_path, c, seed, accuracy)
    assert of(tmp_path, above(NTD, AVG)).verdict == HOLDS
    assert of(tmp_path, above(NTD, AVG), above(PROX, NTD)).verdict == NOISE
    assert of(tmp_path, above(NTD, AVG), above(PROX, NTD), above(AVG, NTD)).verdict == FAILS
    moon = Cell(TABLE, COLUMN, "moon")
    some = of(tmp_path, above(NTD, AVG), above(NTD, moon))
    assert some.judged_parts == "1 of 2"
    assert (some.verdict, some.said) == (HOLDS, "holds, 1 of 2")
    assert some.ours == "1 holds; cifar10-s2 fedntd 60.05, fedavg 50.10"
    few = of(tmp_path, above(NTD, AVG), above(NTD, moon), above(PROX, moon))
    assert (few.verdict, few.said, few.so_far) == (HOLDS, "holds so far, 1 of 3", True)
    assert of(tmp_path, above(AVG, NTD), above(NTD, moon), above(PROX, moon)).said == "fails so far, 1 of 3"


def test_what_has_no_runs_is_not_run(tmp_path: Path) -> None:
    run(tmp_path, NTD, 0, 60.0)
    found = of(tmp_path, above(NTD, AVG), gain(NTD, AVG, 1.0), level(NTD, AVG), diverges(AVG), lacks="No run.")
    assert {f.verdict for f in found.findings} == {NOT_RUN}
    row = found.row()
    assert (row["verdict"], row["ours"], row["length"], row["seeds"], row["why"]) == (NOT_RUN, "", "", "", "No run.")
    assert of(tmp_path).verdict == NOT_RUN


def test_runs_of_other_settings_are_no_comparison_and_of_like_ones_name_them(tmp_path: Path) -> None:
    run(tmp_path, NTD, 0, 60.0, local__epochs=1)
    run(tmp_path, AVG, 0, 50.0)
    (finding,) = (found := of(tmp_path, above(NTD, AVG))).findings
    assert (found.verdict, finding.ours) == (
        NOT_RUN,
        "cifar10-s2 fedntd and fedavg not comparable (other settings or no common seed)",
    )
    run(tmp_path / "alike", NTD, 0, 60.0, local__epochs=1)
    run(tmp_path / "alike", AVG, 0, 50.0, local__epochs=1)
    found = of(tmp_path / "alike", above(NTD, AVG))
    assert (found.verdict, found.length) == (HOLDS, "local.epochs 1")


def test_runs_of_unequal_length_are_compared_where_both_are(tmp_path: Path) -> None:
    """FedNTD falls to nothing after round 40, where FedProx ends."""
    place = run(tmp_path, NTD, 0, 60.0)
    curve(place, [0.1] + [0.6] * 40 + [0.01] * 160)
    run(tmp_path, PROX, 0, 50.0, rounds=40)
    run(tmp_path, AVG, 0, 50.0)
    found = of(tmp_path, above(NTD, PROX))
    assert (found.verdict, found.length) == (HOLDS, "40 of 200 rounds")
    assert of(tmp_path, above(NTD, AVG)).verdict == FAILS
    both = of(tmp_path, above(NTD, PROX), above(NTD, AVG))
    assert both.length == "40 of 200 rounds; full"


def test_a_gain_may_be_larger_than_printed_and_not_much_smaller(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path, NTD, seed, 60.0 + seed / 5)
        run(tmp_path, AVG, seed, 50.0 + seed / 10)
    for printed, verdict in ((5.0, HOLDS), (12.0, HOLDS), (14.0, FAILS)):
        (finding,) = of(tmp_path, gain(NTD, AVG, printed)).findings
        assert (finding.verdict, finding.ours) == (verdict, "cifar10-s2 +10.05")
        assert finding.published == f"{printed:+.2f} or more"
    assert of(tmp_path, gain(AVG, NTD, -10.0)).verdict == FAILS  # a loss is no gain


def test_a_gain_and_what_names_a_length_are_judged_at_full_length_alone(tmp_path: Path) -> None:
    """In both directions: what would hold and what would fail."""
    parts = [gain(NTD, AVG, 5.0), gain(AVG, NTD, 5.0), *(whole(above(*pair)) for pair in ((NTD, AVG), (AVG, NTD)))]
    for name, rounds, more in (("rounds", 40, {}), ("settings", 200, {"local__epochs": 1}), ("full", 200, {})):
        run(tmp_path / name, NTD, 0, 60.0, rounds, **more)
        run(tmp_path / name, AVG, 0, 50.0, rounds, **more)
        found = of(tmp_path / name, *parts, lacks="Too short.")
        expected = [HOLDS, FAILS, HOLDS, FAILS] if name == "full" else [SHORT] * 4
        assert [f.verdict for f in found.findings] == expected, name
        assert (found.verdict, found.said) == ((FAILS, "fails") if name == "full" else (SHORT, "short run"))
        assert found.row()["why"] == "" if name == "full" else "Too short."
    assert of(tmp_path / "rounds", gain(NTD, AVG, 5.0)).ours == "cifar10-s2 +10.00"
    assert of(tmp_path / "rounds", gain(NTD, AVG, 5.0)).length == "40 of 200 rounds"


def test_a_claim_over_a_variable_needs_two_of_its_values(tmp_path: Path) -> None:
    table = "fedntd-table8"

    def parts(*epochs: int) -> list[Part]:
        cells = [[Cell(table, f"cifar10-s2-e{e}", row) for row in ("fedntd", "fedavg")] for e in epochs]
        return [above(*pair) for pair in cells]

    def judge(claimed: list[Part]) -> ClaimVerdict:
        claim = Claim(where="Table 8", text="A claim", parts=claimed, over=lambda cell: cell.column.rpartition("-")[2])
        (found,) = verdicts("fedntd", [tmp_path], declared=[claim])
        return found

    for e in (1, 5):
        assert judge(parts(1, 5)).verdict == NOT_RUN
        for row, accuracy in (("fedntd", 60.0), ("fedavg", 50.0)):
            run(tmp_path, Cell(table, f"cifar10-s2-e{e}", row), 0, accuracy)
        alone = judge(parts(e, 10, 20))
        assert (alone.verdict, alone.judged) == (NOT_RUN, [])
        assert "one value alone was run" in alone.row()["why"]
    both = judge(parts(1, 5, 10))
    assert (both.verdict, both.said) == (HOLDS, "holds, 2 of 3")
    assert of(tmp_path, *parts(1, 10)).verdict == HOLDS  # of a claim that is over none


def test_a_comparison_counts_once(tmp_path: Path) -> None:
    """Tables 1 and 8 share the runs of five local epochs."""
    run(tmp_path, NTD, 0, 60.0)
    run(tmp_path, AVG, 0, 50.0)
    again = [Cell("fedntd-table8", "cifar10-s2-e5", row) for row in ("fedntd", "fedavg")]
    parts = [above(NTD, AVG), above(*again), above(AVG, NTD), above(NTD, PROX), gain(NTD, AVG, 5.0)]
    claimed = [Claim(where="Table 1", text=f"Claim {i}", parts=[part]) for i, part in enumerate(parts)]
    forgetting = [cell._replace(measure="forgetting") for cell in (AVG, NTD)]
    claimed.append(Claim(where="Table 1", text="Another number", parts=[above(*forgetting)]))
    found = verdicts("fedntd", [tmp_path], declared=claimed)
    assert [one.verdict for one in found] == [HOLDS, HOLDS, FAILS, NOT_RUN, HOLDS, NOISE]
    assert comparisons(found) == {HOLDS: 2, FAILS: 1, NOISE: 1, NOT_RUN: 1}


@pytest.mark.slow
def test_noise_is_pooled_over_the_cells_of_the_column_or_else_of_the_table(tmp_path: Path) -> None:
    """Of one seed alone: by that of other cells with two, whatever tables share them."""
    moon, scaffold = Cell(TABLE, COLUMN, "moon"), Cell(TABLE, COLUMN, "scaffold")
    run(tmp_path, NTD, 0, 60.0)
    run(tmp_path, AVG, 0, 56.0)
    assert of(tmp_path, above(NTD, AVG)).verdict == HOLDS  # by the printed deviations
    for seed in (0, 1):  # in another column
        for row, accuracy in (("moon", 50.0), ("fedprox", 50.0 + 8 * seed)):
            run(tmp_path, Cell(TABLE, "cifar10-s5", row), seed, accuracy)
    # 0 and -8: a deviation of 5.7 with one degree of freedom, so 72 for one seed.
    again = [Cell("fedntd-table8", "cifar10-s2-e5", row) for row in ("fedntd", "fedavg")]
    for pair in ((NTD, AVG), again):
        assert of(tmp_path, above(*pair)).verdict == NOISE
    for seed in (0, 1):  # of other settings, these are compared with their like alone
        for i, c in enumerate((PROX, moon, scaffold)):
            run(tmp_path, c, seed, 50.0 + 20 * seed * i, local__epochs=1 + (c == PROX))
    assert of(tmp_path, above(NTD, AVG)).verdict == NOISE  # 14 with one degree of freedom
    for seed in (0, 1):  # in its own column, with those settings: of 7 with four degrees of freedom, so 20
        for i, row in enumerate(("fedcurv", "fednova-released", "fednova", "fedprox-config")):
            run(tmp_path, Cell(TABLE, COLUMN, row), seed, 50.0 + seed * i / 10)
    assert of(tmp_path, above(NTD, AVG)).verdict == NOISE
    for place in (tmp_path / TABLE / COLUMN).glob("[ms][oc]*"):
        shutil.rmtree(place)
    for pair in ((NTD, AVG), again):
        assert of(tmp_path, above(*pair)).verdict == HOLDS  # now 0.13 with three degrees of freedom, so 0.4
    for seed in (0, 1):  # seeds differ otherwise with other settings, which is no noise
        for i, c in enumerate((moon, scaffold)):
            run(tmp_path, c, seed, 50.0 + 20 * seed + seed * i / 10, local__epochs=3)
    assert of(tmp_path, above(NTD, AVG)).verdict == HOLDS


def test_noise_between_columns_is_that_of_rows(tmp_path: Path) -> None:
    """Seeds draw other examples in another column, which all methods of a column share."""
    epochs = [Cell("fedntd-table8", f"cifar10-s2-e{e}", row) for row in ("fedntd", "fedavg") for e in (10, 1)]
    for cell_, (zero, one) in zip(epochs, ((50.0, 56.0), (48.0, 48.0), (40.0, 46.1), (38.0, 38.0)), strict=True):
        run(tmp_path, cell_, 0, zero)
        run(tmp_path, cell_, 1, one)
    assert of(tmp_path, above(epochs[0], epochs[2])).verdict == HOLDS  # by column seeds agree
    assert of(tmp_path, above(epochs[0], epochs[1])).verdict == NOISE  # 2 and 8
    alone = [cell_._replace(row="fedprox") for cell_ in epochs[:2]]
    for cell_, accuracy in zip(alone, (55.0, 45.0), strict=True):
        run(tmp_path, cell_, 0, accuracy)
    assert of(tmp_path, above(*alone)).verdict == NOISE  # one seed, 10 of 18


def test_a_gain_may_be_larger_in_another_place(tmp_path: Path) -> None:
    few, many = ([Cell("fedntd-table8", f"cifar10-s2-e{e}", row) for row in ("fedntd", "fedavg")] for e in (1, 10))
    part = larger_gain((many[0], many[1]), (few[0], few[1]), "{:+.2f} and {:+.2f}")
    for cell_, accuracy in zip((*few, *many), (50.0, 48.0, 63.0, 48.0), strict=True):
        run(tmp_path, cell_, 0, accuracy)
    found = of(tmp_path, part)
    assert (found.verdict, found.ours) == (HOLDS, "+15.00 and +2.00")
    assert of(tmp_path, larger_gain((few[0], few[1]), (many[0], many[1]), "{}{}")).verdict == FAILS
    for seed, accuracy in ((0, 50.0), (1, 51.2)):  # noise: 0.85 of a difference, 1.2 of a difference of two
        run(tmp_path, Cell("fedntd-table8", "cifar10-s2-e20", "fedavg"), seed, accuracy)
        run(tmp_path, Cell("fedntd-table8", "cifar10-s2-e20", "fedntd"), seed, 50.0)
    assert of(tmp_path, part).verdict == NOISE  # 13 of 15.2
    assert of(tmp_path, above(many[0], many[1])).verdict == HOLDS  # 15 of 10.8


def test_a_number_is_judged_at_its_full_length_alone(tmp_path: Path) -> None:
    run(tmp_path, NTD, 0, 53.0)
    run(tmp_path, AVG, 0, 60.0)
    run(tmp_path, PROX, 0, 41.48, rounds=40)
    found = of(tmp_path, number(NTD), number(AVG), number(PROX))
    assert [f.verdict for f in found.findings] == [HOLDS, FAILS, SHORT]
    assert found.findings[1].ours == "cifar10-s2 fedavg 60.00 for 40.14"


def test_methods_may_be_level(tmp_path: Path) -> None:
    for c, accuracy in ((NTD, 60.0), (AVG, 60.9), (PROX, 75.0)):
        for seed in (0, 1):
            run(tmp_path, c, seed, accuracy + seed * (c == PROX) / 10)
    found = of(tmp_path, level(NTD, AVG), level(NTD, PROX), level(PROX, NTD))
    assert [f.verdict for f in found.findings] == [HOLDS, FAILS, FAILS]
    assert of(tmp_path, level(NTD, PROX, 16.0)).verdict == HOLDS
    found = of(tmp_path, level(PROX, NTD, below_alone=True), level(NTD, PROX, below_alone=True))
    assert [f.verdict for f in found.findings] == [HOLDS, FAILS]


def test_methods_that_noise_alone_makes_level_are_within_noise(tmp_path: Path) -> None:
    """Runs that tell nothing are no evidence that two methods hardly differ."""
    for seed, accuracy in ((0, 57.0), (1, 65.0)):
        run(tmp_path, NTD, seed, 60.0)
        run(tmp_path, AVG, seed, accuracy + 1)
    assert of(tmp_path, level(NTD, AVG)).verdict == NOISE  # 2 apart, +- 51
    assert of(tmp_path, level(NTD, AVG, 2.0)).verdict == HOLDS


def test_divergence_is_of_runs_that_failed(tmp_path: Path) -> None:
    place = run(tmp_path, AVG, 0, 10.0, rounds=3)
    assert of(tmp_path, diverges(AVG)).verdict == NOT_RUN  # it may still
    files.write(place, FAILED, reading.sealed({"why": "a loss is not finite"}))
    assert of(tmp_path, diverges(AVG)).verdict == HOLDS
    run(tmp_path, AVG, 1, 50.0)
    assert of(tmp_path, diverges(AVG)).verdict == NOISE
    run(tmp_path, NTD, 0, 50.0)
    assert of(tmp_path, diverges(NTD)).verdict == FAILS
    (finding,) = of(tmp_path / "none", above(NTD, AVG)).findings
    assert finding.ours == ""


def test_a_method_that_failed_is_named_where_it_cannot_be_compared(tmp_path: Path) -> None:
    files.write(run(tmp_path, AVG, 0, 10.0, rounds=3), FAILED, reading.sealed({"why": "a loss is not finite"}))
    run(tmp_path, NTD, 0, 50.0)
    found = of(tmp_path, above(NTD, AVG))
    assert (found.verdict, found.ours) == (NOT_RUN, "cifar10-s2: fedavg failed in every seed")


def test_what_is_so_of_some_seeds_is_within_noise(tmp_path: Path) -> None:
    def even(one: Run, rounds: int) -> tuple[bool, str] | None:
        return None if one.seed == 4 else (one.seed % 2 == 0, f"{rounds} rounds")

    for seed, verdict in ((4, NOT_RUN), (0, HOLDS), (1, NOISE)):
        run(tmp_path, NTD, seed, 50.0)
        assert of(tmp_path, observed([NTD], even)).verdict == verdict
    found = of(tmp_path, observed([NTD], even))
    assert (found.seeds, found.ours) == ("2", "cifar10-s2 fedntd: 200 rounds")
    assert of(tmp_path, observed([NTD], lambda one, rounds: (False, f"{one.seed}"))).ours == (
        "cifar10-s2 fedntd: seed 0: 0, seed 1: 1, seed 4: 4"
    )


def test_observations_over_runs_whose_settings_differ_are_none(tmp_path: Path) -> None:
    part = observed([NTD, AVG], lambda one, other, rounds: (True, "so"))
    run(tmp_path, NTD, 0, 50.0)
    run(tmp_path, AVG, 0, 50.0, local__epochs=1)
    found = of(tmp_path, part)
    assert (found.verdict, "not comparable (other settings" in found.ours) == (NOT_RUN, True)
    for c in (NTD, AVG):
        run(tmp_path / "alike", c, 0, 50.0, local__epochs=1)
    assert of(tmp_path / "alike", part).verdict == HOLDS


def test_nothing_is_said_of_a_method_of_which_a_run_failed(tmp_path: Path) -> None:
    """The others may be the lucky ones."""
    part = observed([NTD], lambda one, rounds: (True, "so"))
    run(tmp_path, NTD, 0, 50.0)
    assert of(tmp_path, part).verdict == HOLDS
    files.write(run(tmp_path, NTD, 1, 50.0, rounds=3), FAILED, reading.sealed({"why": "a loss is not finite"}))
    found = of(tmp_path, part)
    assert (found.verdict, found.ours) == (NOT_RUN, "cifar10-s2: a run of fedntd failed")


def test_a_number_may_be_found_in_the_runs_of_another_method(tmp_path: Path) -> None:
    part = above(NTD, AVG, instead=PROX._replace(called="fedavg"))
    run(tmp_path, NTD, 0, 50.0)
    run(tmp_path, PROX, 0, 40.0)
    (finding,) = of(tmp_path, part).findings
    assert finding.ours == "cifar10-s2 fedntd 50.00, fedavg 40.00"
    run(tmp_path, AVG, 0, 60.0)
    assert of(tmp_path, part).verdict == FAILS  # its own runs come first


def test_sentences_say_what_the_rows_of_a_table_do_not(tmp_path: Path) -> None:
    run(tmp_path, NTD, 0, 52.0)
    run(tmp_path, AVG, 0, 40.0)
    declared = [
        Claim(where="Table 1", text="Numbers", parts=[number(NTD)]),
        Claim(where="Table 1", text="An order", parts=[above(NTD, AVG), above(NTD, PROX)]),
        Claim(where="a proof", text="A computation", parts=[computed(lambda: (True, "so"))]),
    ]
    there = [result(cell(*c.key), tmp_path) for c in (NTD, AVG)]
    assert sentences(declared, there) == ["An order: holds (cifar10-s2 fedntd 52.00, fedavg 40.00)."]


def test_forgetting_is_another_number_of_the_same_runs(tmp_path: Path) -> None:
    ntd, avg = (c._replace(measure="forgetting") for c in (NTD, AVG))
    for seed in (0, 1):
        run(tmp_path, NTD, seed, 60.0, forgetting=0.3 + seed / 1000)
        run(tmp_path, AVG, seed, 60.0, forgetting=0.5)
    (finding,) = of(tmp_path, above(avg, ntd)).findings
    assert (finding.verdict, finding.ours) == (HOLDS, "cifar10-s2 fedavg 50.00, fedntd 30.05")
    assert finding.published == "59.00, 43.00"


def test_the_best_round_is_another_reading(tmp_path: Path) -> None:
    curve(run(tmp_path, NTD, 0, 0), [0.1, *[0.9] * 199, 0.2])
    curve(run(tmp_path, AVG, 0, 0), [0.1, *[0.5] * 200])
    assert of(tmp_path, above(NTD, AVG)).verdict == FAILS
    assert of(tmp_path, above(NTD._replace(reading="best"), AVG._replace(reading="best"))).verdict == HOLDS


def test_jumps_are_changes_after_the_first_round(tmp_path: Path) -> None:
    curve(run(tmp_path, NTD, 0, 0), [0.1, *[0.5] * 200])
    curve(run(tmp_path, AVG, 0, 0), [0.1, *[0.4, 0.5] * 100])
    (finding,) = of(tmp_path, above(AVG, NTD, jumps, " points a round")).findings
    assert (finding.verdict, finding.ours) == (
        HOLDS, "cifar10-s2 fedavg 10.00 points a round, fedntd 0.00 points a round",
    )  # fmt: skip


def test_early_on_is_the_first_tenth_of_the_published_rounds(tmp_path: Path) -> None:
    curve(run(tmp_path, NTD, 0, 0), [0.9, *[0.5] * 20, *[0.1] * 180])
    curve(run(tmp_path, AVG, 0, 0), [0.1, *[0.4] * 19, 0.6, *[0.9] * 180])
    (finding,) = of(tmp_path, above(NTD, AVG, early, " points early on")).findings
    assert (finding.verdict, finding.ours) == (
        HOLDS, "cifar10-s2 fedntd 50.00 points early on, fedavg 41.00 points early on",
    )  # fmt: skip
    curve(run(tmp_path / "short", NTD, 0, 0, rounds=19), [0.9, *[0.5] * 19])
    curve(run(tmp_path / "short", AVG, 0, 0), [0.1, *[0.4] * 200])
    assert of(tmp_path / "short", above(NTD, AVG, early)).verdict == NOT_RUN


def test_bytes_are_compared_over_the_rounds_of_both(tmp_path: Path) -> None:
    def logged(c: Cell, rounds: int, down: int, up: int) -> None:
        lines = [{"round": t, "global_accuracy": 0.5, "bytes_down": down, "bytes_up": up} for t in range(rounds + 1)]
        place = run(tmp_path, c, 0, 50.0, rounds=rounds)
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    logged(AVG, 40, 100, 100)
    logged(NTD, 200, 100, 100)
    logged(PROX, 40, 150, 100)
    assert of(tmp_path, same_traffic(NTD, AVG)).verdict == HOLDS
    found = of(tmp_path, same_traffic(PROX, AVG))
    assert (found.verdict, found.ours) == (
        FAILS, "cifar10-s2 fedprox and fedavg: 1.5 times the bytes down, 1 times up",
    )  # fmt: skip


def test_a_computation_needs_no_runs(tmp_path: Path) -> None:
    found = of(tmp_path, computed(lambda: (True, "1 = 1")))
    assert (found.verdict, found.ours, found.length, found.seeds) == (HOLDS, "1 = 1", "computed", "")
    assert of(tmp_path, computed(lambda: (False, "1 = 2"))).verdict == FAILS


def test_an_explanation_is_told_where_it_is_needed(tmp_path: Path) -> None:
    true, false = (computed(lambda holds=holds: (holds, "")) for holds in (True, False))
    assert [of(tmp_path, part, why="Because.").row()["why"] for part in (true, false)] == ["", "Because."]
    assert set(VERDICTS) == {HOLDS, NOISE, FAILS, SHORT, NOT_RUN}


@pytest.mark.parametrize("text", ["fednt", "claims"])
def test_an_unknown_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"unknown source '{text}'.*; there are fedntd, "):
        claims(text)
