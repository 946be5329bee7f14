"""The table of docs/sixteen.md is what was measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_has_the_numbers_that_are_kept() -> None:
    text = (DOCS / "sixteen.md").read_text(encoding="utf-8")
    printed = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    with (DOCS / "results/sixteen.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    shares = ("global_accuracy", "personal_accuracy", "personal_worst_tenth", "forgetting")

    def shown(row: dict[str, str]) -> list[str]:
        percent = [f"{100 * float(row[name]):.1f}" if row[name] else "-" for name in shares]
        return [f"`{row['method']}`", *percent, f"{float(row['mb_a_round']):.2f}" if row["mb_a_round"] else "-"]

    assert printed == [shown(row) for row in kept]
    assert len(printed) == 17
    fedavg, ditto = (next(row for row in kept if row["method"] == name) for name in ("fedavg", "ditto"))
    assert fedavg["global_accuracy"] == ditto["global_accuracy"]
    assert re.search(r"above FedAvg's by 6 and 4 points; SCAFFOLD's is 6 below", text)
