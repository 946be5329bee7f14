"""A claim that one cell is above another is one that the printed numbers make."""

from __future__ import annotations

import pytest

from fedloom_papers import claims, recipes
from fedloom_papers.reproduction.claims import Cell

OTHERWISE = {  # printed against their own claim
    "dense": {("svhn-a0.5-m5-cnn", "fedavg"), ("svhn-a0.5-m5-resnet18", "fedavg")},
}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "known"), [("fedntd", 180), ("dense", 60)])
def test_orders_that_are_claimed_are_those_of_print(source: str, known: int) -> None:
    parts = [part for claim in claims(source) for part in claim.parts if part.kind.endswith("table_noise.numbers")]
    tables = {cell.table for part in parts for cell in part.cells}
    printed = {(r.table, r.column, r.row): r for table in tables for r in recipes(table)}

    def number(cell: Cell) -> float | None:
        recipe = printed[cell.key]
        return recipe.forgetting if cell.measure == "forgetting" else recipe.accuracy

    count, wrong = 0, set()
    for part in parts:
        high, low = map(number, part.cells[:2])
        if high is not None and low is not None:
            count += 1
            wrong |= {part.cells[0].key[1:]} if high < low else set()
    assert wrong == OTHERWISE.get(source, set())
    assert count >= known
