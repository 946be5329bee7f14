"""Measure what the global model forgets of a client, and how fast local training brings it back (pFedSD's motivation).

A client trains from the global model, which is worse on its data than the model v_k with which its last round ended:
that is the drop. The distillation from v_k is meant to make it up in fewer local steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import moves, panels, title
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import INK, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

TABLE = "recovery"  # the name of the table of all numbers
CLOSE = 0.01  # of accuracy: a client that comes so close to its former one has recovered


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the drop in clients' accuracy at the start from the global model, and recovery by local step (pFedSD).

    Accuracy is that on held-out examples: of clients' former models, of the global one, and by local step with the
    algorithm's term and without.
    """
    algorithm = run.job.algorithm
    if not algorithm.personalises:
        raise SettingError(
            f"{type(algorithm).__name__} evaluates clients by the global model, so they have no model of their own "
            "to come back to: analyse a run of pfedsd"
        )
    m = run.replayed()
    former = run.past.accuracies(m.number - 1)
    clients = [k for k in m.clients if k in former]
    if not clients:
        raise SettingError(
            f"no client that trained in round {m.number} has a personal model of an earlier round to evaluate: "
            "name a later round, of a run with data.test_fraction above 0"
        )
    steps = doubling(min(_steps(run, k, m.number) for k in clients))
    variants: dict[str, dict[str, Any]] = {"as in the run": {}}
    if any(getattr(algorithm, name) != value for name, value in algorithm.neutral.items()):
        variants["without the term"] = dict(algorithm.neutral)
    v = np.array([former[k] for k in clients])
    start = run.held_out_accuracy(dict.fromkeys(clients, m.start))
    curves = {
        name: np.stack([start, *(run.held_out_accuracy({k: w[k] for k in clients}) for w in models)])
        for name, models in ((name, run.past.by_step(m.number, steps, **own)) for name, own in variants.items())
    }
    at = [0, *steps]
    when = {name: recovered(at, v, curve) for name, curve in curves.items()}
    rows = [
        [name, step, k, v[i], curve[t, i]]
        for name, curve in curves.items()
        for t, step in enumerate(at)
        for i, k in enumerate(clients)
    ]
    summary = [[step, *(curve[t].mean() for curve in curves.values())] for t, step in enumerate(at)]
    return AnalysisResult(
        draw(clients, v, at, curves),
        summary_table(
            f"Accuracy on what {len(clients)} clients of round {m.number} hold out, %, by local step; "
            f"of their former models {percent(float(v.mean()))}",
            {"step": None, **dict.fromkeys(curves, percent)},
            summary,
        ),
        [
            csv_table(TABLE, ["variant", "step", "client", "former", "accuracy"], rows),
            csv_table("recovery-steps", ["client", *curves], list(zip(clients, *when.values(), strict=True))),
        ],
        sentences(v, start, when),
    )


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most` itself."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def recovered(at: Sequence[int], v: Floats, curve: Floats) -> Floats:
    """Return the first step after which each client is as good as its former model, within `CLOSE`, [K].

    `at`: the steps, [T]. `v`: accuracies of the former models, [K]. `curve`: accuracies after the steps, [T, K]. NaN
    where there is no such step.
    """
    there = curve >= v - CLOSE - 1e-12
    first: Floats = np.where(there.any(0), np.array(at, np.float64)[there.argmax(0)], np.nan)
    return first


def sentences(v: Floats, start: Floats, when: Mapping[str, Floats]) -> list[str]:
    """State what is claimed of a round, and whether it was so."""
    worse = int((start < v).sum())
    out = [
        f"{worse} of {len(v)} clients are worse with the global model than with their former one; the mean drop is "
        f"{percent(float((v - start).mean()))} points."
    ]
    medians = {name: typical(steps) for name, steps in when.items()}
    for name, steps in when.items():
        done = int(np.isfinite(steps).sum())
        after = f", the median client after {medians[name]:g} steps" if np.isfinite(medians[name]) else ""
        out.append(f"{name.capitalize()}: {done} of {len(v)} come back within a point of their former model{after}.")
    if len(medians) > 1:
        with_term, without = medians.values()
        verdict = "fewer" if with_term < without else "as many" if with_term == without else "more"
        out.append(f"With the term the median client takes {verdict} steps.")
    return out


def typical(steps: Floats) -> float:
    """Return the median client's number of steps; `steps` are those of each client, [K].

    Clients that never recover (NaN) take longest. The result is infinite if the median client is one of them.
    """
    return float(np.sort(np.nan_to_num(steps, nan=np.inf))[(len(steps) - 1) // 2])


def _steps(run: AnalysedRun, client: int, number: int) -> int:
    """Count the batches of a client's local training in a round."""
    local, sizes = run.job.algorithm.local, run.job.federation.there(number - 1).sizes
    return local.steps or local.epochs * -(-int(sizes[client]) // local.batch_size)


def draw(clients: Sequence[int], v: Floats, at: Sequence[int], curves: Mapping[str, Floats]) -> Figure:
    """Draw each client's former model (ring) and the global one (dot), and means by local step, [T, K] each.

    The models are on the left, the means on the right.
    """
    with drawing():
        figure, axes = panels(2)
        moves(axes[0], clients, {"": (v, next(iter(curves.values()))[0])})
        title(axes[0], "former model (ring) and the global one (dot)")
        axes[0].set_ylabel("accuracy (%)")
        axes[1].axhline(100 * float(v.mean()), color=INK, lw=1, ls=(0, (4, 2)), label="former models")
        for i, (name, curve) in enumerate(curves.items()):
            axes[1].plot(range(len(at)), 100 * curve.mean(1), marker="o", ms=3.5, color=colour(i), label=name)
        axes[1].set_xticks(range(len(at)), [str(step) for step in at])
        axes[1].set_xlabel("local steps (0: the global model)")
        axes[1].set_ylim(0, 102)
        title(axes[1], "mean over these clients")
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return figure
