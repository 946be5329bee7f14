"""The tables of docs/shakespeare.md are what was measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path

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
    assert {row["method"] for row in rows} == {"fedavg", "scaffold", "pfedsd", "local_only", "fedadam"}


def test_what_the_page_says_of_the_most_frequent_character_follows_from_the_numbers() -> None:
    text = (DOCS / "shakespeare.md").read_text(encoding="utf-8")
    found = re.search(r"is (\d+\.\d) % of what is tested", text)
    assert found is not None
    rows = kept("shakespeare.csv")
    best = {f"{row['network']} {row['method']}": float(row["personal_token_accuracy"]) for row in rows}
    above = {name for name, share in best.items() if 100 * share - float(found[1]) >= 10}
    assert above == {"lstm fedavg", "lstm scaffold", "lstm pfedsd", "transformer fedavg"}


def test_the_page_has_the_numbers_of_adapters_that_are_kept() -> None:
    assert printed("| trained | parameters |") == [
        [
            *(row["trained"], f"{int(row['parameters']):,}", f"{int(row['bytes_up']):,}"),
            *(percent(row["before"]), percent(row["after"])),
        ]
        for row in kept("shakespeare_adapters.csv")
    ]
