"""Make the parts of FedNTD's claims, and read the numbers of its analyses."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fedloom.analyses.measures import consistency, finite_mean
from fedloom.papers.fedntd import learning_curves
from fedloom.papers.fedntd.recipes import EPOCHS, Cell as Printed, cells
from fedloom.papers.reproduction.claim_parts import (
    Observation,
    above,
    larger_gain,
    name_of,
    observed,
)
from fedloom.papers.reproduction.claims import Cell, Part
from fedloom.papers.reproduction.evidence import rows_of
from fedloom.papers.reproduction.recipe import noise
from fedloom.papers.reproduction.results import Run

RUN_AS = {"fednova": "fednova-released"}  # plain FedNova is FedAvg under shards, so that is not what was printed


_CLOSE = 0.02  # of accuracies after local training that are called equal: ours


_ALIKE = 0.05  # of shares of neurons, likewise; printed ones on IID clients are 0.006 to 0.02 apart


def cell_of(table: str, column: str, row: str) -> Cell:
    return Cell(table, column, RUN_AS.get(row, row))


def accuracy(c: Printed) -> float | None:
    return None if c.note == "failed" else c.accuracy


def orders(table: str, value: Callable[[Printed], float | None], ours: bool) -> list[Part]:
    """Return a part for each printed order: of FedNTD above another method, or of two others if clear of noise."""
    columns: dict[str, dict[str, Printed]] = {}
    for c in cells(table):
        columns.setdefault(c.column, {})[c.row] = c
    stds = {(c.row, c.column): c.std for c in cells("fedntd-table7")}
    out = []
    for column, rows in columns.items():
        for high in (row for row in rows if (row == "fedntd") is ours):
            for low in (row for row in rows if row not in (high, "fedntd")):
                a, b = value(rows[high]), value(rows[low])
                if a is None or b is None or a <= b:
                    continue
                if not ours and ("fednova" in (high, low) or a - b <= noise(stds[high, column], stds[low, column], 1)):
                    continue
                better, worse = (cell_of(table, column, row) for row in (high, low))
                if a < 0:  # forgetting, of which less is better
                    worse, better = (cell._replace(measure="forgetting") for cell in (better, worse))
                out.append(above(better, worse))
    return out


def analysed(
    fedntd: Cell,
    table: str,
    number: Callable[[list[Mapping[str, str]]], float],
    holds: Callable[[float, float], bool] = operator.gt,
) -> Part:
    """Return a part that holds where a number of an analysis is higher in a run of FedNTD than in one of FedAvg.

    It is of the rounds in which both were analysed. `holds`: compares the two numbers otherwise.
    """

    def observe(ours: Run, theirs: Run, rounds: int) -> Observation:
        with rows_of(ours, table) as mine, rows_of(theirs, table) as others:
            if mine is None or others is None:
                return None
            both = {int(row["round"]) for row in mine} & {int(row["round"]) for row in others}
            if not both:
                return None
            a, b = (number([row for row in rows if int(row["round"]) in both]) for rows in (mine, others))
        span = f"round {max(both)}" if len(both) == 1 else f"{len(both)} rounds from {min(both)} to {max(both)}"
        return holds(a, b), f"{a:.3g}, {b:.3g} ({span})"

    return observed([fedntd, fedntd._replace(row="fedavg")], observe, f"{table}: {name_of(number)}, {name_of(holds)}")


def not_below(ours: float, theirs: float) -> bool:
    return ours > theirs - _CLOSE


def alike(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) < _ALIKE


def wider(skew: str) -> Part:
    """Return a part that holds where the gain of FedNTD over FedAvg is larger with the most local epochs."""
    few, many = (
        (
            Cell(learning_curves.TABLE, f"{skew}-e{epochs}", "fedntd"),
            Cell(learning_curves.TABLE, f"{skew}-e{epochs}", "fedavg"),
        )
        for epochs in EPOCHS
    )
    return larger_gain(many, few, f"{skew} {{:+.2f}} at E = {EPOCHS[1]}, {{:+.2f}} at E = {EPOCHS[0]}")


def steadier(iid: Run, skewed: Run, rounds: int) -> Observation:
    """Say whether accuracy by class is nearer to that of the round before on IID data, mean over the rounds."""
    until = min(rounds, iid.rounds, skewed.rounds)
    means = [finite_mean(consistency(run.history.per_class[:until])) for run in (iid, skewed)]
    return None if np.isnan(means).any() else (means[0] > means[1], "cosine {:.3f}, LDA {:.3f}".format(*means))


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def aligned(rows: list[Mapping[str, str]]) -> float:
    """Return the share of neurons that keep their class in local models, mean over layers and clients."""
    return _mean(float(row["share"]) for row in rows if row["model"] != "aggregated")


def outside(rows: list[Mapping[str, str]]) -> float:
    """Return the change of accuracy on other classes by local training."""
    return _mean(float(row["out_after"]) - float(row["out_before"]) for row in rows)


def column_mean(name: str) -> Callable[[list[Mapping[str, str]]], float]:
    """Return what takes the mean of a column, over the rows that have a number there."""
    return lambda rows: _mean(float(row[name]) for row in rows if row[name])


def flat(rows: list[Mapping[str, str]]) -> float:
    """Return less the loss that relative noise on the weights adds, mean over strengths and draws."""
    of: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        if row["noise"] == "relative":
            of[float(row["strength"]) > 0].append(float(row["loss"]))
    return _mean(iter(of[False])) - _mean(iter(of[True]))


def near(rows: list[Mapping[str, str]]) -> float:
    """Return less the mean distance of local weights from the received ones."""
    return -_mean(float(row["weights_l2"]) for row in rows)
