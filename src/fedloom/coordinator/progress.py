"""Progress of runs while a person looks: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedloom.coordinator.history import History

_WIDE = 80  # columns


@dataclass
class Whole:
    """Several runs, one after the other: which one it is, and how long all will take.

    The time is that of the rounds so far, as if those to come took as long.
    """

    rounds: list[int]  # of each run
    clock: Callable[[], float] = time.perf_counter
    begun: int = 0  # runs
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    @property
    def which(self) -> str:
        """Which of several runs it is; "" where there is one."""
        return f"run {self.begun} of {len(self.rounds)}" if len(self.rounds) > 1 else ""

    def said(self, done: int) -> str:
        """Which run it is, and the time of all of them, after so many rounds of this one."""
        past = sum(self.rounds[: self.begun - 1]) + done
        left = (self.clock() - self.start) / past * (sum(self.rounds) - past) if past else math.nan
        return self.which if math.isnan(left) or not self.which else f"{self.which}, {_duration(left)} for all"


@contextmanager
def progress(
    console: Console,
    label: str,
    rounds: int,
    *,
    whole: Whole | None = None,
    every: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Callable[[History], None]]:
    """A live line: round, accuracy, time left, of several runs also that of all. Yields the `on_round` of `run`.

    Where there is no terminal (a log file), a line of text every `every` seconds of `clock` instead.
    """
    whole = whole or Whole([rounds])
    whole.begun += 1
    if console.is_jupyter:  # one line that changes, which needs no widgets
        every = 0.0
    if console.is_jupyter or not console.is_terminal:
        yield _lines(console, label, rounds, whole, every, clock)
        return
    wide = console.width >= _WIDE
    columns = (
        TextColumn("{task.description}"),
        *[BarColumn(bar_width=16)] * wide,
        MofNCompleteColumn(),
        *[TimeElapsedColumn()] * wide,
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(label), total=rounds, seen=whole.said(0))

        def show(history: History) -> None:
            done = len(history.metrics) - 1
            said = whole.said(done)
            bar.update(task, completed=done, seen=f"{_newest(history)}{said and '; '}{said}")

        yield show


def watched(label: str, rounds: int, wanted: bool | None) -> AbstractContextManager[Callable[[History], None] | None]:
    """`progress` of a run from Python; `wanted` None: where a person looks, on a terminal or in a notebook."""
    console = Console(stderr=True)
    looks = console.is_terminal or console.is_jupyter
    return progress(console, label, rounds) if (looks if wanted is None else wanted) else nullcontext()


def _lines(
    console: Console, label: str, rounds: int, whole: Whole, every: float, clock: Callable[[], float]
) -> Callable[[History], None]:
    start = shown = clock()
    line: Any = None  # of a notebook's cell

    def show(history: History) -> None:
        nonlocal shown, line
        now, done = clock(), len(history.metrics) - 1
        if now - shown >= every and (done < rounds or console.is_jupyter):
            shown = now
            left, said = (now - start) / done * (rounds - done), whole.said(done)
            text = f"{label}: round {done} of {rounds}, {_newest(history)}, {_duration(left)} left{said and '; '}{said}"
            if console.is_jupyter:
                from IPython.display import display

                if line is None:
                    line = display({"text/plain": text}, raw=True, display_id=True)
                else:
                    line.update({"text/plain": text}, raw=True)
            else:
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    return show


def _newest(history: History) -> str:
    """The number that tells best how a run is doing."""
    name = "global" if len(history.series("global_accuracy")) else "personal"
    value = history.last(f"{name}_accuracy")
    return f"{name} {'-' if math.isnan(value) else f'{value:.4f}'}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
