"""Tables and progress on a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedloom.algorithms import ALGORITHMS
from fedloom.coordinator import History
from fedloom.coordinator.catalogue import hyper_parameters

_COLUMNS = (
    ("global", "global_accuracy"),
    ("forgetting", "forgetting"),
    ("personal", "personal_accuracy"),
    ("worst 10th", "personal_worst_tenth"),
)


def comparison_table(results: Sequence[tuple[str, History]]) -> Table:
    """One row per run: where it ended and what it cost."""
    table = Table(title="Accuracy after the last round")
    table.add_column("algorithm", no_wrap=True)
    for heading, _ in _COLUMNS:
        table.add_column(heading, justify="right")
    for heading in ("MB/round", "s/round", "engine"):
        table.add_column(heading, justify="right")
    for label, history in results:
        rounds = max(1, len(history.metrics) - 1)
        moved = sum(m.get("bytes_down", 0) + m.get("bytes_up", 0) for m in history.metrics) / rounds / 1e6
        seconds = sum(sum(t["seconds"].values()) for t in history.timing[1:]) / rounds
        cells = [_number(history.last(name)) for _, name in _COLUMNS]
        table.add_row(label, *cells, f"{moved:.2f}", f"{seconds:.2f}", history.engine)
    return table


def algorithm_table() -> Table:
    """Every algorithm, its settings with their defaults, and the first line of its file."""
    table = Table(title="Algorithms")
    for heading in ("name", "what it is", "settings"):
        table.add_column(heading, overflow="fold")
    for name, kind in ALGORITHMS.items():
        module = __import__(kind.__module__, fromlist=["__doc__"])
        first = (module.__doc__ or "").strip().splitlines()[0]
        settings = []
        for key, value in hyper_parameters(name).items():
            settings.append(f"{key}={value}" if isinstance(value, (int, float, str)) else f"{key}.*")
        table.add_row(name, first, "  ".join(settings))
    return table


@contextmanager
def progress(console: Console, label: str, rounds: int) -> Iterator[Callable[[History], None]]:
    """A live line: round, accuracy, time left. Yields the `on_round` to hand to `run`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=rounds, seen="")

        def show(history: History) -> None:
            name = "global_accuracy" if len(history.series("global_accuracy")) else "personal_accuracy"
            bar.update(
                task, completed=len(history.metrics) - 1, seen=f"{name.replace('_', ' ')} {_number(history.last(name))}"
            )

        yield show


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
