"""Figures of features and of the loss around a model, for analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedloom.analysis import Noise, plane_density
from fedloom.report.analysis_figures import bare, panels, title
from fedloom.report.style import FAINT, INK, WIDE, colour, drawing, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_SHAPES = "o^sDvP"  # of runs
_MOST_NAMES = 21  # in a legend: a global model and ten of each of two runs


def circles(
    points: Mapping[str, Floats],
    y: Ints,
    classes: Sequence[int],
    densities: Mapping[str, Mapping[int, Floats]],
    grid: Floats,
    counts: Mapping[str, Ints],
) -> Figure:
    """For each model its features in the plane, shaded by density, and the density of their angle by class.

    `counts`: examples by class of the clients, by the names of their models.
    """
    from matplotlib.figure import Figure

    side = np.linspace(-1.4, 1.4, 70)
    cell = float(side[1] - side[0])
    edge = 1.4 + cell / 2
    at = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    with drawing():
        figure = Figure(figsize=(2.35 * len(points), 4.9), layout="constrained")
        axes = figure.subplots(2, len(points), height_ratios=(1.25, 1), sharex="row", sharey="row")
        for column, (name, found) in enumerate(points.items()):
            top, low = axes[0][column], axes[1][column]
            shown = np.isin(y, classes)
            density = plane_density(found[shown], at, blur=cell)  # a kernel may be far narrower than a cell
            if density is not None:
                top.imshow(
                    density.reshape(len(side), -1), extent=(-edge, edge, -edge, edge), origin="lower", cmap="Greys",
                    vmax=density.max() * 1.6, interpolation="bilinear",
                )  # fmt: skip
            for i, c in enumerate(classes):
                mine = found[y == c]
                spread = 1.08 + 0.05 * i  # a ring for each class, so that none hides another
                top.plot(*(mine.T * spread), "o", ms=2.2, mew=0, alpha=0.5, color=colour(i))
                if c in densities[name]:
                    low.plot(
                        grid, densities[name][c], color=colour(i), lw=1.4, label=f"class {c}" if column == 0 else None
                    )
            top.plot(np.cos(grid), np.sin(grid), color=FAINT, lw=0.8)
            top.set_aspect("equal")
            top.set_xlim(-1.45, 1.45)
            top.set_ylim(-1.45, 1.45)
            bare(top)
            top.set_xticks([])
            top.set_yticks([])
            title(top, plain(name + _holds(counts.get(name))))
            low.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
            low.set_xlabel("angle")
        axes[1][0].set_ylabel("density")
        figure.legend(loc="outside lower center", ncols=len(classes))
    return figure


def _holds(counts: Ints | None) -> str:
    """What stands below the name of a client's model."""
    held = [] if counts is None else np.flatnonzero(counts).tolist()
    listed = f"holds {', '.join(map(str, held))}" if len(held) <= 4 else f"holds {len(held)} classes"
    return f"\n{listed}" if held else ""


def embedding(at: Floats, y: Ints, where: Ints, names: Sequence[str], runs: Sequence[str]) -> Figure:
    """The same points twice: coloured by class, and by model.

    `where`: the model of each point; `names` and `runs`: of the models. The first is the global one, of no run (""), in
    black. Each run has a shape of its own; lightness goes with it in turn, so that two runs differ in both.
    """
    import matplotlib

    many = matplotlib.colormaps["tab20"]  # ten colours, dark and light
    shuffled = np.random.default_rng(0).permutation(len(at))  # no group is drawn over all others
    labels, known = np.unique(y), list(dict.fromkeys(runs[1:]))
    classes = {int(c): _Look(many((2 * i + (i >= 10)) % 20), "o", str(c)) for i, c in enumerate(labels)}
    models = {0: _Look(INK, "o", names[0])}
    for k, (name, run) in enumerate(zip(names[1:], runs[1:], strict=True), 1):
        number, place = known.index(run), runs[1:k].count(run)
        models[k] = _Look(many((2 * place + number % 2) % 20), _SHAPES[number % len(_SHAPES)], name)
    named = list(models.values())
    if len(named) > _MOST_NAMES:
        named = [named[0], *(_Look(FAINT, _SHAPES[i % len(_SHAPES)], run) for i, run in enumerate(known))]
    with drawing():
        figure, axes = panels(2, (WIDE[0], 5.2))
        several = [*classes.values()] if len(classes) <= _MOST_NAMES else []
        _groups(axes[0], at[shuffled], y[shuffled], classes, several, "by class")
        _groups(axes[1], at[shuffled], where[shuffled], models, named, "by model")
    return figure


@dataclass(frozen=True)
class _Look:
    colour: Any
    shape: str
    name: str

    @property
    def path(self) -> Any:
        from matplotlib.markers import MarkerStyle

        style = MarkerStyle(self.shape)
        return style.get_path().transformed(style.get_transform())


def _groups(
    axes: Axes, at: Floats, group: Ints, looks: Mapping[int, _Look], named: Sequence[_Look], heading: str
) -> None:
    size = 5 if len({look.shape for look in looks.values()}) == 1 else 9  # shapes are to be told apart
    points = axes.scatter(at[:, 0], at[:, 1], s=size, c=[looks[int(g)].colour for g in group], linewidths=0, alpha=0.8)
    paths = {g: look.path for g, look in looks.items()}
    points.set_paths([paths[int(g)] for g in group])
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    title(axes, heading)
    for look in named:
        axes.scatter([], [], s=22, color=look.colour, marker=look.shape, label=plain(look.name))
    if named:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=5, handletextpad=0.1, columnspacing=1.0)


def noise(found: Mapping[str, Noise]) -> Figure:
    """Loss and accuracy against the strength of noise, mean and range over draws, of each kind."""
    xlabels = {"relative": "noise, as a share of each tensor's norm", "absolute": "standard deviation of each weight"}
    with drawing():
        figure, axes = panels(len(found))
        for ax, (kind, f) in zip(axes, found.items(), strict=True):
            right = ax.twinx()
            for a, values, number in ((ax, f.loss, 1), (right, f.accuracy * 100, 0)):
                a.fill_between(f.sigma, values.min(1), values.max(1), color=colour(number), alpha=0.15, linewidth=0)
                a.plot(f.sigma, values.mean(1), "o-", ms=3.5, color=colour(number))
                a.set_ylim(bottom=0)
            ax.set_xlabel(xlabels[kind])
            ax.set_ylabel("loss", color=colour(1))
            right.set_ylabel("accuracy (%)", color=colour(0))
            right.set_ylim(0, 100)
            right.grid(False)
            title(ax, f"{kind} noise: mean and range over draws")
    return figure


def surface(grid: Floats, loss: Floats, slopes: Floats, eigenvalues: Floats) -> Figure:
    """The loss over the plane of two eigenvectors, `loss[i, j]` with i along the first, and both cuts through 0.

    `slopes`: of the loss along both at the model, [2].
    """
    with drawing():
        figure, axes = panels(2, (WIDE[0], 4.3))
        # rows of a contour are its y, here the second direction: transposed
        drawn = axes[0].contourf(grid, grid, loss.T, levels=24, cmap="YlGnBu_r")
        axes[0].contour(grid, grid, loss.T, levels=24, colors="white", linewidths=0.3)
        axes[0].plot([0], [0], "o", ms=6, mfc="white", mec="#B91C1C", mew=1.6)
        axes[0].set_xlabel("along the first eigenvector")
        axes[0].set_ylabel("along the second")
        axes[0].set_aspect("equal")
        bare(axes[0])
        bar = figure.colorbar(drawn, ax=axes[0], pad=0.02, aspect=22)
        bar.outline.set_visible(False)
        title(axes[0], "training loss (ring: the model)")
        middle = len(grid) // 2
        for i, cut in enumerate((loss[:, middle], loss[middle])):
            axes[1].plot(grid, cut, color=colour(i), label=f"eigenvector {i + 1}, eigenvalue {eigenvalues[i]:.3g}")
            bent = cut[middle] + slopes[i] * grid + 0.5 * eigenvalues[i] * np.square(grid)
            axes[1].plot(grid, bent, color=colour(i), lw=0.9, ls=(0, (3, 2)))
        axes[1].set_ylim(0, float(max(loss[:, middle].max(), loss[middle].max())) * 1.1)
        axes[1].set_xlabel("distance from the model")
        axes[1].set_ylabel("training loss")
        axes[1].axvline(0, color=FAINT, lw=0.8)
        figure.legend(loc="outside lower right", ncols=2)
        title(axes[1], "cuts through the model (dashed: second-order expansion)")
    return figure
