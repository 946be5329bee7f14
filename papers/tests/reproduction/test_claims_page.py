"""The page of claims, of verdicts that are made up."""

from __future__ import annotations

import json

from fedloom.evaluate.paired_differences import FalseAlarms
from fedloom_papers import note, title
from fedloom_papers.reproduction.claim_verdicts import ClaimVerdict
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOT_RUN, Claim, Finding
from fedloom_papers.reproduction.claims_page import as_markdown, packed, source_record, told

RATES = [FalseAlarms(0.02, 0.1), FalseAlarms(0.07, 0.2)]


def claim(text: str, *verdicts: str) -> ClaimVerdict:
    parts = tuple(Finding(v, "" if v == NOT_RUN else "1 against 2", about=(text, i)) for i, v in enumerate(verdicts))
    return ClaimVerdict("fedntd", Claim(where="Table 1", text=text, parts=()), parts)


JUDGED = [
    claim("All were run", HOLDS, HOLDS),
    claim("Half were run", FAILS, NOT_RUN),
    claim("Few were run", HOLDS, NOT_RUN, NOT_RUN),
    claim("None was run", NOT_RUN),
]


def test_a_verdict_is_bold_where_all_was_run_plain_for_half_and_so_far_for_less() -> None:
    lines = as_markdown({"fedntd": JUDGED}, {"fedntd": title("fedntd")}, [], RATES).splitlines()
    cells = {
        line.split(" | ")[0]: line.split(" | ")[1] for line in lines if line.startswith("| ") and "(Table 1)" in line
    }
    assert cells == {
        "| All were run (Table 1)": "**holds**",
        "| Half were run (Table 1)": "fails, 1 of 2",
        "| Few were run (Table 1)": "*holds so far, 1 of 3*",
        "| None was run (Table 1)": "not run",
    }
    counted = next(line for line in lines if line.startswith("| all |"))
    assert counted == "| all | 3 | 0 | 1 | 0 | 4 | 4 of 8 |"
    assert f"\n{note('fedntd')}".strip() in lines or not note("fedntd")


def test_how_often_the_rule_is_wrong_is_told_in_per_cent() -> None:
    text = told(RATES)
    assert "calls 4.5 % different, 2.0 to 7.0 % by column, and with one seed 15.0 %." in text
    record = json.loads(packed({"fedntd": source_record("A title", JUDGED)}, RATES))
    assert "**" not in record["rule"]
    assert [row["said"] for row in record["sources"]["fedntd"]["claims"]][1:3] == [
        "fails, 1 of 2",
        "holds so far, 1 of 3",
    ]
    assert record["sources"]["fedntd"]["comparisons"] == {HOLDS: 3, FAILS: 1, NOT_RUN: 4}
