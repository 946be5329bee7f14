"""The class that each neuron of the last hidden layer prefers (FedNTD, appendix M, fig. 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.measures import class_activations, dead, preference
from fedloom.analyses.panels import bare, blank, title
from fedloom.report.number_table import percent
from fedloom.report.style import COLOURS, GRID, SOLID, WIDE, drawing

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Ints = npt.NDArray[np.int64]

RECEIVED, AGGREGATED = "received", "aggregated"
DEAD = -1  # in the place of a class


def measure(run: AnalysedRun) -> AnalysisResult:
    """Show which class each neuron of the last hidden layer prefers, in every model of a round (fig. 17).

    It is the class on whose test examples its mean activation is highest (eq. 19). A dead neuron prefers none.
    """
    m = run.replayed()
    models = {RECEIVED: m.start, **{f"client {k}": w for k, w in zip(m.clients, m.trained, strict=True)}}
    models[AGGREGATED] = m.after
    found: dict[str, Ints] = {}
    layer = ""
    for name, weights in models.items():
        *_, (layer, means) = class_activations(run.network, weights, run.test).items()
        found[name] = np.where(dead(means), DEAD, preference(means))
    classes = run.test.num_classes
    table = np.stack(list(found.values()), 1)
    rows = [[m.number, i, *map(int, mine)] for i, mine in enumerate(table)]
    summary: list[list[Any]] = []
    for name, mine in found.items():
        by_class = np.bincount(mine[mine != DEAD], minlength=classes)
        most = int(by_class.argmax())
        kept = np.nan if name == RECEIVED else kept_share(found[RECEIVED], mine)
        summary.append([name, kept, int((by_class > 0).sum()), most, int(by_class[most]), int((mine == DEAD).sum())])
    heads = {"model": None, "as received, %": percent, "classes preferred": None, "most preferred": None}
    return AnalysisResult(
        draw({f"layer {layer}, {len(rows)} neurons": found}, classes),
        summary_table(
            f"Classes that the neurons of {layer} prefer, round {m.number}",
            heads | {"by neurons": None, "dead": None},
            summary,
        ),
        [csv_table("class-preference", ["round", "neuron", *found], rows)],
        [
            "On the test set, after the non-linearity; the class of a dead neuron is -1. As received: of the neurons "
            "that are alive in both models, those that prefer the same class. The figure sorts neurons by the class "
            "that they prefer in the received model."
        ],
    )


def kept_share(received: Ints, other: Ints) -> float:
    """Return the share of neurons, alive in both models, that prefer the same class; NaN where there are none."""
    alive = (received != DEAD) & (other != DEAD)
    return float((received == other)[alive].mean()) if alive.any() else float("nan")


def preferences_of(rows: Sequence[Mapping[str, str]]) -> dict[str, Ints]:
    """Return the classes that neurons prefer in each model, of the rows of class-preference.csv.

    Raises:
        LookupError: there are no rows.
        ValueError: a model is missing, or a cell is no class.
    """
    models = [name for name in rows[0] if name not in ("round", "neuron")]
    out = {name: np.array([int(row[name]) for row in rows], np.int64) for name in models}
    if not {RECEIVED, AGGREGATED} <= out.keys() or min(mine.min() for mine in out.values()) < DEAD:
        raise ValueError(f"there must be {RECEIVED} and {AGGREGATED}, and classes from 0, or {DEAD} of dead neurons")
    return out


def draw(maps: Mapping[str, Mapping[str, Ints]], classes: int, columns: int = 1) -> Figure:
    """Draw panels by title: a row for each model, a column for each neuron, its colour the class that it prefers.

    Neurons of a panel are sorted by their class in its received model, dead ones last. A panel without models is left
    blank. `columns`: panels beside each other.
    """
    from matplotlib.figure import Figure

    lines = len(maps) // columns
    models = max(map(len, maps.values()))
    with drawing():
        shades = _colours(classes)
        height = 1.1 + lines * (0.6 + 0.2 * models)
        figure = Figure(figsize=(WIDE[0] * (1.0 if columns == 1 else 1.4), height), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
        for ax, (text, found) in zip(axes.flat, maps.items(), strict=True):
            title(ax, text)
            if not found:
                blank(ax, "not analysed")
                continue
            received = found[RECEIVED]
            order = np.argsort(np.where(received == DEAD, classes, received), kind="stable")
            table = np.array([mine[order] for mine in found.values()])
            image = ax.imshow(
                np.ma.masked_equal(table, DEAD), aspect="auto", cmap=shades, vmin=-0.5, vmax=classes - 0.5,
                interpolation="none",
            )  # fmt: skip
            bare(ax)
            ax.set_xticks([])
            ax.set_yticks(range(len(found)), [_label(name, received, mine) for name, mine in found.items()])
        axes[-1][0].set_xlabel("neurons, by the class that they prefer in the received model")
        bar = figure.colorbar(image, ax=list(axes.flat), pad=0.01, aspect=30, label="class preferred (grey: dead)")
        bar.outline.set_visible(False)
        if classes <= 20:
            bar.set_ticks(list(range(classes)))
    return figure


def _label(name: str, received: Ints, mine: Ints) -> str:
    """Return what stands beside a row: the model and, of others than the received one, the share that is kept."""
    kept = kept_share(received, mine)
    return name if name == RECEIVED or not np.isfinite(kept) else f"{name}, {percent(kept)} %"


def _colours(classes: int) -> Colormap:
    """Return a colour for each class, and grey for dead neurons."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    told_apart = classes <= SOLID
    shades = ListedColormap(COLOURS[:classes]) if told_apart else matplotlib.colormaps["turbo"].resampled(classes)
    return shades.with_extremes(bad=GRID)
