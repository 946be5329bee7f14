"""Which orders a faithful DENSE must show, and what runs of the recipes say of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedloom.papers import recipes
from fedloom.papers.reproduction.claims import Claim, above, claims_page, sentences
from fedloom.papers.reproduction.results import Result, read

DISTILLED = ("feddf", "fed_dafl", "fed_adi", "dense")
STEEP = ("cifar10", "cifar100", "svhn", "tiny")  # where FedAvg is far below at every alpha


CLAIMED = ("dense-table1", "dense-clients", "dense-ablation")


def required(folders: Sequence[Path], rounds: int | None = None) -> list[Claim]:
    """Return a verdict on every order that is required, from the runs below some folders.

    Not required, since independent re-runs contradict it: DENSE above FedDF, and FedDF below Fed-DAFL below Fed-ADI.

    Args:
        folders: of results, as `fedloom reproduce --out` names them.
        rounds: take numbers after at most so many.
    """
    return _judged([r for table in CLAIMED for r in read(recipes(table), folders, rounds)])


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the required orders came out in the results of one column, in sentences; nothing of what was not run."""
    return [f"Required: {sentence}" for sentence in sentences(_judged(results))]


def page(folders: Sequence[Path], rounds: int | None = None) -> str:
    """Return the orders as Markdown, with what was run."""
    return claims_page("Orders that DENSE must show", required(folders, rounds))


Key = tuple[str, str, str]  # table, column, row


def _judged(results: Sequence[Result]) -> list[Claim]:
    found = {(r.recipe.table, r.recipe.column, r.recipe.row): r for r in results}
    out = []
    for text, high, low in _claims(list(found)):
        if high in found and low in found:
            columns = ("", "") if high[1] == low[1] else (f" at {high[1]}", f" at {low[1]}")
            out.append(above(text, " ".join(high[:2]), found[high], found[low], *columns))
    return out


def _claims(keys: Sequence[Key]) -> Iterator[tuple[str, Key, Key]]:
    for table, column in dict.fromkeys((table, column) for table, column, _ in keys if table in CLAIMED):
        data, alpha, rest = column.split("-", 2)
        if table == "dense-table1":
            if data in STEEP or alpha == "a0.1":
                for row in DISTILLED:
                    yield "FedAvg is below every method that distils", (table, column, row), (table, column, "fedavg")
            for row in DISTILLED:
                yield "The ensemble is above every student", (table, column, "ensemble"), (table, column, row)
            after = {"a0.1": "a0.3", "a0.3": "a0.5"}.get(alpha)
            if after is not None:
                more = f"{data}-{after}-{rest}"
                yield "DENSE rises with alpha", (table, more, "dense"), (table, column, "dense")
        elif table == "dense-clients":
            yield "DENSE is above FedAvg at 5 to 50 clients", (table, column, "dense"), (table, column, "fedavg")
        else:
            yield "DENSE is above CE alone", (table, column, "dense"), (table, column, "dense-ce_only")
