"""Tables and progress on a terminal; everything fits into 80 columns."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator import History
from fedloom.core.optimiser import Local
from fedloom.experiments.catalogue import hyper_parameters

_COLUMNS = (
    ("global", "global_accuracy"),
    ("forgetting", "forgetting"),
    ("personal", "personal_accuracy"),
    ("worst\n10th", "personal_worst_tenth"),
)


def table(title: str, caption: str | None = None) -> Table:
    """An empty table in the style of this package: narrow, without vertical lines."""
    return Table(
        title=title,
        title_justify="left",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )


def comparison_table(results: Sequence[tuple[str, History]]) -> Table:
    """One row per run: where it ended and what it cost; the clients lost over all rounds, if there are any."""
    lost = [sum(len(m.get("failed", ())) for m in history.metrics) for _, history in results]
    out = table("Accuracy after the last round")
    out.add_column("algorithm", no_wrap=True)
    costs = ["MB a\nround", "s a\nround"] + (["lost"] if any(lost) else [])
    for heading in [heading for heading, _ in _COLUMNS] + costs:
        out.add_column(heading, justify="right", no_wrap=True)
    out.add_column("engine", no_wrap=True)
    for (label, history), failures in zip(results, lost, strict=True):
        rounds = max(1, len(history.metrics) - 1)
        moved = sum(m.get("bytes_down", 0) + m.get("bytes_up", 0) for m in history.metrics) / rounds / 1e6
        seconds = sum(sum(t["seconds"].values()) for t in history.timing[1:]) / rounds
        cells = [_number(history.last(name)) for _, name in _COLUMNS]
        cells += [f"{moved:.2f}", f"{seconds:.2f}"] + ([str(failures)] if any(lost) else [])
        out.add_row(escape(label), *cells, history.engine)
    return out


def algorithm_table() -> Table:
    """Every algorithm, its settings with their defaults, and the first line of its file."""
    caption = "Change a setting with --set NAME=VALUE (run) or --set ALGORITHM.NAME=VALUE (compare)."
    out = table("Algorithms", caption)
    out.add_column("name", no_wrap=True)
    for heading in ("what it is", "settings"):
        out.add_column(heading, overflow="fold")
    for name, kind in ALGORITHMS.items():
        first = (sys.modules[kind.__module__].__doc__ or "").strip().splitlines()[0]
        settings = []
        for key, value in hyper_parameters(name).items():
            if isinstance(value, Local):
                settings += [f"{key}.epochs={value.epochs}", f"{key}.batch_size={value.batch_size}"]
                settings += [f"{key}.lr={value.optimiser.lr}"]
            else:
                settings.append(f"{key}={value}")
        out.add_row(name, escape(first), escape("  ".join(settings)))
    return out


@contextmanager
def progress(
    console: Console, label: str, rounds: int, *, every: float = 30.0, clock: Callable[[], float] = time.perf_counter
) -> Iterator[Callable[[History], None]]:
    """A live line: round, accuracy, time left. Yields the `on_round` to hand to `run`.

    Where there is no terminal (a log file), a line of text every `every` seconds of `clock` instead.
    """
    if not console.is_terminal:
        yield _lines(console, label, rounds, every, clock)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(label), total=rounds, seen="")

        def show(history: History) -> None:
            bar.update(task, completed=len(history.metrics) - 1, seen=_newest(history))

        yield show


def _lines(
    console: Console, label: str, rounds: int, every: float, clock: Callable[[], float]
) -> Callable[[History], None]:
    start = shown = clock()

    def show(history: History) -> None:
        nonlocal shown
        now, done = clock(), len(history.metrics) - 1
        if now - shown >= every and done < rounds:
            shown = now
            left = (now - start) / done * (rounds - done)
            text = f"{label}: round {done} of {rounds}, {_newest(history)}, {_duration(left)} left"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    return show


def _newest(history: History) -> str:
    """The number that tells best how a run is doing."""
    name = "global" if len(history.series("global_accuracy")) else "personal"
    return f"{name} {_number(history.last(f'{name}_accuracy'))}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
