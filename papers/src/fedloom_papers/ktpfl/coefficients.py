"""The coefficients of KT-pFL over rounds, which say who learns from whom, and their share between clients alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.panels import bare, panels, title, whole_ticks
from fedloom.coordinator import History
from fedloom.core.errors import SettingError
from fedloom.report.style import INK, colour, drawing
from fedloom_papers import recipes
from fedloom_papers.ktpfl.recipes import ABOUT
from fedloom_papers.reproduction.results import read

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


def figure(folders: Sequence[Path]) -> AnalysisResult:
    """Compare the mass of coefficients on like clients and on oneself, by round, over runs (KT-pFL)."""
    found, old = list[Masses](), list[str]()
    for r in (r for table in ABOUT for r in read(recipes(table), folders)):
        there = [run for run in r.runs.values() if run.history.federation and logged(run.history)[0]]
        whole = [run for run in there if len(logged(run.history)[0]) > 1]
        if whole:
            found.append(_masses(r.recipe.column, r.recipe.row, [run.history for run in whole]))
        elif there:
            old.append(f"{r.recipe.column} {r.recipe.row}")
    names = ", ".join(old)
    again = "run them again and export them, or analyse a run's own directory: fedloom analyse RUN coefficients"
    if not found:
        where = ", ".join(map(str, folders))
        kept = f" but those that an older version kept with the coefficients of their last round alone ({names})"
        raise SettingError(f"{where} holds no runs with coefficients by round{kept if old else ''}: {again}")
    return AnalysisResult(
        _draw_masses(found),
        summary_table(
            "Mass of a client's coefficients after the last round, mean over clients and seeds",
            {"column": None, "method": None, "seeds": None, "itself": ratio, "its group": ratio, "uniform": ratio},
            [[m.column, m.row, m.seeds, m.own[-1], m.group[-1], m.uniform] for m in found],
        ),
        [
            csv_table(
                "ktpfl-coefficients",
                ["column", "method", "round", "itself", "its group", "uniform"],
                [[m.column, m.row, t, m.own[i], m.group[i], m.uniform] for m in found for i, t in enumerate(m.rounds)],
            )
        ],
        [f"Left out, kept by an older version with the coefficients of the last round alone: {names}; {again}."]
        * bool(old),
    )


class Masses(NamedTuple):
    """Mean shares of a row of the coefficients that lie on the client itself and on its group, by round."""

    column: str
    row: str
    seeds: int
    rounds: list[int]
    own: Floats
    group: Floats
    uniform: float  # of a row that weighs all clients alike, on its group


def _masses(column: str, row: str, histories: Sequence[History]) -> Masses:
    by_round = list[dict[int, tuple[float, float]]]()
    for history in histories:
        rounds, c = logged(history)
        own, mass = np.diagonal(c, axis1=1, axis2=2).mean(1), inside(c, groups(history)).mean(1)
        by_round.append({t: (float(own[i]), float(mass[i])) for i, t in enumerate(rounds)})
    rounds = sorted(set.intersection(*map(set, by_round)))
    means = np.array([[one[t] for t in rounds] for one in by_round], np.float64).mean(0)
    group = groups(histories[0])
    uniform = float((group[:, None] == group[None, :]).mean())
    return Masses(column, row, len(histories), rounds, means[:, 0], means[:, 1], uniform)


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


def _draw_masses(found: Sequence[Masses]) -> Figure:
    """Draw a panel for each column: masses on the group (solid) and on the client itself (dashed) of each method."""
    columns = list(dict.fromkeys(m.column for m in found))
    methods = list(dict.fromkeys(m.row for m in found))
    with drawing():
        figure, axes = panels(len(columns), sharey=True)
        for ax, column in zip(axes, columns, strict=True):
            for m in (m for m in found if m.column == column):
                look = colour(methods.index(m.row))
                ax.plot(m.rounds, m.group, "o-", ms=3, color=look, label=f"{m.row}, its group")
                ax.plot(m.rounds, m.own, "o", ls=(0, (4, 2)), ms=3, color=look, label=f"{m.row}, itself")
                ax.axhline(m.uniform, lw=0.8, ls=":", color=INK, label="uniform, its group")
                whole_ticks(ax, m.rounds)
            ax.set_ylim(0, 1.02)
            ax.set_xlabel("round")
            title(ax, column)
        axes[0].set_ylabel("mass of a row")
        handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    return figure


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
