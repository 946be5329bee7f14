"""Audit of a private run: what canaries show of its leakage, beside the epsilon that it promises."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import panels, title
from fedloom.core.errors import SettingError
from fedloom.core.random import derive
from fedloom.privacy import canaries
from fedloom.privacy.central import Central
from fedloom.privacy.leakage import Canaries, Measured, Promise, measured, scores
from fedloom.privacy.private_examples import Examples
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_POINTS = 200  # of a curve


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure a lower bound of epsilon with canaries, beside the one that a private run promises.

    Clients, or examples, whose clipped upload or gradient is known are put through the run's private sums, or left out;
    what is released tells which. What is measured must stay below what was promised.
    """
    found, promise, whose = _put_in(run)
    result = measured(found, promise)
    heads = {"": None, "epsilon": _number, "found, %": percent, "accused, %": percent}
    of_any, of_kind = result.by_epsilon, result.by_kind
    rows: list[list[Any]] = [
        ["promised", promise.epsilon, result.allowed, of_kind.accused_at_most],
        ["at least, of this kind", result.epsilon_of_kind, of_kind.found_at_least, of_kind.accused_at_most],
        ["at least, of any kind", result.epsilon, of_any.found_at_least, of_any.accused_at_most],
    ]
    said = "Nothing that was measured is beyond the promise." if result.kept else (
        "MORE LEAKS THAN WAS PROMISED: clipping, noise or draws are not what epsilon is counted for."
    )  # fmt: skip
    curve = _curve(found, promise)
    allowed = promise.most_hits(curve[:, 0])
    return AnalysisResult(
        draw(curve, allowed, result),
        summary_table(f"Audit of the privacy of {whose} over {_rounds(promise)}", heads, rows),
        [
            csv_table("audit", ["accused", "found", "most_found_by_promise"], [*np.column_stack([curve, allowed])]),
            csv_table("audit-epsilon", ["which", "epsilon", "found", "accused"], rows),
        ],
        [
            f"{said} Of {len(found.inside):,} canaries that are in and {len(found.outside):,} that are not; half chose "
            "score and threshold, the others are counted; bounds hold together with 95 % (Clopper-Pearson), at delta = "
            f"{promise.delta:g}.",
            "Of this kind: a mechanism that differs from the promised one by the size of its noise alone. An audit "
            "finds mistakes, and proves no privacy.",
        ],
    )  # fmt: skip


def _put_in(run: AnalysedRun) -> tuple[Canaries, Promise, str]:
    """Return canaries that went through a run's mechanism, what it promises, and whose privacy that is."""
    job = run.job
    part = next((p for p in job.begun_parts.all if isinstance(p, Central | Examples)), None)
    if part is None:
        raise SettingError(
            "an audit is of what central or examples promise, and this run has made none, with privacy = "
            f"{job.settings.privacy!r}: run with --privacy, such as central:noise=1,delta=1e-5,clip=0.5"
        )
    if isinstance(part, Central):
        if not part.shapes:
            raise SettingError(f"{type(job.algorithm).__name__} uploads nothing that could leak: audit another method")
        _, kept = run.past.coordinator.read(run.past.files, run.past.files.checkpoint(None))
        noise = kept["Central"]["noise"]
        promise = Promise(run.last_round, part.rate, float(noise), part.asked.delta)
        return canaries.of_clients(job, noise, run.last_round, run.model_name), promise, "clients"
    asked = np.bincount(
        [k for record in run.history.metrics for k in record.get("clients") or ()], minlength=len(part.each)
    )
    steps = asked * part.each
    if not steps.any():
        raise SettingError("no client has taken a step in this run, so nothing could leak: audit a longer one")
    promises = [
        Promise(int(t), float(q), part.gradients.noise, part.asked.delta)
        for t, q in sorted({*zip(steps.tolist(), part.rate.tolist(), strict=True)}) if t
    ]  # fmt: skip
    promise = max(promises, key=lambda one: (one.rate**2 * one.rounds, one.rate))
    client = next(k for k in range(len(steps)) if (steps[k], part.rate[k]) == (promise.rounds, promise.rate))
    size = int(job.federation.partition.sizes[client])
    seed = derive(job.settings.seed, "audit")
    found = canaries.of_examples(part.gradients, job.algorithm.training, size, promise.rounds, seed)
    return found, promise, f"examples of client {client}"


def _curve(found: Canaries, promise: Promise) -> Floats:
    """Return the shares accused and found, over thresholds of the likelihood ratio, [P, 2]."""
    inside, outside = (scores(found, promise.rate, seen)[0] for seen in (found.inside, found.outside))
    at = np.quantile(outside, 1 - np.geomspace(1 / len(outside), 1.0, _POINTS), method="lower")
    return np.array([[np.mean(outside >= t), np.mean(inside >= t)] for t in at])


def _rounds(promise: Promise) -> str:
    each = "" if promise.rate == 1 else f", each in one with probability {promise.rate:.3g}"
    return f"{promise.rounds:,} releases{each}"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "infinite"


def draw(curve: Floats, allowed: Floats, result: Measured) -> Figure:
    """Draw what is found over what is accused, below the line of the promise; and epsilon, promised and measured.

    Args:
        curve: shares accused and found, [P, 2].
        allowed: shares that may be found by the promise, [P].
        result: bounds.
    """
    with drawing():
        figure, axes = panels(2)
        low = max(1e-5, float(curve[0, 0]))
        axes[0].plot([low, 1], [low, 1], linestyle=":", color=FAINT, label="chance")
        axes[0].plot(curve[:, 0], allowed, color=colour(1), label="most, by the promise")
        axes[0].plot(
            curve[:, 0], np.maximum(curve[:, 1], low), color=colour(0), label="measured", drawstyle="steps-post"
        )
        guess = result.by_kind
        axes[0].plot([guess.accused_at_most], [guess.found_at_least], "v", color=colour(0), label="at least, with 95 %")
        axes[0].set(xscale="log", yscale="log", xlim=(low, 1), ylim=(low, 1.1))
        axes[0].set_xlabel("canaries accused that are not in (share)")
        axes[0].set_ylabel("canaries found (share)")
        axes[0].legend(loc="lower right")
        title(axes[0], "guessed from all that is released")
        names = ["promised", "at least,\nof this kind", "at least,\nof any kind"]
        values = [result.promise.epsilon, result.epsilon_of_kind, result.epsilon]
        bars = [v if math.isfinite(v) else 0.0 for v in values]
        drawn = axes[1].bar(names, bars, color=[colour(1), colour(0), colour(0)], width=0.6)
        axes[1].bar_label(drawn, [_number(v) for v in values], padding=3)
        axes[1].margins(y=0.1)
        axes[1].set_ylabel("epsilon")
        title(axes[1], "promised, and measured from below")
    return figure
