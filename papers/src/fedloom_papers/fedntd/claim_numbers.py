"""Make the parts of FedNTD's claims, and read the numbers of its analyses."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedloom.algorithms import ALGORITHMS
from fedloom.analyses.measures import consistency, correlation, finite_mean
from fedloom.core.algorithm import Algorithm
from fedloom.core.averaging import Averaging
from fedloom.evaluate.student_t import student_quantile
from fedloom_papers.fedntd import learning_curves
from fedloom_papers.fedntd.recipes import EPOCHS, Cell as Printed, cells
from fedloom_papers.reproduction.claim_parts import (
    Observation,
    above,
    incomparable,
    larger_gain,
    name_of,
    observed,
    total,
)
from fedloom_papers.reproduction.claims import FAILS, HOLDS, NOISE, NOT_RUN, Cell, Finding, Part
from fedloom_papers.reproduction.evidence import rows_of
from fedloom_papers.reproduction.recipe import noise
from fedloom_papers.reproduction.results import Result, Run

RUN_AS = {"fednova": "fednova-released"}  # plain FedNova is FedAvg under shards, so that is not what was printed


_CLOSE = 0.02  # of accuracies after local training that are called equal: ours


_ALIKE = 0.05  # of shares of neurons, likewise; printed ones on IID clients are 0.006 to 0.02 apart


_STRONG = 0.5  # a correlation that is called so


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
    other: Cell | None = None,
) -> Part:
    """Return a part that holds where a number of an analysis is higher in a run of FedNTD than in one of FedAvg.

    It is of the rounds in which both were analysed. `holds`: compares the two numbers otherwise. `other`: in place of
    FedAvg.
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

    cells_ = [fedntd, other or fedntd._replace(row="fedavg")]
    return observed(cells_, observe, f"{table}: {name_of(number)}, {name_of(holds)}")


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


def even_earlier(ours: Run, theirs: Run, rounds: int) -> Observation:
    """Say whether shares of classes in the summed accuracy are nearer to each other, mean over the rounds."""
    until = min(rounds, ours.rounds, theirs.rounds)
    means = []
    for run in (ours, theirs):
        accuracies = np.asarray(run.history.per_class[:until], np.float64)
        sums = accuracies.sum(1, keepdims=True) if accuracies.ndim == 2 and len(accuracies) else np.zeros((0, 1))
        if not len(sums) or not (sums > 0).all():
            return None
        means.append(float((accuracies / sums).std(1).mean()))
    return means[0] < means[1], "deviation over classes {:.3f}, {:.3f}".format(*means)


def moves_with_distance(run: Run, rounds: int) -> Observation:
    """Say whether the distance of local weights from the received ones goes with that of the classes."""
    with rows_of(run, "weight-divergence") as rows:
        if not rows:
            return None
        pairs = [(float(row["distribution_l2"]), float(row["weights_l2"])) for row in rows]
    found = correlation(*np.asarray([pair for pair in pairs if np.isfinite(pair).all()]).T)
    return found.pearson >= _STRONG, f"correlation {found.pearson:.2f} of {found.n} local models"


def sends_more(method: Run, fedavg: Run, rounds: int) -> Observation:
    """Say whether a method sends more bytes than FedAvg."""
    until = min(rounds, method.rounds, fedavg.rounds)
    a, b = (total(run, until, "bytes_down", "bytes_up") for run in (method, fedavg))
    return (a > b, f"{a / b:.3g} times the bytes") if b else None


def keep_state() -> tuple[bool, str]:
    """Say whether clients keep a state under MOON and SCAFFOLD, and none under FedAvg and FedNTD, in the code here."""
    names, none = ("fedavg", "fedntd", "moon", "scaffold"), (Algorithm.init_client, Averaging.init_client)
    keeping = [name for name in names if ALGORITHMS[name].init_client not in none]
    return keeping == ["moon", "scaffold"], f"clients of {', '.join(keeping)} keep a state, of {', '.join(names)}"


def accurate_as_it_forgets_less(methods: Sequence[Cell]) -> Part:
    """Return a part that holds where accuracy and forgetting correlate negatively over methods, beyond chance.

    The correlation is of means over the seeds of each method, after the rounds that all have, by Student's t at 95 %.
    It needs four methods; those without runs are left out.
    """

    def decide(*results: Result) -> Finding:
        there = [r for r in results if r.accuracy is not None and not r.failures]
        if len(there) < 4:
            return Finding(NOT_RUN)
        found = [dataclasses.replace(r, until=min(r.rounds for r in there)) for r in there]
        pairs = [(r.accuracy, r.forgetting) for r in found]
        known = np.asarray([pair for pair in pairs if None not in pair], np.float64)
        if len({str(r.changed) for r in found}) > 1 or len(known) < 4:
            return incomparable(*found)
        r, df = correlation(*known.T).pearson, len(known) - 2
        clear = abs(r) * math.sqrt(df) > student_quantile(0.975, df) * math.sqrt(max(1 - r * r, 0.0))
        verdict = NOISE if not clear else HOLDS if r < 0 else FAILS
        return Finding(verdict, f"{found[0].recipe.column} {len(known)} methods, correlation {r:.2f}", "", tuple(found))

    return Part(tuple(methods), decide, kind="accuracy with forgetting")


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
