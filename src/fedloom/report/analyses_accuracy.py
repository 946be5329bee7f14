"""Analyses of accuracies by class and client: FedNTD's figures 2, 4, 6, 7, 8, 10, 11 and 12, of any run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.analysis import (
    Correlation,
    LocalAccuracy,
    consistency,
    correlation,
    distribution_distance,
    known_mean,
    known_std,
    local_accuracy,
    normalised_rows,
    personalised,
    pooled_accuracy,
    shares,
    weight_divergence,
)
from fedloom.core.errors import SettingError
from fedloom.evaluate import forgetting, relative_forgetting
from fedloom.report import analysis_figures as figures
from fedloom.report.comparison import percent
from fedloom.report.finding import Finding, numbers, ratio, short
from fedloom.report.studied import Studied

Floats = npt.NDArray[np.float64]


def class_accuracy(run: Studied) -> Finding:
    """Accuracy of the global model by class and round, and the same as shares of its sum (fig. 10)."""
    log = run.logged()
    rounds = [t for t, shown in zip(log.rounds, log.shown, strict=True) if shown]
    per_class = log.per_class[log.shown]
    parts = normalised_rows(per_class)
    classes = per_class.shape[1]
    names = ["round", *(f"accuracy_{c}" for c in range(classes)), *(f"share_{c}" for c in range(classes))]
    table = numbers("class-accuracy", names, [[t, *a, *p] for t, a, p in zip(rounds, per_class, parts, strict=True)])
    rows = [[c, per_class[-1, c], log.per_class[:, c].max(), parts[-1, c]] for c in range(classes)]
    last = rounds[-1]
    heads = {"class": None, f"round {last}, %": percent, "best, %": percent, "share of the sum, %": percent}
    shown = short("Accuracy by class", heads, rows)
    return Finding(figures.class_maps(rounds, per_class, parts), shown, [table], log.said)


def steadiness(run: Studied) -> Finding:
    """Cosine between the accuracies by class of neighbouring rounds (fig. 2b)."""
    log = run.logged()
    if log.whole == 1:
        raise SettingError("consistency compares rounds with the one before, and this run has one round only")
    if not log.shown[1:].any():
        raise SettingError(f"consistency compares rounds with the one before: name one after {log.rounds[0]}")
    cosine = consistency(log.per_class)[log.shown[1:]]
    rounds = [t for t, shown in zip(log.rounds[1:], log.shown[1:], strict=True) if shown]
    table = numbers("consistency", ["round", "cosine"], list(zip(rounds, cosine, strict=True)))
    finite = cosine[np.isfinite(cosine)]
    ends = [finite.mean(), finite.min(), finite.max()] if len(finite) else [np.nan] * 3
    shown = short("Consistency", {"mean": ratio, "lowest": ratio, "highest": ratio}, [ends])
    said = ["1: neighbouring rounds know the same classes. Left out: rounds in which no class was ever right."]
    return Finding(figures.consistency(rounds, cosine), shown, [table], [*said, *log.said])


def forgotten(run: Studied) -> Finding:
    """Forgetting F over rounds and by class, in both conventions and relative to the mean peak (eq. 5)."""
    log = run.logged()
    per_class = log.per_class
    rows = [
        [
            t,
            np.nanmean(forgetting(per_class[: i + 1])) if i else np.nan,
            np.nanmean(forgetting(per_class[: i + 1], "all")),
            relative_forgetting(per_class[: i + 1]) if i else np.nan,
            np.nanmean(per_class[i]),
        ]
        for i, t in enumerate(log.rounds)
        if log.shown[i]
    ]
    lost = forgetting(per_class)
    names = ["round", "forgetting_earlier", "forgetting_all", "relative_to_peak", "accuracy"]
    by_class = [[c, f, per_class[:, c].max(), per_class[-1, c]] for c, f in enumerate(lost)]
    tables = [
        numbers("forgetting", names, rows),
        numbers("forgetting-by-class", ["class", "forgetting_earlier", "best", "accuracy"], by_class),
    ]
    end = rows[-1]
    shown = short(
        f"Forgetting after round {log.rounds[-1]}",
        {
            "F (t < T), points": percent, "F (t <= T), points": percent, "final accuracy, %": percent,
            "mean peak, %": percent, "F / mean peak, %": percent,
        },
        [[end[1], end[2], end[4], end[1] + end[4], end[3]]],
    )  # fmt: skip
    said = ["F + final accuracy = mean peak: F alone falls wherever accuracy rises, so compare F / mean peak too."]
    return Finding(figures.forgetting(np.array(rows, np.float64), lost), shown, tables, [*said, *log.said])


def local(run: Studied) -> Finding:
    """Accuracy on in-local and out-local distributions before and after local training (eq. 6 and 7; fig. 4 and 7)."""
    rows: list[list[Any]] = []
    means: list[dict[str, Any]] = []
    last: tuple[Sequence[int], LocalAccuracy, LocalAccuracy] | None = None
    for m in run.moments():
        before, after = local_accuracy(m.counts, m.start_accuracy), local_accuracy(m.counts, m.trained_accuracy)
        four = zip(before.inside, after.inside, before.outside, after.outside, strict=True)
        rows += [[m.number, k, int(n), *values] for k, n, values in zip(m.clients, before.sizes, four, strict=True)]
        both: dict[str, tuple[float, float]] = {}
        for when, found in (("before", before), ("after", after)):
            both |= {f"{when}_mean": found.mean(), f"{when}_std": found.std(), f"{when}_weighted": found.weighted()}
        both["aggregated"] = pooled_accuracy(m.counts, m.after_accuracy)
        row = {f"{where}_{name}": pair[i] for name, pair in both.items() for i, where in enumerate(("in", "out"))}
        means.append({"round": m.number} | row | {"accuracy_aggregated": float(np.nanmean(m.after_accuracy))})
        last = (m.clients, before, after)
    assert last is not None  # else `moments` has raised
    names = ["round", "client", "examples", "in_before", "in_after", "out_before", "out_after"]
    curves = {name: np.array([row[name] for row in means]) for name in means[0]}
    summary = [list(row.values()) for row in means]
    tables = [numbers("local-accuracy", names, rows), numbers("local-accuracy-rounds", list(curves), summary)]
    heads = {
        "round": "round",
        "in: before": "in_before_mean", "after": "in_after_mean", "aggregated": "in_aggregated",
        "out: before": "out_before_mean", "after ": "out_after_mean", "aggregated ": "out_aggregated",
    }  # fmt: skip
    shown = short(
        "Accuracy on clients' own classes (in) and the others (out), %, mean over clients",
        {h: None if h == "round" else percent for h in heads},
        [[row[name] for name in heads.values()] for row in means],
    )
    said = ["Aggregated: the global model after the round, on the pooled classes of the round's clients."]
    said += run.left_out(row["round"] for row in means)
    return Finding(figures.local_accuracy(*last, curves), shown, tables, said)


def by_epoch(run: Studied) -> Finding:
    """In-local and out-local accuracy after each local epoch of one round (fig. 6)."""
    m = run.moment()
    found = [local_accuracy(m.counts, m.start_accuracy)]
    for trained in run.past.by_epoch(m.number):
        found.append(local_accuracy(m.counts, np.array([run.per_class(trained[k]) for k in m.clients])))
    rows = [[e, k, a, b] for e, f in enumerate(found) for k, a, b in zip(m.clients, f.inside, f.outside, strict=True)]
    heads = {"epoch": None, "in, %": percent, "std": percent, "out, %": percent, "std ": percent}
    told = [[e, f.mean()[0], f.std()[0], f.mean()[1], f.std()[1]] for e, f in enumerate(found)]
    inside, outside = np.array([f.inside for f in found]), np.array([f.outside for f in found])
    return Finding(
        figures.by_epoch(inside, outside),
        short(f"Accuracy by local epoch in round {m.number}, mean over {len(m.clients)} clients", heads, told),
        [numbers("local-epochs", ["epoch", "client", "in_local", "out_local"], rows)],
    )


def divergence(run: Studied) -> Finding:
    """How far local models move, against how unlike the client's classes are what the global model knows (fig. 8)."""
    rows: list[list[Any]] = []
    for m in run.moments():
        for k, counts, trained in zip(m.clients, m.counts, m.trained, strict=True):
            w, p = weight_divergence(m.start, trained), distribution_distance(m.start_accuracy, shares(counts))
            rows.append([m.number, k, p.l1, p.l2, w.l1, w.l2])
    table = np.array(rows, np.float64)
    if not np.isfinite(table).all(1).any():
        raise SettingError("no client has training examples of a class that is in the test set: name other rounds")
    found: dict[str, Correlation] = {
        name: correlation(table[:, i], table[:, i + 2]) for i, name in ((2, "L1"), (3, "L2"))
    }
    names = ["round", "client", "distribution_l1", "distribution_l2", "weights_l1", "weights_l2"]
    told = [[name, c.pearson, c.spearman, c.n] for name, c in found.items()]
    return Finding(
        figures.divergence(table, found["L2"]),
        short("Correlation", {"norm": None, "Pearson": ratio, "Spearman": ratio, "pairs": None}, told),
        [numbers("weight-divergence", names, rows)],
        [
            "Distances move over rounds too: what both share with time is part of this correlation.",
            *run.left_out(row[0] for row in rows),
        ],
    )


def personal(run: Studied) -> Finding:
    """What local training gives a client: its own training examples, and test examples of its classes (fig. 11, 12)."""
    m = run.moment()
    rows: list[list[Any]] = []
    for i, (k, trained) in enumerate(zip(m.clients, m.trained, strict=True)):
        own = m.own(i)
        before = personalised(run.network, m.start, run.task, own, m.start_accuracy)
        after = personalised(run.network, trained, run.task, own, m.trained_accuracy[i])
        rows.append([k, len(own), before.own, after.own, before.test, after.test])
    names = ["client", "examples", "own_before", "own_after", "test_before", "test_after"]
    heads = {"": None, "own examples: before, %": percent, "after, %": percent} | {
        "test, own classes: before, %": percent, "after, % ": percent
    }  # fmt: skip
    table = np.array([row[2:] for row in rows], np.float64)
    told = [[name, *(of(column) for column in table.T)] for name, of in (("mean", known_mean), ("std", known_std))]
    return Finding(
        figures.personal(m.clients, table),
        short(f"Personalised performance in round {m.number}, {len(rows)} clients", heads, told),
        [numbers("personalised", names, rows)],
        ["Test: sum of p_c a_c over classes, exactly what test examples drawn with the client's classes would give."],
    )
