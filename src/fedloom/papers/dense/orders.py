"""Which orders a faithful DENSE must show, and what runs of the recipes say of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedloom.papers import recipes
from fedloom.papers.reproduction.results import NOT_COMPARABLE, Result, comparable, read, seeds_against

DISTILLED = ("feddf", "fed_dafl", "fed_adi", "dense")
STEEP = ("cifar10", "cifar100", "svhn", "tiny")  # where FedAvg is far below at every alpha


CLAIMED = ("dense-table1", "dense-clients", "dense-ablation")
HOLDS, BROKEN, NOT_RUN = "holds", "does not hold", "not run"


class Order(NamedTuple):
    """One order that must hold: `high` above `low`, each as TABLE COLUMN ROW.

    Accuracies are in %, of the seeds that both have if they can be compared, None where not run. `against`: the seeds
    in which an order does not hold that holds in the mean.
    """

    claim: str
    high: str
    low: str
    above: float | None
    below: float | None
    verdict: str  # `HOLDS`, `BROKEN`, `NOT_RUN` or `NOT_COMPARABLE`
    against: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """The verdict, and the seeds that are against it."""
        return self.verdict + (f" in the mean, not in {', '.join(map(str, self.against))}" if self.against else "")


def required(folders: Sequence[Path], rounds: int | None = None) -> list[Order]:
    """Return a verdict on every order that is required, from the runs below some folders.

    Not required, since independent re-runs contradict it: DENSE above FedDF, and FedDF below Fed-DAFL below Fed-ADI.

    Args:
        folders: of results, as `fedloom reproduce --out` names them.
        rounds: take numbers after at most so many.
    """
    return _orders([r for table in CLAIMED for r in read(recipes(table), folders, rounds)])


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the required orders came out in the results of one column, a sentence for each claim.

    Orders that were not run, or cannot be compared, are left out.
    """
    out, found = [], [o for o in _orders(results) if o.verdict in (HOLDS, BROKEN)]
    for claim in dict.fromkeys(o.claim for o in found):
        mine = [o for o in found if o.claim == claim]
        broken = [f"{_row(o.high)} {o.above:.2f}, {_row(o.low)} {o.below:.2f}" for o in mine if o.verdict == BROKEN]
        not_so = f" Not: {'; '.join(broken)}." if broken else ""
        partly = [
            f"{_row(o.high)} above {_row(o.low)} (not in {', '.join(map(str, o.against))})" for o in mine if o.against
        ]
        not_so += f" In the mean, but not in every seed: {', '.join(partly)}." if partly else ""
        out.append(f"Required, {claim}: holds in {len(mine) - len(broken)} of {len(mine)}.{not_so}")
    return out


Key = tuple[str, str, str]  # table, column, row


def _orders(results: Sequence[Result]) -> list[Order]:
    found = {(r.recipe.table, r.recipe.column, r.recipe.row): r for r in results}
    claims = [c for c in _claims(list(found)) if c[1] in found and c[2] in found]
    return [_judged(claim, found[high], found[low]) for claim, high, low in claims]


def _claims(keys: Sequence[Key]) -> Iterator[tuple[str, Key, Key]]:
    for table, column in dict.fromkeys((table, column) for table, column, _ in keys if table in CLAIMED):
        data, alpha, rest = column.split("-", 2)
        if table == "dense-table1":
            if data in STEEP or alpha == "a0.1":
                for row in DISTILLED:
                    yield "FedAvg is below every method that distils", (table, column, row), (table, column, "fedavg")
            for row in DISTILLED:
                yield "the ensemble is above every student", (table, column, "ensemble"), (table, column, row)
            after = {"a0.1": "a0.3", "a0.3": "a0.5"}.get(alpha)
            if after is not None:
                more = f"{data}-{after}-{rest}"
                yield "DENSE rises with alpha", (table, more, "dense"), (table, column, "dense")
        elif table == "dense-clients":
            yield "DENSE is above FedAvg at 5 to 50 clients", (table, column, "dense"), (table, column, "fedavg")
        else:
            yield "DENSE is above CE alone", (table, column, "dense"), (table, column, "dense-ce_only")


def _judged(claim: str, high: Result, low: Result) -> Order:
    above, below = (f"{r.recipe.table} {r.recipe.column} {r.recipe.row}" for r in (high, low))
    a, b = high.accuracy, low.accuracy
    if a is None or b is None:
        return Order(claim, above, below, a, b, NOT_RUN)
    if not (pair := comparable(high, low)):
        return Order(claim, above, below, a, b, NOT_COMPARABLE)
    a, b = pair[0].accuracy, pair[1].accuracy
    if a is None or b is None or a <= b:
        return Order(claim, above, below, a, b, BROKEN)
    return Order(claim, above, below, a, b, HOLDS, seeds_against(*pair))


def _row(name: str) -> str:
    """Return the row of TABLE COLUMN ROW."""
    return name.rpartition(" ")[2]


def page(folders: Sequence[Path], rounds: int | None = None) -> str:
    """Return the verdicts as Markdown: each claim with how often it holds, and the numbers of what was run."""
    found, lines = required(folders, rounds), ["# Orders that DENSE must show", ""]
    for claim in dict.fromkeys(o.claim for o in found):
        mine = [o for o in found if o.claim == claim]
        run = [o for o in mine if o.verdict != NOT_RUN]
        holds, broken = (sum(o.verdict == verdict for o in run) for verdict in (HOLDS, BROKEN))
        said = f"holds in {holds} of {holds + broken} that can be judged, of {len(mine)}"
        lines += [f"**{claim[0].upper()}{claim[1:]}**: {said}.", ""]
        if run:
            lines += ["| higher | lower | % | % | verdict |", "|---|---|---|---|---|"]
            lines += [f"| {o.high} | {o.low} | {o.above:.2f} | {o.below:.2f} | {o.told} |" for o in run]
            lines.append("")
    return "\n".join(lines)
