"""Who learns from whom in a run of KT-pFL: its coefficients over rounds, and how much lies between clients alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.panels import bare, panels, title, whole_ticks
from fedloom.coordinator import History
from fedloom.core.errors import SettingError
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOGGED = "server_coefficients"  # in the record of a round


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure KT-pFL's coefficients over rounds, and how much of each client's lies on those with the same classes."""
    rounds, c = logged(run.history)
    if not rounds:
        raise SettingError(
            f"the run in {run.directory} has logged no coefficients: analyse one of kt_pfl with at most 100 clients"
        )
    group = groups(run.history)
    mass = inside(c, group)
    own = np.diagonal(c, axis1=1, axis2=2)
    rows = [[t, n, m, c[i, n, m]] for i, t in enumerate(rounds) for n in range(len(group)) for m in range(len(group))]
    heads = {"round": None, "itself": ratio, "its group, mean": ratio, "its group, least": ratio}
    summary = [[t, own[i].mean(), mass[i].mean(), mass[i].min()] for i, t in enumerate(rounds)]
    return AnalysisResult(
        draw(rounds, c, own, mass, group),
        summary_table("Mass of a client's coefficients on itself and on its group", heads, summary),
        [
            csv_table("coefficients", ["round", "student", "teacher", "weight"], rows),
            csv_table(
                "group-mass",
                ["round", "client", "group", "itself", "inside"],
                [[t, n, group[n], own[i, n], mass[i, n]] for i, t in enumerate(rounds) for n in range(len(group))],
            ),
        ],
        [sentence(run.history)],
    )


def logged(history: History) -> tuple[list[int], Floats]:
    """Return the rounds whose coefficients a run has logged, and the coefficients, [T, N, N], row = student."""
    found = [(int(m["round"]), m[LOGGED]) for m in history.metrics if m.get(LOGGED) is not None]
    n = round(len(found[0][1]) ** 0.5) if found else 0
    return [t for t, _ in found], np.array([c for _, c in found], np.float64).reshape(len(found), n, n)


def groups(history: History) -> Ints:
    """Return the group of each client, [N]: clients that train on the same classes are in one."""
    classes = [tuple(count > 0 for count in counts) for counts in history.federation["train"]]
    names = list(dict.fromkeys(classes))
    return np.array([names.index(held) for held in classes], np.int64)


def inside(c: Floats, group: Ints) -> Floats:
    """Return how much of each row of `c` [T, N, N] lies on clients of the row's own group, itself included, [T, N]."""
    together = group[:, None] == group[None, :]
    found: Floats = (c * together).sum(2) / c.sum(2)
    return found


def sentence(history: History) -> str:
    """Say how far the coefficients of a run have gone from uniform mixing, which is FedMD."""
    rounds, c = logged(history)
    group = groups(history)
    n, count = len(group), int(group.max()) + 1
    own, mass = float(np.diagonal(c[-1]).mean()), inside(c[-1:], group)[0]
    out = f"coefficients after round {rounds[-1]}: {own:.3f} on the client itself (uniform {1 / n:.3f})"
    if count == 1:
        return f"{out}; all clients have the same classes."
    uniform = float((group[:, None] == group[None, :]).mean())
    kept = int((mass >= 0.8).sum())
    return (
        f"{out}, {mass.mean():.3f} inside its group, one of {count} (uniform {uniform:.3f}), in {kept} of {n} rows at "
        "least 0.8."
    )


def draw(rounds: Sequence[int], c: Floats, own: Floats, mass: Floats, group: Ints) -> Figure:
    """Draw the matrix after the first and the last round, clients in the order of their groups, and masses by round."""
    order = np.argsort(group, kind="stable")
    with drawing():
        figure, axes = panels(3)
        for ax, i in zip(axes, (0, -1), strict=False):
            image = ax.imshow(c[i][order][:, order], cmap="Blues", vmin=0, vmax=c.max(), interpolation="none")
            bare(ax)
            step = max(1, -(-len(order) // 10))
            ax.set_xticks(range(0, len(order), step), order[::step])
            ax.set_yticks(range(0, len(order), step), order[::step])
            ax.set_xlabel("teacher")
            title(ax, f"round {rounds[i]}")
        axes[0].set_ylabel("student")
        figure.colorbar(image, ax=axes[1], pad=0.02, aspect=18).outline.set_visible(False)
        for i, (name, values) in enumerate({"its group": mass, "itself": own}.items()):
            axes[2].plot(rounds, values, color=colour(i), lw=0.7, alpha=0.3)
            axes[2].plot(rounds, values.mean(1), "o-", ms=3, color=colour(i), label=name)
        axes[2].set_ylim(0, 1.02)
        axes[2].set_xlabel("round")
        whole_ticks(axes[2], rounds)
        title(axes[2], "mass of a row on ...")
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure
