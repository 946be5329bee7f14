"""What the paper claims that is no order of two methods: gains, how often importance is measured, what lambda does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fedloom.papers.apfl.recipes import GAINS, LAMBDAS
from fedloom.papers.reproduction.results import Result, Run, comparable, seeds_of

FORCED = 3  # the rounds, from 1, in which importance is always measured


def remarks(results: Sequence[Result]) -> list[str]:
    """Say how the claims came out in the results of one column, in sentences; nothing of what was not run."""
    rows = {r.recipe.row: r for r in results if r.accuracy is not None}
    out = []
    beside = [(row, "fedavg") for row in rows if row != "fedavg"] + [("apfl_ni", "decomposition")]
    for row, other in beside:  # the last is what consolidation adds
        if {row, other} <= rows.keys() and (pair := comparable(rows[row], rows[other])):
            out.append(f"{_gain(*pair)}{seeds_of(pair, rows[row], rows[other])}.")
    swept = [rows[name] for name in (f"apfl_ni-{lam:g}" for lam in LAMBDAS) if name in rows]
    if len(swept) == len(LAMBDAS) and (alike := comparable(*swept)):
        out.append(f"Over lambda accuracy {_swept(alike)}{seeds_of(alike, *swept)}.")
    for row, r in rows.items():
        own = r.recipe.experiment.settings.get("apfl_ni", {})
        for seed in r.seeds if own.get("mu") else ():
            if (found := measured(r.runs[seed], r.rounds)) is not None:
                late = [t for t in found if t > FORCED]
                rounds = f"round{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
                where = f" (in {rounds})" if late else ""
                times = f"{len(late)} times after the forced ones{where}"
                out.append(f"{row}, seed {seed}: importance measured {times}; published: once{_of_more(r)}.")
    return out


def _gain(r: Result, other: Result) -> str:
    """Say how far a method is above another one, in the mean over rounds and in the best round.

    The published gain of APFL over FedAvg stands beside that of runs with the published settings.
    """
    rows = r.recipe.row, other.recipe.row
    asked = rows == ("apfl_ni", "fedavg") and not r.changed
    gain = GAINS.get(r.recipe.column.removesuffix("-overlapping")) if asked else None
    published = "" if gain is None else f" (published {gain:+.2f}{_of_more(r)})"
    mean, best = (f"{_minus(a, b):+.2f}" for a, b in ((r.accuracy, other.accuracy), (r.best, other.best)))
    return f"{' less '.join(rows)}: {mean} points in the mean over rounds{published}, {best} in the best round"


def _of_more(r: Result) -> str:
    """Say over how many rounds a published number is, where our runs have fewer."""
    return f" over {r.recipe.rounds} rounds, here {r.rounds}" if r.rounds < r.recipe.rounds else ""


def _swept(results: Sequence[Result]) -> str:
    """Say what accuracy does as lambda rises, and what is published, where that is of the same settings."""
    ours = [r.accuracy for r in results if r.accuracy is not None]
    published = [r.recipe.accuracy for r in results if r.recipe.accuracy is not None and not r.changed]
    there = len(published) == len(results)
    return f"{_rises(ours)}{f' (published: {_rises(published)}{_of_more(results[0])})' * there}"


def _rises(accuracies: Sequence[float]) -> str:
    throughout = all(a < b for a, b in itertools.pairwise(accuracies))
    spread = max(accuracies, default=0.0) - min(accuracies, default=0.0)
    return f"{'rises' if throughout else 'does not rise'} throughout and spreads over {spread:.2f} points"


def measured(run: Run, rounds: int) -> list[int] | None:
    """Return the rounds, from 1, in which importance was measured; None where the run has not logged it."""
    told = [m for m in run.history.metrics if 1 <= m["round"] <= rounds and "server_measured" in m]
    return [m["round"] for m in told if m["server_measured"]] if told else None


def _minus(a: float | None, b: float | None) -> float:
    return float("nan") if a is None or b is None else a - b
