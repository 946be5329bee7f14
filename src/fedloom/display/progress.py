"""Progress of runs while a person looks: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Show = Callable[[int, str], None]  # rounds that are done, the newest number in words
_WIDE = 80  # columns


@dataclass
class _Pace:
    """Estimate of the time that coming rounds take: as long each as the rounds that this process has computed.

    Earlier rounds of a resumed run do not count.
    """

    clock: Callable[[], float] = field(default=time.perf_counter, kw_only=True)
    computed: int = field(default=0, init=False)  # rounds
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    def left(self, rounds: int) -> str:
        """Return the time that a number of rounds will take; "-" before the first is computed."""
        return _duration((self.clock() - self.start) / self.computed * rounds) if self.computed else "-"


@dataclass
class Whole(_Pace):
    """Several runs, one after the other: which one it is, and how long all will take."""

    rounds: list[int]  # of each run
    begun: int = field(default=0, init=False)  # runs

    @property
    def which(self) -> str:
        """Place of the current run among several; "" where there is one."""
        return f"run {self.begun} of {len(self.rounds)}" if len(self.rounds) > 1 else ""

    def said(self, done: int) -> str:
        """Return which run it is, and the time left for all of them, after `done` rounds of this one."""
        if not self.which or not self.computed:
            return self.which
        return f"{self.which}, {self.left(sum(self.rounds[self.begun - 1 :]) - done)} for all"


@contextmanager
def progress(
    console: Console,
    label: str,
    rounds: int,
    *,
    whole: Whole | None = None,
    every: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Show]:
    """Show a live line: round, newest number, time left; with several runs also the time left for all.

    Where there is no terminal (a log file), print a line of text every `every` seconds of `clock` instead.
    """
    whole, pace = whole or Whole([rounds]), _Pace(clock=clock)
    whole.begun += 1
    if console.is_jupyter:  # one line that changes, which needs no widgets
        every = 0.0
    if console.is_jupyter or not console.is_terminal:
        yield _lines(console, label, rounds, whole, pace, every)
        return
    wide = console.width >= _WIDE
    columns = (
        TextColumn("{task.description}"),
        *[BarColumn(bar_width=16)] * wide,
        MofNCompleteColumn(),
        *[TimeElapsedColumn()] * wide,
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.fields[seen]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(label), total=rounds, left="-", seen=whole.said(0))

        def show(done: int, newest: str) -> None:
            _another(pace, whole)
            seen = f"{newest}{_and(whole.said(done))}"
            bar.update(task, completed=done, left=pace.left(rounds - done), seen=seen)

        yield show


def watched(label: str, rounds: int, wanted: bool | None) -> AbstractContextManager[Show | None]:
    """Return the `progress` of a run from Python; `wanted` None: only on a terminal or in a notebook."""
    console = Console(stderr=True)
    looks = console.is_terminal or console.is_jupyter
    return progress(console, label, rounds) if (looks if wanted is None else wanted) else nullcontext()


def _lines(console: Console, label: str, rounds: int, whole: Whole, pace: _Pace, every: float) -> Show:
    shown = pace.start
    line: Any = None  # of a notebook's cell

    def show(done: int, newest: str) -> None:
        nonlocal shown, line
        now = pace.clock()
        _another(pace, whole)
        if now - shown >= every and (done < rounds or console.is_jupyter):
            shown = now
            left, said = pace.left(rounds - done), _and(whole.said(done))
            text = f"{label}: round {done} of {rounds}, {newest}, {left} left{said}"
            if console.is_jupyter:
                from IPython.display import display

                if line is None:
                    line = display({"text/plain": text}, raw=True, display_id=True)
                else:
                    line.update({"text/plain": text}, raw=True)
            else:
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    return show


def _another(*paces: _Pace) -> None:
    """Count a round that this process has computed."""
    for pace in paces:
        pace.computed += 1


def _and(said: str) -> str:
    return f"; {said}" if said else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
