"""Proposition 3: how far the optimum of one client is from those of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import shares
from fedloom.analyses.panels import panels, title
from fedloom.report.style import colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def mean_optimum(share: npt.ArrayLike, optima: npt.ArrayLike) -> Floats:
    """Return w_p = sum_c p_c w_c, [..., d]: where the bound of proposition 3 is least. `optima`: the w_c, [C, d]."""
    return np.asarray(np.asarray(share, np.float64) @ np.asarray(optima, np.float64))


def smooth_bound(
    w: npt.ArrayLike, share: npt.ArrayLike, optima: npt.ArrayLike, least: npt.ArrayLike, smoothness: float
) -> float:
    """Return sum_c p_c L_c(w_c) + lambda/2 sum_c p_c ||w - w_c||^2, which L(w) = sum_c p_c L_c(w) never exceeds.

    Args:
        w: [d].
        share: p, [C].
        optima: w_c, where each class loss is least, [C, d].
        least: L_c(w_c), [C].
        smoothness: lambda, of which every class loss is smooth.
    """
    p, away = np.asarray(share, np.float64), np.asarray(w, np.float64) - np.asarray(optima, np.float64)
    return float(p @ np.asarray(least, np.float64) + smoothness / 2 * p @ np.square(away).sum(1))


def expected_distance(share: npt.ArrayLike, clients: npt.ArrayLike, optima: npt.ArrayLike) -> float:
    """Return E ||w_p' - w_p|| over clients p' [K, C], from a model at w_p (FedNTD, proposition 3).

    The proposition: for a family of clients that does not change when classes are permuted, it is least where p is
    uniform. That assumes optima w_c that no permutation changes either (equidistant ones). Without it, it is
    false: see `COUNTEREXAMPLE`.
    """
    there, here = mean_optimum(clients, optima), mean_optimum(share, optima)
    return float(np.linalg.norm(there - here, axis=-1).mean())


def relabelled(clients: npt.ArrayLike) -> Floats:
    """Return clients p [K, C] in all rotations of the classes, [K * C, C]: a family that no rotation changes."""
    table = np.asarray(clients, np.float64)
    return np.concatenate([np.roll(table, shift, axis=1) for shift in range(table.shape[1])])


@dataclass(frozen=True)
class Family:
    """Clients p' [K, C] and optima of the class losses [C, d]."""

    clients: Floats
    optima: Floats


COUNTEREXAMPLE = Family(clients=np.eye(3), optima=np.array([[0.0], [0.0], [1.0]]))


def holds_as_printed() -> tuple[bool, str]:
    """Return whether uniform classes are best for `COUNTEREXAMPLE`, and the numbers in words."""
    family = COUNTEREXAMPLE
    uniform, other = (
        expected_distance(share, family.clients, family.optima) for share in (np.full(3, 1 / 3), [0.5, 0.5, 0.0])
    )
    return uniform <= other, (
        f"classes with optima 0, 0, 1 and clients of one class each: {uniform:.3f} for uniform classes, {other:.3f} "
        "for p = (1/2, 1/2, 0)"
    )


def holds_equidistant() -> tuple[bool, str]:
    """Return whether uniform classes are best among 1,000 drawn ones, and the numbers in words."""
    generator = np.random.default_rng(0)
    family = relabelled(generator.dirichlet(np.full(5, 0.3), 4))
    uniform = expected_distance(np.full(5, 0.2), family, np.eye(5))
    others = [expected_distance(p, family, np.eye(5)) for p in generator.dirichlet(np.ones(5), 1000)]
    return uniform <= min(others), f"{uniform:.3f} for uniform classes, at least {min(others):.3f} for 1,000 others"


def measure(run: AnalysedRun) -> AnalysisResult:
    """Compute expected distance to clients' optima as p leaves uniform, with and without assumption (proposition 3)."""
    run.require_classes("proposition 3")
    m = run.replayed()
    steps = np.linspace(0, 1, 41)
    C = m.counts.shape[1]
    family = relabelled(shares(m.counts))
    corners = {
        "a class": np.eye(C)[0],
        "two classes": (np.eye(C)[0] + np.eye(C)[1]) / 2,
        "a client": shares(m.counts)[0],
    }
    lines = {
        name: np.array([expected_distance((1 - s) / C + s * end, family, np.eye(C)) for s in steps])
        for name, end in corners.items()
    }
    end = np.array([0.5, 0.5, 0.0])
    wrong = np.array(
        [expected_distance((1 - s) / 3 + s * end, COUNTEREXAMPLE.clients, COUNTEREXAMPLE.optima) for s in steps]
    )
    rising = all(bool((line >= line[0] - 1e-12).all()) for line in lines.values())
    rows = [[s, *(line[i] for line in lines.values()), wrong[i]] for i, s in enumerate(steps)]
    names = ["step", *(f"towards_{name.replace(' ', '_')}" for name in lines), "counterexample"]
    summary = [["equidistant optima, " + n, line[0], line[-1]] for n, line in lines.items()]
    summary.append(["counterexample, optima 0, 0, 1", wrong[0], wrong[-1]])
    return AnalysisResult(
        draw(steps, lines, wrong),
        summary_table(
            "E ||w_p' - w_p||", {"family and where p goes": None, "p uniform": ratio, "p there": ratio}, summary
        ),
        [csv_table("proposition-3", names, rows)],
        [
            "Assumption: optima of the class losses that no permutation of classes changes (equidistant), and a family "
            f"of clients that no rotation of the classes changes (those of round {m.number}, each in every rotation). "
            f"Then uniform p is best: {'so it is here' if rising else 'NOT SO HERE'}.",
            "Without the assumption it is false: C = 3, optima 0, 0, 1, clients of one class each: uniform p gives "
            "4/9, p = (1/2, 1/2, 0) gives 1/3.",
        ],
    )


def draw(steps: Floats, lines: Mapping[str, Floats], wrong: Floats) -> Figure:
    """Draw E ||w_p' - w_p|| from uniform p (0) to other p (1): with the assumption, and the counterexample."""
    with drawing():
        figure, axes = panels(2, sharex=True)
        for i, (name, line) in enumerate(lines.items()):
            dash = "-" if i + 1 < len(lines) else (0, (4, 3))  # a client of two classes goes where two classes do
            axes[0].plot(steps, line, color=colour(i), ls=dash, label=f"towards {name}")
        axes[0].legend(loc="best")
        title(axes[0], "equidistant optima: uniform p is best")
        axes[1].plot(steps, wrong, color=colour(1))
        for place, text, shift in ((0, "4/9", (10, 4)), (-1, "1/3", (-24, 10))):
            axes[1].annotate(text, (steps[place], wrong[place]), xytext=shift, textcoords="offset points")
        title(axes[1], "optima 0, 0, 1: p = (½, ½, 0) is better")
        for ax in axes:
            ax.set_xlabel("from uniform p (0) to another p (1)")
            ax.set_ylabel("E ‖w(p′) − w(p)‖")
            ax.set_ylim(0, 1.12 * ax.get_ylim()[1])
    return figure
