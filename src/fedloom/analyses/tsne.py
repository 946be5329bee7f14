"""Features of the models of a round in the plane by t-SNE (FedNTD, fig. 19 to 21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, by_class, csv_table, summary_table
from fedloom.analyses.measures import balanced, features, tsne
from fedloom.analyses.panels import bare, panels, title
from fedloom.core.errors import SettingError
from fedloom.core.types import Weights
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, INK, WIDE, drawing, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_POINTS = 4000  # for t-SNE, whose time grows faster than they do


_LOCALS = 10  # models of clients in t-SNE


_SHAPES = "o^sDvP"  # of runs


_MOST_NAMES = 21  # in a legend: a global model and ten of each of two runs


def measure(run: AnalysedRun) -> AnalysisResult:
    """Place test features of the global and the local models of a round in one plane by t-SNE (fig. 19 to 21).

    Up to 10 local models are placed.
    """
    return joint_tsne({"client": run})


def joint_tsne(runs: Mapping[str, AnalysedRun]) -> AnalysisResult:
    """Place local models of several runs, and the one model that their clients received, by one t-SNE (fig. 19 to 21).

    Args:
        runs: by a word that stands before the numbers of their clients. Up to 10 clients of each are taken.

    Raises:
        SettingError: their clients did not receive the same model.
    """
    moments = {name: run.replayed() for name, run in runs.items()}
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
    test = balanced(run.test, each)
    y = np.tile(test.y.cpu().numpy(), len(models))
    where = np.repeat(np.arange(len(models)), len(test))
    at = tsne(np.concatenate([features(run.network, w, test) for w in models.values()]))
    names = list(models)
    rows = [[names[k], int(c), *xy] for k, c, xy in zip(where, y, at, strict=True)]
    summary = [["class", _neighbours(at, y)], ["model", _neighbours(at, where)]]
    heads = {"10 nearest of the same": None, "%": percent}
    return AnalysisResult(
        draw(at, y, where, names, whose),
        summary_table(f"t-SNE of {len(at):,} features, round {m.number}", heads, summary),
        [csv_table("tsne", ["model", "class", "x", "y"], rows)],
        [f"{by_class(test, 'test')}, through each of {len(models)} models; perplexity 30, PCA start, seed 0. Distances "
         "between far groups mean nothing."],
    )  # fmt: skip


def _same(a: Weights, b: Weights) -> bool:
    one, other = ({**w.params, **w.buffers} for w in (a, b))
    return one.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in one.items())


def _neighbours(points: Floats, labels: npt.NDArray[np.int64], k: int = 10) -> float:
    """Return the mean share of a point's k nearest that have its label."""
    total, squares = 0, np.square(points).sum(1)
    for start in range(0, len(points), 500):
        rows = slice(start, start + 500)
        away = squares[rows, None] + squares - 2 * points[rows] @ points.T
        away[np.arange(len(away)), np.arange(start, start + len(away))] = np.inf
        near = np.argpartition(away, k, axis=1)[:, :k]
        total += int((labels[near] == labels[rows, None]).sum())
    return total / (k * len(points))


def draw(at: Floats, y: Ints, where: Ints, names: Sequence[str], runs: Sequence[str]) -> Figure:
    """Draw the same points twice: coloured by class, and by model.

    `where`: the model of each point; `names` and `runs`: of the models. The first is the global one, of no run (""), in
    black. Each run has a shape of its own; lightness goes with it in turn, so that two runs differ in both.
    """
    import matplotlib

    many = matplotlib.colormaps["tab20"]  # ten colours, dark and light
    shuffled = np.random.default_rng(0).permutation(len(at))  # no group is drawn over all others
    labels, named_runs = np.unique(y), list(dict.fromkeys(runs[1:]))
    classes = {int(c): _Look(many((2 * i + (i >= 10)) % 20), "o", str(c)) for i, c in enumerate(labels)}
    models = {0: _Look(INK, "o", names[0])}
    for k, (name, run) in enumerate(zip(names[1:], runs[1:], strict=True), 1):
        number, place = named_runs.index(run), runs[1:k].count(run)
        models[k] = _Look(many((2 * place + number % 2) % 20), _SHAPES[number % len(_SHAPES)], name)
    named = list(models.values())
    if len(named) > _MOST_NAMES:
        named = [named[0], *(_Look(FAINT, _SHAPES[i % len(_SHAPES)], run) for i, run in enumerate(named_runs))]
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
