"""Analyses of features and of the loss around a model: FedNTD's appendices J, N and O."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from fedloom.analysis import (
    angle_density,
    angles,
    balanced_rows,
    features,
    gradient,
    hessian_eigen,
    perturbed,
    plane,
    to_circle,
    tsne,
)
from fedloom.core.errors import SettingError
from fedloom.core.types import Weights
from fedloom.data import Examples
from fedloom.report import analysis_maps_space as maps
from fedloom.report.comparison import amount, percent
from fedloom.report.finding import Finding, numbers, ratio, short
from fedloom.report.studied import Studied

Floats = npt.NDArray[np.float64]

_CLASSES = 6  # shown on the circle: more colours cannot be told apart
_POINTS = 4000  # for t-SNE, whose time grows faster than they do
_LOCALS = 10  # models of clients in t-SNE
_SMOOTH = 500  # training examples for the Hessian, and for the plane
_SIDE = 41  # points of the plane on a side, from -1 to 1
_STRENGTHS = (0.0, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0)
_SIGMAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)


def hypersphere(run: Studied) -> Finding:
    """Features of two units on the unit circle: global model, three local ones, aggregated (fig. 18)."""
    m = run.moment()
    test = _subset(run.test, 200)
    y = test.y.cpu().numpy()
    models = {"global": m.start, **{f"client {k}": w for k, w in list(zip(m.clients, m.trained, strict=True))[:3]}}
    models["aggregated"] = m.after
    points = {name: to_circle(features(run.network, w, test)) for name, w in models.items()}
    held = m.counts[: min(3, len(m.clients))].sum(0)
    classes = sorted(np.argsort(-held, kind="stable")[:_CLASSES].tolist())
    grid = np.linspace(-np.pi, np.pi, 361)
    rows, told = [], []
    densities: dict[str, dict[int, Floats]] = {}
    for name, found in points.items():
        densities[name] = {}
        for c in classes:
            a = angles(found[y == c])
            if len(a):
                densities[name][c] = angle_density(a, grid)
                rows += [[name, c, t, d] for t, d in zip(grid, densities[name][c], strict=True)]
        resultant = [np.abs(np.exp(1j * angles(found[y == c])).mean()) for c in densities[name]]
        told.append([name, np.mean(resultant) if resultant else np.nan, int((np.abs(found).max(1) == 0).sum())])
    flat = [[n, i, int(c), *xy] for n, found in points.items() for i, (c, xy) in enumerate(zip(y, found, strict=True))]
    counts = {f"client {k}": c for k, c in zip(m.clients, m.counts, strict=True)}
    heads = {"model": None, "concentration of classes (0 to 1)": ratio, "features at zero": None}
    return Finding(
        maps.circles(points, y, classes, densities, grid, counts),
        short(f"Features on the unit circle, round {m.number}", heads, told),
        [
            numbers("hypersphere", ["model", "class", "angle", "density"], rows),
            numbers("hypersphere-points", ["model", "example", "class", "x", "y"], flat),
        ],
        ["Concentration: length of the mean direction of a class, mean over the classes shown; 1 is one direction. "
         "Classes shown: those that the three clients hold most of. Bandwidth: Scott's rule. Classes are drawn on "
         "rings outside the circle so that none hides another; the radius means nothing."],
    )  # fmt: skip


def embedding(run: Studied) -> Finding:
    """One t-SNE of the test features of the global and the local models of a round (fig. 19 to 21)."""
    return joint({"client": run})


def joint(runs: Mapping[str, Studied]) -> Finding:
    """One t-SNE of the local models of several runs and of the one model that their clients received (fig. 19 to 21).

    Args:
        runs: by a word that stands before the numbers of their clients. Up to 10 clients of each are taken.

    Raises:
        SettingError: their clients did not receive the same model.
    """
    moments = {name: run.moment() for name, run in runs.items()}
    (run, m), *others = zip(runs.values(), moments.values(), strict=True)
    if not all(_same(other.start, m.start) for _, other in others):
        raise SettingError(
            f"one t-SNE of the runs {', '.join(runs)} needs clients that received the same model: begin all of them "
            "with the same --start, and look at round 1"
        )
    models, whose = {"global": m.start}, [""]
    for name, one in moments.items():
        mine = {f"{name} {k}": w for k, w in list(zip(one.clients, one.trained, strict=True))[:_LOCALS]}
        models |= mine
        whose += [name] * len(mine)
    classes = len(np.unique(run.test.y.cpu().numpy()))
    each = max(2, min(100, _POINTS // (len(models) * classes)))
    test = _subset(run.test, each)
    y = np.tile(test.y.cpu().numpy(), len(models))
    where = np.repeat(np.arange(len(models)), len(test))
    at = tsne(np.concatenate([features(run.network, w, test) for w in models.values()]))
    names = list(models)
    rows = [[names[k], int(c), *xy] for k, c, xy in zip(where, y, at, strict=True)]
    told = [["class", _neighbours(at, y)], ["model", _neighbours(at, where)]]
    return Finding(
        maps.embedding(at, y, where, names, whose),
        short(f"t-SNE of {len(at):,} features, round {m.number}", {"10 nearest of the same": None, "%": percent}, told),
        [numbers("tsne", ["model", "class", "x", "y"], rows)],
        [f"{each} test examples of each class through each of {len(models)} models; perplexity 30, PCA start, seed 0. "
         "Distances between far groups mean nothing."],
    )  # fmt: skip


def noise(run: Studied) -> Finding:
    """Loss and accuracy of the global model after a round under Gaussian noise (fig. 14)."""
    number, model = run.aggregated()
    test = _subset(run.test, max(1, 1000 // run.test.num_classes))
    found = {
        kind: perturbed(run.network, model, run.task, test, at, relative=kind == "relative")
        for kind, at in (("relative", _STRENGTHS), ("absolute", _SIGMAS))
    }
    rows = [
        [kind, s, r, f.loss[i, r], f.accuracy[i, r]]
        for kind, f in found.items()
        for i, s in enumerate(f.sigma)
        for r in range(f.loss.shape[1])
    ]
    told = [
        [kind, f"{s:g}", f.loss[i].mean(), f.accuracy[i].mean()]
        for kind, f in found.items()
        for i, s in enumerate(f.sigma)
    ]
    heads = {"noise": None, "strength": None, "loss": amount, "accuracy, %": percent}
    return Finding(
        maps.noise(found),
        short(f"Global model after round {number} under noise, mean of 5 draws", heads, told),
        [numbers("landscape-noise", ["noise", "strength", "draw", "loss", "accuracy"], rows)],
        [f"Relative: as a share of each tensor's norm. Absolute: standard deviation of each weight. {len(test):,} test "
         "examples, equally many of each class."],
    )  # fmt: skip


def curvature(run: Studied) -> Finding:
    """Training loss over the plane of the two leading Hessian eigenvectors of the global model (fig. 14)."""
    run.needs_classes("the Hessian of the loss")  # one that is 0 everywhere has no direction
    (number, model), train = run.aggregated(), run.job.federation.train
    some = _subset(train, max(1, _SMOOTH // train.num_classes))
    eigen = hessian_eigen(run.network, model, run.task, some)
    slopes = (eigen.vectors @ gradient(run.network, model, run.task, some)).double().cpu().numpy()
    grid = np.linspace(-1, 1, _SIDE)
    surface = plane(run.network, model, run.task, some, eigen.vectors, grid)
    rows = [[a, b, surface[i, j]] for i, a in enumerate(grid) for j, b in enumerate(grid)]
    each = zip(eigen.values, slopes, eigen.residuals, strict=True)
    told = [[i + 1, *values] for i, values in enumerate(each)]
    return Finding(
        maps.surface(grid, surface, slopes, eigen.values),
        short(
            f"Hessian of the global model after round {number}",
            {"eigenvalue number": None, "value": amount, "gradient . v": amount, "||H v - value v||": amount}, told,
        ),
        [
            numbers("landscape-hessian", ["along_first", "along_second", "loss"], rows),
            numbers("landscape-hessian-eigenvalues", ["number", "value", "slope", "residual"], told),
        ],
        [f"{len(some):,} training examples, equally many of each class, always the same, not augmented. Eigenvalues of "
         "largest magnitude; eigenvectors of unit norm, whose sign is arbitrary."],
    )  # fmt: skip


def _same(a: Weights, b: Weights) -> bool:
    one, other = ({**w.params, **w.buffers} for w in (a, b))
    return one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())


def _subset(examples: Examples, per_class: int) -> Examples:
    return examples.select(balanced_rows(examples.y.cpu().numpy(), per_class))


def _neighbours(points: Floats, labels: npt.NDArray[np.int64], k: int = 10) -> float:
    """Mean share of a point's k nearest that have its label."""
    total, squares = 0, np.square(points).sum(1)
    for start in range(0, len(points), 500):
        rows = slice(start, start + 500)
        away = squares[rows, None] + squares - 2 * points[rows] @ points.T
        away[np.arange(len(away)), np.arange(start, start + len(away))] = np.inf
        near = np.argpartition(away, k, axis=1)[:, :k]
        total += int((labels[near] == labels[rows, None]).sum())
    return total / (k * len(points))
