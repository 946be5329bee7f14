"""Figures of accuracies by class and client, for analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analysis import Correlation, LocalAccuracy, known_mean
from fedloom.report.style import FAINT, INK, WIDE, colour, drawing, even_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

IN, OUT, WHOLE = 0, 1, 6  # colours of in-local, out-local and all classes
_DOTS = (0, (1, 1.2))


def panels(count: int, size: tuple[float, float] = WIDE, **more: Any) -> tuple[Figure, list[Axes]]:
    """Several axes beside each other; call within `drawing`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06))
    return figure, list(np.atleast_1d(figure.subplots(1, count, **more)))


def title(axes: Axes, text: str) -> None:
    """Above a panel, on its left."""
    axes.set_title(text, loc="left", fontsize=10.5, color=INK)


def whole_ticks(axes: Axes, values: Sequence[int] | npt.NDArray[Any]) -> None:
    """Rounds and epochs have no fractions: ticks at the multiples of a round number, from the first to the last."""
    first, last = int(values[0]), int(values[-1])
    step = even_step(last - first)
    axes.set_xticks(range(-(-first // step) * step, last + 1, step))


def bare(axes: Axes) -> None:
    """For images: no grid, no frame."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def class_maps(rounds: Sequence[int], per_class: Floats, parts: Floats) -> Figure:
    """Accuracy by class and round, and the rows as shares of their sum."""
    import matplotlib

    shades = matplotlib.colormaps["YlGnBu"].with_extremes(bad="#d1d5db")
    with drawing():
        figure, axes = panels(2, (WIDE[0], min(6.0, 1.6 + 0.2 * per_class.shape[1])), sharey=True)
        t = np.asarray(rounds, np.float64)  # not every round needs to be among them
        between = (t[1:] + t[:-1]) / 2
        edges = np.array([t[0] - 0.5, *between, t[-1] + 0.5])
        sides = np.arange(per_class.shape[1] + 1) - 0.5
        for ax, table, text, top in (
            (axes[0], per_class, "accuracy (%)", 1.0),
            (axes[1], parts, "share of the sum over classes (%)", max(float(np.nanmax(parts)), 1e-9)),
        ):
            image = ax.pcolormesh(
                edges, sides, np.ma.masked_invalid(table.T * 100), cmap=shades, vmin=0, vmax=100 * top, rasterized=True
            )
            bare(ax)
            title(ax, text)
            whole_ticks(ax, rounds)
            ax.set_xlabel("round")
            bar = figure.colorbar(image, ax=ax, pad=0.02, aspect=18)
            bar.outline.set_visible(False)
        axes[0].set_ylabel("class")
        axes[0].set_ylim(per_class.shape[1] - 0.5, -0.5)
        if per_class.shape[1] <= 20:
            axes[0].set_yticks(range(per_class.shape[1]))
    return figure


def consistency(rounds: Sequence[int], cosine: Floats) -> Figure:
    """Cosine between neighbouring rounds, over rounds."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        axes.axhline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)))
        axes.plot(rounds, cosine, "o-", ms=3.5, color=colour(0), clip_on=False)
        axes.set_ylim(min(0.0, float(np.nanmin(cosine, initial=0.0))), 1.04)
        axes.set_xlabel("round")
        axes.set_ylabel("cosine with the round before")
        whole_ticks(axes, rounds)
    return figure


def forgetting(curve: Floats, by_class: Floats) -> Figure:
    """`curve`: round, F (t < T), F (t <= T), F / mean peak, accuracy, [T, 5]; `by_class`: F in the end, [C]."""
    with drawing():
        figure, axes = panels(2)
        lines = ((1, "F, over earlier rounds (t < T)", 0, "-"), (2, "F, over all rounds (t ≤ T)", 5, (0, (4, 2))))
        for column, label, number, dash in (*lines, (3, "F / mean peak", 1, "-")):
            dots = "o" if len(curve) <= 12 else None
            axes[0].plot(
                curve[:, 0], curve[:, column] * 100, color=colour(number), ls=dash, marker=dots, ms=3.5, label=label
            )
        figure.legend(loc="outside lower left", ncols=3)
        axes[0].axhline(0, color=FAINT, lw=0.8)
        low, high = axes[0].get_ylim()
        axes[0].set_ylim(
            max(low, -60), high
        )  # of the first rounds, of which little is known, the share can be anything
        axes[0].set_xlabel("round T")
        axes[0].set_ylabel("points, and % of the peak")
        whole_ticks(axes[0], curve[:, 0])
        title(axes[0], "forgetting over rounds")
        axes[1].bar(range(len(by_class)), by_class * 100, color=[colour(0 if f >= 0 else 2) for f in by_class])
        axes[1].axhline(0, color=FAINT, lw=0.8)
        axes[1].set_xlabel("class")
        axes[1].set_ylabel("points below its best earlier round")
        if len(by_class) <= 20:
            axes[1].set_xticks(range(len(by_class)))
        title(axes[1], f"by class after round {curve[-1, 0]:.0f} (below 0: at its best)")
    return figure


def local_accuracy(
    clients: Sequence[int], before: LocalAccuracy, after: LocalAccuracy, curves: Mapping[str, Floats]
) -> Figure:
    """Left: the clients of the last round; right, where there are several, means by `round`, [T] each.

    Drawn of `curves`: {in,out}_{before_mean,after_mean,aggregated} and accuracy_aggregated.
    """
    rounds = curves["round"]
    with drawing():
        figure, axes = panels(2 if len(rounds) > 1 else 1)
        moves(
            axes[0], clients, {"in-local": (before.inside, after.inside), "out-local": (before.outside, after.outside)}
        )
        title(axes[0], f"clients of round {rounds[-1]}: before (ring) and after (dot)")
        axes[0].set_ylabel("accuracy (%)")
        for when, style in (("before_mean", (0, (4, 2))), ("after_mean", "-"), ("aggregated", _DOTS)):
            for where, number in (("in", IN), ("out", OUT)):
                line, name = curves[f"{where}_{when}"] * 100, f"{where}-local, {when.removesuffix('_mean')}"
                if len(rounds) > 1:
                    axes[1].plot(rounds, line, ls=style, marker="o", ms=3.5, color=colour(number), label=name)
                if when == "aggregated":
                    axes[0].axhline(line[-1], ls=style, lw=1.3, color=colour(number), label=name)
        if len(rounds) > 1:
            whole = curves["accuracy_aggregated"] * 100
            axes[1].plot(
                rounds, whole, marker="o", ms=3.5, color=colour(WHOLE), lw=1.3, label="all classes, aggregated"
            )
            axes[1].set_xlabel("round")
            axes[1].set_ylim(0, 102)
            whole_ticks(axes[1], rounds)
            title(axes[1], "mean over the clients of a round")
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower right", ncols=4, handlelength=2.4)
    return figure


def by_epoch(inside: Floats, outside: Floats) -> Figure:
    """Means over clients and, faint, each client, by local epoch from 0 (before training), [E + 1, K] each."""
    with drawing():
        figure, (axes,) = panels(1, (WIDE[0] * 0.62, WIDE[1]))
        epochs = np.arange(len(inside))
        for table, name, number in ((inside, "in-local", IN), (outside, "out-local", OUT)):
            axes.plot(epochs, table * 100, color=colour(number), lw=0.7, alpha=0.35)
            mean = np.array([known_mean(row) for row in table])
            axes.plot(epochs, mean * 100, "o-", ms=4, color=colour(number), label=f"{name}, mean")
        axes.set_xlabel("local epochs (0: the global model)")
        axes.set_ylabel("accuracy (%)")
        axes.set_ylim(0, 102)
        whole_ticks(axes, epochs)
        figure.legend(loc="outside lower right", ncols=2)
    return figure


def personal(clients: Sequence[int], table: Floats) -> Figure:
    """Own examples before and after, test examples of the client's classes before and after, [K, 4]."""
    with drawing():
        figure, (axes,) = panels(1)
        names = ("own training examples", "test examples, own classes")
        moves(axes, clients, {name: (table[:, 2 * i], table[:, 2 * i + 1]) for i, name in enumerate(names)})
        title(axes, "each client before (ring) and after (dot) its local training")
        figure.legend(loc="outside lower right", ncols=2)
        axes.set_ylabel("accuracy (%)")
    return figure


def moves(axes: Axes, clients: Sequence[int], series: dict[str, tuple[Floats, Floats]]) -> None:
    """For each client, from before to after in each series."""
    x = np.arange(len(clients))
    for i, (name, (before, after)) in enumerate(series.items()):
        at = x + (i - (len(series) - 1) / 2) * 0.28
        axes.vlines(at, before * 100, after * 100, color=colour(i), lw=1.2, alpha=0.6)
        axes.plot(at, after * 100, "o", ms=5, mew=0, color=colour(i), label=name, clip_on=False)
        axes.plot(at, before * 100, "o", ms=8.5, mfc="none", mec=colour(i), clip_on=False)  # seen around an equal dot
    step = max(1, -(-len(clients) // 20))
    axes.set_xticks(x[::step], [str(k) for k in clients[::step]])
    axes.set_xlabel("client")
    axes.set_ylim(0, 102)


def divergence(table: Floats, found: Correlation) -> Figure:
    """Round, client, L1 and L2 of the distributions' distance, L1 and L2 of the weights', [n, 6].

    Clients without a distance of distributions, a NaN, are left out.
    """
    table = table[np.isfinite(table).all(1)]
    rounds = np.unique(table[:, 0])
    with drawing():
        figure, axes = panels(2)
        strength = 0.15 + 0.85 * (table[:, 0] - rounds[0] + 1) / (rounds[-1] - rounds[0] + 1)
        axes[0].scatter(table[:, 3], table[:, 5], s=26, color=colour(0), alpha=strength, linewidths=0)
        axes[0].set_xlabel("distance of distributions, L2: ‖Â − p‖")
        axes[0].set_ylabel("divergence of weights, L2: ‖w − wₖ‖")
        axes[0].grid(True, axis="x")
        pearson, spearman = (f"{r:.2f}" if np.isfinite(r) else "–" for r in (found.pearson, found.spearman))
        title(axes[0], f"Pearson {pearson}, Spearman {spearman}; darker: later rounds")
        for column, name, number in ((5, "weights", 0), (3, "distributions", 1)):
            mean = np.array([table[table[:, 0] == t, column].mean() for t in rounds])
            axes[1].plot(
                rounds, mean / mean[0] if mean[0] > 0 else mean, "o-", ms=3.5, color=colour(number), label=name
            )
        axes[1].set_xlabel("round")
        axes[1].set_ylabel(f"mean, as a multiple of round {rounds[0]:.0f}")
        axes[1].set_ylim(bottom=0)
        axes[1].legend(loc="best")
        whole_ticks(axes[1], rounds)
        title(axes[1], "both over rounds")
    return figure
