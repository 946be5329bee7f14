"""Figures of gradients, distillation and neurons, for analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.report.analysis_figures import bare, panels, title, whole_ticks
from fedloom.report.style import FAINT, INK, WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


def diversity(curve: Floats, clients: Sequence[int], between: Floats) -> Figure:
    """`curve`: round, clients, diversity, mean norm, norm of the mean, [T, 5]; cosines between clients, [K, K]."""
    with drawing():
        figure, axes = panels(2)
        axes[0].plot(curve[:, 0], curve[:, 2], "o-", ms=4, color=colour(0))
        axes[0].axhline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)))
        axes[0].set_ylim(bottom=0)
        axes[0].set_xlabel("round")
        axes[0].set_ylabel("gradient diversity Λ")
        whole_ticks(axes[0], curve[:, 0])
        title(axes[0], "at the model that the clients receive (1: all agree)")
        cosine_map(figure, axes[1], between, [str(k) for k in clients], "client")
        title(axes[1], f"cosine between clients' gradients, round {curve[-1, 0]:.0f}")
    return figure


def cosine_map(figure: Figure, axes: Axes, table: Floats, names: Sequence[str], what: str) -> None:
    """Cosines as colours, with their values where there is room."""
    n = len(table)
    image = axes.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="none")
    bare(axes)
    step = max(1, -(-n // 20))
    axes.set_xticks(range(0, n, step), names[::step])
    axes.set_yticks(range(0, n, step), names[::step])
    axes.set_xlabel(what)
    axes.set_ylabel(what)
    if n <= 12:
        for i in range(n):
            for j in range(n):
                if i != j and np.isfinite(table[i, j]):
                    ink = "white" if abs(table[i, j]) > 0.6 else "#1f2328"
                    axes.text(
                        j,
                        i,
                        f"{table[i, j]:.1f}".replace("-0.0", "0.0"),
                        ha="center",
                        va="center",
                        fontsize=7,
                        color=ink,
                    )
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=18, ticks=[-1, 0, 1])
    bar.outline.set_visible(False)


def proposition_1(betas: Floats, curves: Floats, classes: Sequence[int], between: Floats) -> Figure:
    """Diversity by beta: closed form, orthogonal, measured, [B, 3]; cosines between class gradients, [C, C]."""
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


def proposition_2(clients: Sequence[int], table: Floats, by_class: Floats) -> Figure:
    """`table` [K, 8]: full, true, not true, ...; `by_class`: true and not-true part, mean over clients, [2, C].

    The NTD loss is far smaller than KL: it has a panel and a scale of its own.
    """
    with drawing():
        figure, axes = panels(3, width_ratios=(1.3, 1, 1.3))
        x = np.arange(len(clients))
        for i, (column, label) in enumerate(((1, "true part"), (2, "not-true part"))):
            axes[0].bar(x + (i - 0.5) * 0.36, table[:, column], 0.34, color=colour(i), label=label)
        axes[0].hlines(table[:, 0], x - 0.39, x + 0.39, color=INK, lw=2, label="KL: true + not-true part")
        title(axes[0], "KL(global ‖ local), each client's examples")
        axes[1].bar(x, table[:, 6], 0.68, color=colour(2), label="NTD loss")
        title(axes[1], "NTD loss, the same examples")
        for ax, most in ((axes[0], 12), (axes[1], 8)):
            step = max(1, -(-len(clients) // most))
            ax.set_xticks(x[::step], [str(k) for k in clients[::step]])
            ax.set_xlabel("client")
        places = np.arange(by_class.shape[1])
        for i in (0, 1):
            axes[2].bar(places + (i - 0.5) * 0.36, by_class[i], 0.34, color=colour(i))
        axes[2].set_xlabel("output class")
        if len(places) <= 20:
            axes[2].set_xticks(places)
        title(axes[2], "contribution to KL of each output class,\nmean over clients")
        for ax in axes:
            ax.set_ylabel("nats")
            ax.axhline(0, color=FAINT, lw=0.8)
        figure.legend(loc="outside lower right", ncols=4)
    return figure


def proposition_3(steps: Floats, lines: Mapping[str, Floats], wrong: Floats) -> Figure:
    """E ||w_p' - w_p|| from uniform p (0) to other p (1): with the assumption, and the counterexample."""
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


def alignment(rows: Sequence[Sequence[Any]], layers: Sequence[str]) -> Figure:
    """Rows: layer, model, neurons, share, share of the living, ...; the aggregated model is the row of that name."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0], 1.3 + 0.62 * len(layers)))
        for place, layer in enumerate(layers):
            mine = [r for r in rows if r[0] == layer]
            for shift, column, number in ((-0.16, 3, 0), (0.16, 4, 1)):
                local = np.array([r[column] for r in mine if r[1] != "aggregated"], np.float64) * 100
                whole = [r[column] * 100 for r in mine if r[1] == "aggregated"]
                first = place == 0
                kind = ("all neurons", "alive in both")[number]
                at = np.full(len(local), place + shift)
                axes.plot(
                    local,
                    at,
                    "o",
                    ms=5,
                    alpha=0.45,
                    mew=0,
                    color=colour(number),
                    label=f"local, {kind}" if first else None,
                )
                axes.plot(
                    whole, [place + shift], "D", ms=7, mfc="white", mec=colour(number), mew=1.6,
                    label=f"aggregated, {kind}" if first else None,
                )  # fmt: skip
        axes.set_yticks(
            range(len(layers)), [f"{layer} ({next(r[2] for r in rows if r[0] == layer)})" for layer in layers]
        )
        axes.set_ylim(len(layers) - 0.5, -0.5)
        axes.set_xlim(-1, 101)
        axes.set_xlabel("neurons that prefer the same class as in the received model (%)")
        axes.set_ylabel("layer (neurons)")
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        figure.legend(loc="outside lower right", ncols=4)
    return figure
