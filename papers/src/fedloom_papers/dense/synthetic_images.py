"""Draw what the server of a data-free method has made: its images, and what the ensemble takes them for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedloom.algorithms.shared.one_shot import OneShot
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.analyses.analysis_result import AnalysisResult, csv_table, summary_table
from fedloom.analyses.panels import bare, panels, title, whole_ticks
from fedloom.core.errors import SettingError
from fedloom.report.number_table import percent
from fedloom.report.style import FAINT, INK, WIDE, colour, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

EACH = 8  # images of a class that are shown
MOST = 20  # classes that are shown


def measure(run: AnalysedRun) -> AnalysisResult:
    """Show the images that the server made, by class, what the ensemble takes them for, and their balance (DENSE)."""
    algorithm = run.job.algorithm
    if not isinstance(algorithm, OneShot):
        raise SettingError(
            f"{type(algorithm).__name__} makes no images on the server: analyse a run of dense, fed_dafl or fed_adi"
        )
    until = run.single_round
    restored = run.job.restore(run.directory)
    # an epoch of the server is a round, but for those of uploads; of each the pool has one entry
    rounds = [m["round"] for m in run.history.metrics if "server_agree" in m and m["round"] <= until]
    entries = restored.engine.pool("images")[: len(rounds)]
    if not len(entries):
        raise SettingError(f"the server has made no images by round {until}, which is one of uploads: name a later one")
    rounds = rounds[: len(entries)]  # of a run that was killed the newest checkpoint is older than its log
    made = [(e.x.cpu().numpy(), e.y.cpu().numpy(), e.said.cpu().numpy()) for e in entries]
    newest, wanted, said = made[-1]
    classes = run.job.federation.num_classes
    counts = {
        "made for": np.stack([np.bincount(y, minlength=classes) for _, y, _ in made]),
        "taken for": np.stack([np.bincount(s, minlength=classes) for _, _, s in made]),
    }
    held = run.job.federation.counts().sum(0)
    agree = [float((y == s).mean()) for _, y, s in made]
    rows = [[c, held[c], *(table[:, c].sum() for table in counts.values())] for c in range(classes)]
    epochs = [
        [t, agree[i], *(table[i, c] for table in counts.values() for c in range(classes))] for i, t in enumerate(rounds)
    ]
    names = [f"{word.replace(' ', '_')}_{c}" for word in counts for c in range(classes)]
    absent = np.flatnonzero(counts["taken for"].sum(0) == 0).tolist()
    total = int(counts["made for"].sum())
    remarks = [
        f"{total} images of {len(rounds)} epochs; of the last, the ensemble takes {percent(agree[-1])} % as meant.",
        f"Classes that the ensemble sees in none: {', '.join(map(str, absent))}." if absent else
        "The ensemble sees every class in some image.",
    ]  # fmt: skip
    return AnalysisResult(
        draw(newest, wanted, said, counts, rounds, agree),
        summary_table(
            f"Images made by round {rounds[-1]}, by class",
            {"class": None, "clients' examples": None, "made for": None, "taken for": None},
            rows,
        ),
        [
            csv_table("synthetic-images", ["class", "examples", "made_for", "taken_for"], rows),
            csv_table("synthetic-images-rounds", ["round", "agree", *names], epochs),
        ],
        remarks,
    )


def draw(
    images: Bytes, wanted: Ints, said: Ints, counts: dict[str, Ints], rounds: Sequence[int], agree: Sequence[float]
) -> Figure:
    """Draw the images of an epoch by the class they were made for, and their balance.

    Left: images [n, C, H, W]; right: balance by class, agreement.
    """
    shown = np.unique(wanted)[:MOST]
    with drawing():
        height = max(WIDE[1], 0.42 * len(shown) + 0.8)
        figure, (grid, bars, line) = panels(3, (WIDE[0], height), width_ratios=[1.5, 1, 1])
        _grid(grid, images, wanted, said, shown)
        for i, (word, table) in enumerate(counts.items()):
            at = np.arange(table.shape[1])
            bars.barh(at + 0.4 * (i - 0.5), table.sum(0), 0.38, color=colour(i), label=word)
        bars.set_ylim(len(at) - 0.4, -0.6)
        if len(at) <= MOST:
            bars.set_yticks(at, [str(c) for c in at])
        bars.set_xlabel("images in the pool")
        bars.set_ylabel("class")
        title(bars, "balance")
        line.plot(rounds, [100 * a for a in agree], marker="o", ms=3, color=colour(2))
        line.set_ylim(0, 102)
        line.set_xlabel("round")
        whole_ticks(line, rounds)
        title(line, "taken for their class (%)")
        figure.legend(*bars.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


def _grid(axes: Axes, images: Bytes, wanted: Ints, said: Ints, shown: Ints) -> None:
    """Draw a row of images for each class, and below each what the ensemble takes it for where that is another."""
    _, channels, height, width = images.shape
    gap = max(3, height // 4)
    canvas = np.full((len(shown) * (height + gap), EACH * (width + 2), 3), 255, np.uint8)
    for row, c in enumerate(shown):
        for column, i in enumerate(np.flatnonzero(wanted == c)[:EACH]):
            picture = images[i].transpose(1, 2, 0)
            top, left = row * (height + gap), column * (width + 2)
            canvas[top : top + height, left : left + width] = picture if channels == 3 else picture[..., :1]
            if said[i] != c:
                axes.text(
                    left + width / 2, top + height + gap / 2, str(said[i]), ha="center", va="center", fontsize=6,
                    color=INK,
                )  # fmt: skip
    axes.imshow(canvas, interpolation="none")
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([row * (height + gap) + height / 2 for row in range(len(shown))], [str(c) for c in shown])
    axes.tick_params(length=0, colors=FAINT)
    axes.set_ylabel("made for class")
    title(axes, "the last epoch; below: taken for")
