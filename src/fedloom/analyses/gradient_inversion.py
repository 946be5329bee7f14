"""Gradient inversion: an attack that seeks training rows in an upload, as judge of what it tells.

A linear layer that is given the rows gives them away (Phong et al., IEEE TIFS 2018); of any other network rows are
fitted until they move it in the direction that was seen (Geiping et al., "Inverting Gradients", NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import bare, panels, title
from fedloom.core.errors import SettingError
from fedloom.core.random import generator
from fedloom.display.progress import optional_progress
from fedloom.experiments.trained_model import client_number
from fedloom.privacy.inversion import MOST, first_layer, fitted, quotients
from fedloom.privacy.seen_uploads import SeenRound, Sight, seen_in
from fedloom.report.style import WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_STEPS = 300  # on inputs that are fitted
_EXACT = 60.0  # dB: a thousandth of the values' span
_SHOWN = 6  # rows of a picture


@dataclass(frozen=True)
class Attempt:
    """Rows that one attack has found in what somebody sees.

    Attributes:
        sight: what is seen.
        attack: by which way.
        found: the rows, as the network is given them, [r, ...].
        rows: the nearest training row of each, by its number, [r].
        decibels: how near it is, as PSNR, [r].
        strangers: how near the nearest is of as many rows that were not trained on, [r].
    """

    sight: str
    attack: str
    found: Tensor
    rows: Ints
    decibels: Floats
    strangers: Floats

    @property
    def best(self) -> list[int]:
        """Places of the nearest for each training row that is anybody's nearest, the best first."""
        order = np.argsort(-self.decibels, kind="stable")
        return [int(i) for i in order[np.sort(np.unique(self.rows[order], return_index=True)[1])]]

    @property
    def summary(self) -> list[Any]:
        exact = sum(bool(self.decibels[i] >= _EXACT) for i in self.best)
        known, other = self.decibels, self.strangers
        return [
            self.sight, self.attack, len(known), exact, float(known.max()), float(other.max()),
            float(np.median(known)), float(np.median(other)),
        ]  # fmt: skip


def measure(run: AnalysedRun) -> AnalysisResult:
    """Reconstruct training rows from an upload, and from the mean of a round (Phong 2018, Geiping 2020).

    The upload is that of `--client`, or of the one with fewest rows, in a round that is computed again with all that
    the run does to uploads. Each row that comes out stands beside the training row next to it, and how near the next of
    as many rows is that nobody trained on.
    """
    if run.job.federation.train.has_tokens:
        raise SettingError(
            "rows are sought among numbers, and the rows of this run are token ids: analyse a run on images or tables"
        )
    number, settings = run.single_round, run.job.settings
    seen = seen_in(run.past, number)
    client = _client(run, seen, number)
    sights = _sights(run, seen, client, number)
    iterations = run.steps or _STEPS
    attempts = list[Attempt]()
    with optional_progress("gradient-inversion", len(sights) * iterations, None) as show:
        ticks = _ticks(show)
        for name, sight in sights.items():
            attempts += _attempts(run, name, sight, iterations, ticks)
    if not attempts:
        raise SettingError(
            "rows are sought by a first linear layer, or by a model that is sent whole, and "
            f"{type(run.job.algorithm).__name__} sends a part without one: analyse a method that sends all"
        )
    heads = {
        "seen": None, "attack": None, "rows": None, "exact": None, "best, dB": _one, "stranger, best": _one,
        "median": _one, "stranger, median": _one,
    }  # fmt: skip
    own = seen.uploads[client].movement
    return AnalysisResult(
        draw(attempts, run),
        summary_table(f"Rows sought in round {number}, client {client}", heads, [a.summary for a in attempts]),
        [
            csv_table(
                "gradient-inversion", ["seen", "attack", "reconstruction", "row", "psnr", "mse", "psnr_stranger"],
                [
                    [a.sight, a.attack, i, a.rows[i], a.decibels[i], 10 ** (-a.decibels[i] / 10), a.strangers[i]]
                    for a in attempts for i in range(len(a.rows))
                ],
            ),
            csv_table(
                "gradient-inversion-summary",
                ["seen", "attack", "rows", "exact", "best", "best_stranger", "median", "median_stranger"],
                [a.summary for a in attempts],
            ),
        ],
        [
            "dB: PSNR to the nearest row that was trained on; stranger: of the same reconstructions to the nearest of "
            f"as many rows that were not. Exact is {_EXACT:g} dB.",
            f"The attack knows the model that was sent, the rate, the number of steps ({own.steps}) and the targets of "
            f"the rows; it fits up to {MOST} rows at once, in {iterations} steps (--steps). {_who(settings)}",
            "It is one attack: that it finds little proves little.",
        ],
    )  # fmt: skip


def _client(run: AnalysedRun, seen: SeenRound, number: int) -> int:
    if run.client is None:
        return min(seen.uploads, key=lambda k: (len(seen.uploads[k].rows), k))
    client = client_number(run.job.federation, run.client)
    if client not in seen.uploads:
        raise SettingError(
            f"client {run.client!r} has uploaded nothing in round {number}, got uploads of "
            f"{', '.join(map(str, sorted(seen.uploads)))}: name one of these, or another round"
        )
    return client


def _sights(run: AnalysedRun, seen: SeenRound, client: int, number: int) -> dict[str, Sight]:
    """Return what is attacked, by name: what would be seen without the run's protection stands beside it."""
    settings = run.job.settings
    kind, _, _ = settings.privacy.partition(":")
    sights = dict[str, Sight]()
    if kind == "examples":
        sights["bare upload"] = seen_in(run.past, number, bare=True).uploads[client]
    hidden = settings.secure_aggregation != "none"
    sights["private upload" if kind in ("examples", "local") else "hidden upload" if hidden else "upload"] = (
        seen.uploads[client]
    )
    if seen.mean is not None and (len(seen.uploads) > 1 or kind == "central"):
        sights["private mean" if kind != "none" else f"mean of {len(seen.uploads)}"] = seen.mean
    return sights


def _who(settings: Any) -> str:
    """Say who sees what, under the privacy that the run has."""
    if settings.secure_aggregation != "none":
        return "The server sees the mean; the upload stands here to show what masks hide from it."
    if settings.privacy.startswith("central"):
        return f"The server sees the upload, and all others the mean, with privacy = {settings.privacy!r}."
    if settings.privacy.startswith("local"):
        return f"The server sees the private upload, with privacy = {settings.privacy!r}."
    if settings.privacy.startswith("examples"):
        return f"The server sees the private upload, with privacy = {settings.privacy!r}; it would be bare without."
    return "The server sees the upload; privacy = 'none'."


def _ticks(show: Callable[[int, str], None] | None) -> Callable[[str], Callable[[], None]]:
    """Return what makes a counter of steps, by the words that stand beside it."""
    done = 0

    def of(words: str) -> Callable[[], None]:
        def tick() -> None:
            nonlocal done
            done += 1
            if show is not None:
                show(done, words)

        return tick

    return of


def _attempts(
    run: AnalysedRun, name: str, sight: Sight, iterations: int, ticks: Callable[[str], Callable[[], None]]
) -> list[Attempt]:
    train, network, movement = run.job.federation.train, run.network, sight.movement
    like = next(iter(movement.sent.params.values()))

    def inputs(rows: Ints) -> Tensor:
        return train.normalise(train.x[torch.from_numpy(rows)].to(like.device), like.dtype)

    true = inputs(sight.rows)
    others = np.setdiff1d(np.arange(len(train)), sight.rows)
    drawn = generator(run.job.settings.seed, "strangers").permutation(others)[: len(sight.rows)]
    strange = inputs(np.sort(drawn))
    if (test := run.job.federation.test) is not None and not len(strange):
        strange = test.normalise(test.x[: len(true)].to(like.device), like.dtype)
    both = torch.cat([true, strange])
    span = max(float(both.max() - both.min()), 1e-12)
    whole, found = set(network.params) <= set(movement.sent.params), dict[str, Tensor]()
    if whole and (layer := first_layer(network, movement.sent, true[:2])) is not None:
        apart = quotients(movement, layer).to(true).clamp(both.min(), both.max())
        if len(apart):
            found["first layer"] = apart.reshape(-1, *true.shape[1:])
    if whole:
        y = train.y[torch.from_numpy(sight.rows[:MOST])].to(like.device)
        seed = run.job.settings.seed
        found["fitted"] = fitted(network, run.task, movement, y, both, iterations, seed, ticks(name))
    made = list[Attempt]()
    for attack, x in found.items():
        places, near = nearest(x, true)
        far = nearest(x, strange)[1] if len(strange) else np.full(len(x), np.nan)
        made.append(Attempt(name, attack, x, sight.rows[places], decibels(near, span), decibels(far, span)))
    return made


def nearest(found: Tensor, known: Tensor) -> tuple[Ints, Floats]:
    """Return the known row nearest to each that was found, and the mean square of their difference, [r] both."""
    a, b = found.flatten(1).double(), known.flatten(1).double()
    places = torch.cdist(a, b).argmin(1)
    return places.cpu().numpy(), (a - b[places]).square().mean(1).cpu().numpy()


def decibels(mse: Floats, span: float) -> Floats:
    """Return peak signal-to-noise ratios, 10 log10(span^2 / mse); no more than 120."""
    return np.asarray(-10 * np.log10(np.maximum(mse / span**2, 1e-12)))


def _one(value: float) -> str:
    return f"{value:.1f}"


def draw(attempts: list[Attempt], run: AnalysedRun) -> Figure:
    """Draw the training rows, and beside each what was found; of each attempt the best."""
    train = run.job.federation.train
    with drawing():
        figure, axes = panels(len(attempts), (WIDE[0], WIDE[1] + 0.6))
        for ax, attempt in zip(axes, attempts, strict=True):
            best = attempt.best[:_SHOWN]
            true = train.normalise(train.x[torch.from_numpy(attempt.rows[best])], torch.float32).double().numpy()
            got = attempt.found[best].double().cpu().numpy()
            (_pictures if got.ndim == 4 else _numbers)(ax, true, got)
            near = f"{attempt.decibels[best[0]]:.1f} dB, stranger {attempt.strangers[best[0]]:.1f}"
            title(ax, f"{attempt.sight}\n{attempt.attack}: {near}")
    return figure


def _pictures(axes: Axes, true: Floats, got: Floats) -> None:
    """Draw images [n, C, H, W]: each as it was, and as it was found."""
    low, high = float(true.min()), float(true.max())
    _, channels, height, width = true.shape
    canvas = np.ones((len(true) * (height + 2), 2 * (width + 2), 3))
    for i, pair in enumerate(zip(true, got, strict=True)):
        for j, image in enumerate(pair):
            picture = ((image - low) / max(high - low, 1e-12)).clip(0, 1).transpose(1, 2, 0)
            top, left = i * (height + 2), j * (width + 2)
            canvas[top : top + height, left : left + width] = picture if channels == 3 else picture[..., :1]
    axes.imshow(canvas, interpolation="none")
    bare(axes)
    axes.set_xticks([width / 2, 1.5 * width + 2], ["original", "found"])
    axes.set_yticks([])


def _numbers(axes: Axes, true: Floats, got: Floats) -> None:
    """Draw the best row of a table, its features beside each other: as it was (ring), and as it was found (dot)."""
    one, other = true[0].ravel(), got[0].ravel()
    at = np.arange(len(one))
    axes.plot(at, one, "o", mfc="none", mec=colour(1), ms=6, label="original")
    axes.plot(at, other, "o", color=colour(0), ms=3, label="found")
    axes.set_xlabel("feature")
    axes.legend(loc="best")
