"""Features of two units on the unit circle (appendix N, fig. 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, ratio, summary_table
from fedloom.analyses.measures import balanced, features
from fedloom.analyses.measures.features import sklearn
from fedloom.analyses.panels import bare, title
from fedloom.report.style import FAINT, colour, drawing, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CLASSES = 6  # shown on the circle: more colours cannot be told apart


def to_circle(points: npt.ArrayLike) -> Floats:
    """Move points [N, 2] onto the unit circle; the zero vector, which has no direction, stays.

    Raises:
        ValueError: these are no points in the plane.
    """
    table = np.asarray(points, np.float64)
    if table.ndim != 2 or table.shape[1] != 2:
        raise ValueError(
            f"the circle needs features of 2 units, [N, 2], got {list(table.shape)}: train the model hypersphere_cnn"
        )
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    return np.asarray(table / np.where(norms > 0, norms, 1.0))


def angles(points: npt.ArrayLike) -> Floats:
    """Return atan2(y, x) of points [N, 2] other than zero, in (-pi, pi]."""
    table = to_circle(points)
    table = table[np.abs(table).max(1) > 0]
    return np.asarray(np.arctan2(table[:, 1], table[:, 0]))


def angle_density(angle: npt.ArrayLike, at: npt.ArrayLike) -> Floats:
    """Return the Gaussian density of angles [N] around the circle, at the angles `at` [M]; it integrates to 1.

    The bandwidth is Scott's n^(-1/5) times the circular standard deviation sqrt(-2 log R), which is taken as that of
    uniform angles, pi / sqrt(3), where it is larger.

    Raises:
        SettingError: scikit-learn is not installed.
        ValueError: there are no angles.
    """
    a, grid = np.asarray(angle, np.float64), np.asarray(at, np.float64)
    if not len(a):
        raise ValueError("a density needs angles, got none")
    R = min(1.0, float(np.abs(np.exp(1j * a).mean())))
    spread = min(np.sqrt(-2 * np.log(R)) if R > 0 else np.inf, np.pi / np.sqrt(3))
    width = max(float(spread) * len(a) ** -0.2, 1e-2)  # equal angles: a narrow peak, not an infinite one
    turns = 2 * np.pi * np.arange(-2, 3)
    around = (a[:, None] + turns).reshape(-1, 1)  # each angle and its copies, a turn apart
    return np.asarray(len(turns) / width * _gaussians(around / width, grid[:, None] / width))


def plane_density(points: npt.ArrayLike, at: npt.ArrayLike, blur: float = 0.0) -> Floats | None:
    """Return the Gaussian kernel density (Scott's rule) of points at places, [M]; None where points lie on a line.

    Args:
        points: [N, 2].
        at: [M, 2].
        blur: standard deviation of a smoothing on top. That of a pixel's width makes a raster's sum right, which
            kernels narrower than a pixel would fall through; with it points may lie on a line.

    Raises:
        SettingError: scikit-learn is not installed.
    """
    table, places = np.asarray(points, np.float64), np.asarray(at, np.float64)
    spread = np.linalg.svd(table - table.mean(0), compute_uv=False) if len(table) > 2 else np.zeros(1)
    if spread[-1] <= 1e-6 * spread[0] and not (blur > 0 and len(table)):
        return None
    kernel = np.cov(table.T) * len(table) ** (-1 / 3) if len(table) > 1 else np.zeros((2, 2))
    white = np.linalg.inv(np.linalg.cholesky(kernel + blur**2 * np.eye(2)))
    return float(np.linalg.det(white)) * _gaussians(table @ white.T, places @ white.T)


def _gaussians(points: Floats, at: Floats) -> Floats:
    """Return the mean of Gaussians of width 1 around points [N, D] at places [M, D]; it integrates to 1."""
    return np.asarray(np.exp(sklearn("neighbors").KernelDensity(bandwidth=1.0).fit(points).score_samples(at)))


def measure(run: AnalysedRun) -> AnalysisResult:
    """Place features of two units on the unit circle: global model, three local ones, aggregated (fig. 18).

    The density of their angle is drawn too.
    """
    m = run.replayed()
    test = balanced(run.test, 200)
    y = test.y.cpu().numpy()
    models = {"global": m.start, **{f"client {k}": w for k, w in list(zip(m.clients, m.trained, strict=True))[:3]}}
    models["aggregated"] = m.after
    points = {name: to_circle(features(run.network, w, test)) for name, w in models.items()}
    held = m.counts[: min(3, len(m.clients))].sum(0)
    classes = sorted(np.argsort(-held, kind="stable")[:_CLASSES].tolist())
    grid = np.linspace(-np.pi, np.pi, 361)
    rows, summary = [], []
    densities: dict[str, dict[int, Floats]] = {}
    for name, found in points.items():
        densities[name] = {}
        for c in classes:
            a = angles(found[y == c])
            if len(a):
                densities[name][c] = angle_density(a, grid)
                rows += [[name, c, t, d] for t, d in zip(grid, densities[name][c], strict=True)]
        resultant = [np.abs(np.exp(1j * angles(found[y == c])).mean()) for c in densities[name]]
        summary.append([name, np.mean(resultant) if resultant else np.nan, int((np.abs(found).max(1) == 0).sum())])
    flat = [[n, i, int(c), *xy] for n, found in points.items() for i, (c, xy) in enumerate(zip(y, found, strict=True))]
    counts = {f"client {k}": c for k, c in zip(m.clients, m.counts, strict=True)}
    heads = {"model": None, "concentration of classes (0 to 1)": ratio, "features at zero": None}
    return AnalysisResult(
        draw(points, y, classes, densities, grid, counts),
        summary_table(f"Features on the unit circle, round {m.number}", heads, summary),
        [
            csv_table("hypersphere", ["model", "class", "angle", "density"], rows),
            csv_table("hypersphere-points", ["model", "example", "class", "x", "y"], flat),
        ],
        ["Concentration: length of the mean direction of a class, mean over the classes shown; 1 is one direction. "
         "Classes shown: those that the three clients hold most of. Bandwidth: Scott's rule. Classes are drawn on "
         "rings outside the circle so that none hides another; the radius means nothing."],
    )  # fmt: skip


def draw(
    points: Mapping[str, Floats],
    y: Ints,
    classes: Sequence[int],
    densities: Mapping[str, Mapping[int, Floats]],
    grid: Floats,
    counts: Mapping[str, Ints],
) -> Figure:
    """Draw for each model its features in the plane, shaded by density, and the density of their angle by class.

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
    """Return what stands below the name of a client's model: its classes, or their number where there are many."""
    held = [] if counts is None else np.flatnonzero(counts).tolist()
    listed = f"holds {', '.join(map(str, held))}" if len(held) <= 4 else f"holds {len(held)} classes"
    return f"\n{listed}" if held else ""
