"""The loss over the plane of the two leading Hessian eigenvectors (FedNTD, fig. 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, by_class, csv_table, summary_table
from fedloom.analyses.measures import balanced, gradient, hessian_eigen, plane
from fedloom.analyses.panels import bare, panels, title
from fedloom.report.number_table import amount
from fedloom.report.style import FAINT, WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

_SMOOTH = 500  # training examples for the Hessian, and for the plane


_SIDE = 41  # points of the plane on a side, from -1 to 1


def measure(run: AnalysedRun) -> AnalysisResult:
    """Measure the training loss over the plane of the global model's two leading Hessian eigenvectors (fig. 14)."""
    run.require_classes("the Hessian of the loss")  # one that is 0 everywhere has no direction
    (number, model), train = run.aggregated(), run.job.federation.train
    some = balanced(train, max(1, _SMOOTH // train.num_classes))
    eigen = hessian_eigen(run.network, model, run.task, some)
    slopes = (eigen.vectors @ gradient(run.network, model, run.task, some)).double().cpu().numpy()
    grid = np.linspace(-1, 1, _SIDE)
    surface = plane(run.network, model, run.task, some, eigen.vectors, grid)
    rows = [[a, b, surface[i, j]] for i, a in enumerate(grid) for j, b in enumerate(grid)]
    each = zip(eigen.values, slopes, eigen.residuals, strict=True)
    summary = [[i + 1, *values] for i, values in enumerate(each)]
    return AnalysisResult(
        draw(grid, surface, slopes, eigen.values),
        summary_table(
            f"Hessian of the global model after round {number}",
            {"eigenvalue number": None, "value": amount, "gradient . v": amount, "||H v - value v||": amount}, summary,
        ),
        [
            csv_table("landscape-hessian", ["along_first", "along_second", "loss"], rows),
            csv_table("landscape-hessian-eigenvalues", ["number", "value", "slope", "residual"], summary),
        ],
        [f"{by_class(some, 'training')}, always the same, not augmented. Eigenvalues of largest magnitude; "
         "eigenvectors of unit norm, whose sign is arbitrary."],
    )  # fmt: skip


def draw(grid: Floats, loss: Floats, slopes: Floats, eigenvalues: Floats) -> Figure:
    """Draw the loss over the plane of two eigenvectors, and both cuts through 0.

    `loss[i, j]`: i along the first eigenvector, j along the second. `slopes`: of the loss along both at the model, [2].
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
