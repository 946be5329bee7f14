"""The page of claims, of verdicts that are made up."""

from __future__ import annotations

import json
import re

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


def test_the_page_begins_with_a_matrix_of_papers_and_verdicts() -> None:
    lines = as_markdown({"fedntd": JUDGED}, {"fedntd": title("fedntd")}, [], RATES).splitlines()
    of_paper = [line.partition(" | ")[2] for line in lines if line.startswith("| [FedNTD](#fedntd-lee-")]
    assert of_paper == ["1 | 1 | 0 | 1 | 0 | 1 |", "3 | 0 | 1 | 0 | 4 | 4 of 8 |"]
    heads = [line for line in lines if line.startswith(("| claims |", "| comparisons |"))]
    assert heads[0] == "| claims | holds | holds so far | within noise | fails | short run | not run |"
    assert lines.index(heads[0]) < 12 < lines.index(heads[1])
    assert "| all | 3 | 0 | 1 | 0 | 4 | 4 of 8 |" in lines


def test_a_claim_has_its_verdict_first_its_evidence_folded_and_stands_at_the_end_if_it_was_not_run() -> None:
    text = as_markdown({"fedntd": JUDGED}, {"fedntd": title("fedntd")}, [], RATES)
    claims, _, rest = text.partition("\n## Not run\n")
    assert re.findall("<summary><b(.*)</summary>", claims) == [
        ' class="chip holds">holds</b> All were run (Table 1)',
        ' class="chip fails">fails, 1 of 2</b> Half were run (Table 1)',
        ' class="chip holds so-far">holds so far, 1 of 3</b> Few were run (Table 1)',
    ]
    assert claims.count("<details markdown>") == claims.count("</details>") == 4  # and that of the rule
    assert claims.count("| holds | 1 against 2 | - |") == 2  # a claim of one comparison needs no table
    assert rest == f"\n**{title('fedntd')}**\n\n- None was run (Table 1).\n"
    assert f"\n{note('fedntd')}".strip() in text.splitlines() or not note("fedntd")


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
