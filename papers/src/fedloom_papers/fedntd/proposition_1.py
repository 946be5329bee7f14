"""Proposition 1: distillation on what a client lacks makes gradients agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import balanced, class_gradients, complement, cosines, gram, shares
from fedloom.analyses.panels import cosine_map, panels, title
from fedloom.report.number_table import amount
from fedloom.report.style import FAINT, colour, drawing
from fedloom_papers.fedntd.proposition_3 import relabelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_PER_CLASS = 200  # training examples of each class for its gradient


def diversity_at(share: Floats, betas: npt.ArrayLike, gram: Floats | None = None) -> Floats:
    """Return Lambda(beta), [B], where clients' gradients mix those of classes (FedNTD, eq. 9).

    Client k's gradient is sum_c (p_c + beta * (1 - p_c) / (C - 1)) g_c.

    Args:
        share: class distributions p of K clients, [K, C].
        betas: [B].
        gram: inner products of the class gradients, [C, C]; None: orthogonal ones of equal norm.
    """
    G = np.eye(share.shape[1]) if gram is None else np.asarray(gram, np.float64)
    out = []
    for beta in np.atleast_1d(np.asarray(betas, np.float64)):
        a = share + beta * complement(share)  # [K, C]
        mean = a.mean(0)
        below = float(mean @ G @ mean)
        each = float(np.einsum("kc,cd,kd->k", a, G, a).mean())
        out.append(each / below if below > 0 else np.inf)
    return np.array(out)


@dataclass(frozen=True)
class ClosedForm:
    """Proposition 1 for orthogonal class gradients of equal norm and a mean class distribution that is uniform.

    Lambda(beta) = 1 + C V ((C - 1 - beta) / ((C - 1)(1 + beta)))^2: it falls until beta = C - 1, where it is 1, and on
    0 <= beta <= C/2 - 1 by at least M / (1 + beta)^2. It is also Lambda of these clients together with every
    relabelling of theirs by a rotation of the classes: `V` stays and their mean becomes uniform.
    """

    C: int
    V: float  # mean_k ||p^k||^2 - 1/C

    @property
    def M(self) -> float:  # noqa: N802 - the paper's symbol
        """2 C^2 V / (C - 1)^2: positive unless all clients are alike."""
        return 2 * self.C**2 * self.V / (self.C - 1) ** 2

    def at(self, betas: npt.ArrayLike) -> Floats:
        """Return gradient diversity Lambda at each beta, [B]."""
        b, C = np.asarray(betas, np.float64), self.C
        return np.asarray(1 + C * self.V * ((C - 1 - b) / ((C - 1) * (1 + b))) ** 2)

    def slope(self, betas: npt.ArrayLike) -> Floats:
        """Return the derivative of gradient diversity by beta, [B]."""
        b = np.asarray(betas, np.float64)
        return np.asarray(-self.M * (self.C / (1 + b) - 1) / (1 + b) ** 2)


def closed_form(share: Floats) -> ClosedForm:
    """Return proposition 1's closed form for clients with class distributions p, [K, C]."""
    C = share.shape[1]
    if C < 2:
        raise ValueError(f"proposition 1 needs at least two classes, got {C}")
    return ClosedForm(C=C, V=float(np.square(share).sum(1).mean() - 1 / C))


def holds() -> tuple[bool, str]:
    """Return whether the proposition holds of made-up clients, and the numbers in words.

    Their classes are drawn from Dirichlet distributions, each client in every rotation of the classes, so that the
    mean is uniform. The closed form is compared with diversity by its definition, and its slope with the bound.
    """
    generator = np.random.default_rng(0)
    worst, steep = 0.0, True
    for C in (3, 10):
        for alpha in (0.1, 1.0):
            share = relabelled(generator.dirichlet(np.full(C, alpha), 5))
            form, betas = closed_form(share), np.linspace(0, C / 2 - 1, 41)
            at = form.at(betas)
            worst = max(worst, float(np.abs(diversity_at(share, betas) / at - 1).max()))
            steep = steep and bool((form.slope(betas) <= -form.M / (1 + betas) ** 2 + 1e-12).all() and form.M > 0)
    said = "within 1e-9 of" if worst < 1e-9 else f"up to {worst:.1e} from"
    fall = "as fast as claimed" if steep else "NOT as fast as claimed"
    return worst < 1e-9 and steep, f"4 families of clients: diversity is {said} the closed form, which falls {fall}"


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure diversity by beta: closed form, orthogonal class gradients, and measured ones with their Gram matrix."""
    m, train = run.replayed(), run.job.federation.train
    chosen = balanced(train, _PER_CLASS)
    found, there = class_gradients(run.network, m.start, run.task, chosen)
    G = gram(found)
    share = shares(m.counts[:, there.numpy()])
    form = closed_form(share)
    betas = np.linspace(0, form.C - 1, 10 * (form.C - 1) + 1)
    curves = np.stack([form.at(betas), diversity_at(share, betas), diversity_at(share, betas, G)], axis=1)
    cosine = cosines(G)
    off = cosine[~np.eye(form.C, dtype=bool)]
    norms = np.sqrt(np.diag(G))
    of_sum = float(np.sqrt(max(G.sum(), 0.0)) / norms.sum())
    step = max(1, (len(betas) - 1) // 9)
    heads = {"beta": ratio, "closed form": amount, "orthogonal": amount, "measured": amount}
    rows = np.column_stack([betas, curves]).tolist()
    gram_rows = [[int(c), *row] for c, row in zip(there, G, strict=True)]
    return AnalysisResult(
        draw(betas, curves, there.tolist(), cosine),
        summary_table(
            f"Gradient diversity if clients had the gradients of proposition 1, round {m.number}", heads, rows[::step]
        ),
        [
            csv_table("proposition-1", ["beta", "closed_form", "orthogonal", "measured"], rows),
            csv_table("proposition-1-gram", ["class", *(str(int(c)) for c in there)], gram_rows),
        ],
        [
            "Closed form: class gradients orthogonal and of equal norm, clients' mean class distribution uniform. "
            "Orthogonal: these clients' own mean. Measured: the Gram matrix of class gradients at the received model.",
            f"Cosines between class gradients are {off.min():.2f} to {off.max():.2f}, mean {off.mean():.2f}; their "
            f"norms {norms.min():.3g} to {norms.max():.3g}; the norm of their sum is {100 * of_sum:.0f} % of the sum "
            "of their norms. Proposition 1 assumes cosines of 0 and equal norms.",
        ],
    )


def draw(betas: Floats, curves: Floats, classes: Sequence[int], between: Floats) -> Figure:
    """Draw diversity by beta: closed form, orthogonal, measured, [B, 3]; cosines between class gradients, [C, C]."""
    from matplotlib.ticker import LogLocator, NullFormatter

    with drawing():
        figure, axes = panels(2)
        labels = (
            "closed form (uniform mean, orthogonal)",
            "these clients, orthogonal gradients",
            "these clients, measured",
        )
        for i, (label, dash) in enumerate(zip(labels, ((0, (4, 2)), "-", "-"), strict=True)):
            axes[0].plot(betas, curves[:, i], color=colour((5, 0, 1)[i]), ls=dash, label=label)
        axes[0].axhline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)))
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[0].yaxis.set_minor_formatter(NullFormatter())
        axes[0].set_xlabel("β")
        axes[0].set_ylabel("gradient diversity Λ(β), log scale")
        axes[0].legend(loc="best")
        cosine_map(figure, axes[1], between, [str(c) for c in classes], "class")
        title(axes[1], "cosine between class gradients (0 is assumed)")
    return figure
