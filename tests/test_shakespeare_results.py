"""The tables of docs/shakespeare.md are what was measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import mean

RUN = [
    *[("lstm", method) for method in ("fedavg", "scaffold", "pfedsd", "local_only")],
    *[("transformer", method) for method in ("fedavg", "fedadam")],
]
DOCS = Path(__file__).parents[1] / "docs"


def kept(name: str) -> list[dict[str, str]]:
    with (DOCS / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def printed(head: str) -> list[list[str]]:
    """The rows of the table of the page that begins with these columns."""
    table = (DOCS / "shakespeare.md").read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def percent(text: str) -> str:
    return f"{100 * float(text):.1f}" if text else "-"


def test_the_page_has_the_numbers_of_shakespeare_that_are_kept() -> None:
    rows = kept("shakespeare.csv")
    assert printed("| network | method | seed |") == [
        [
            *(f"`{row['network']}`", f"`{row['method']}`", row["seed"], row["rounds"]),
            *(percent(row["global_token_accuracy"]), percent(row["personal_token_accuracy"])),
            *(f"{float(row['perplexity']):.1f}", f"{float(row['mb_a_round']):.2f}"),
        ]
        for row in rows
    ]
    seeds = {key: [r["seed"] for r in rows if (r["network"], r["method"]) == key] for key in RUN}
    assert seeds == {key: ["0", "1"] for key in RUN}


def test_what_the_page_says_of_the_most_frequent_character_follows_from_the_numbers() -> None:
    text = (DOCS / "shakespeare.md").read_text(encoding="utf-8")
    found = re.search(r"is (\d+\.\d) % of what is tested", text)
    assert found is not None
    rows = kept("shakespeare.csv")
    assert "Everything is at least 11 points above" in text
    assert all(100 * float(row["personal_token_accuracy"]) - float(found[1]) >= 11 for row in rows)


def test_the_page_has_the_numbers_of_adapters_that_are_kept() -> None:
    rows = kept("shakespeare_adapters.csv")
    by_name = {row["trained"]: [r for r in rows if r["trained"] == row["trained"]] for row in rows}
    assert [[r["seed"] for r in same] for same in by_name.values()] == [["0", "1"]] * 3
    assert printed("| trained | parameters |") == [
        [
            *(name, f"{int(same[0]['parameters']):,}", f"{int(same[0]['bytes_up']):,}"),
            *(f"{100 * mean(float(r[when]) for r in same):.1f}" for when in ("before", "after")),
        ]
        for name, same in by_name.items()
    ]
