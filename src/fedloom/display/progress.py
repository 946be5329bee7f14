"""Progress of runs: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Show = Callable[[int, str], None]  # number of completed rounds, text of the newest number
_WIDE = 80  # columns


@dataclass
class _Pace:
    """Estimate of the remaining time, by the mean time of the rounds that this process has computed.

    Earlier rounds of a resumed run do not count.
    """

    clock: Callable[[], float] = field(default=time.perf_counter, kw_only=True)
    computed: int = field(default=0, init=False)  # rounds
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.clock()

    def time_left(self, rounds: int) -> str:
        """Return the estimated time of a number of rounds; "-" before the first is computed."""
        return _duration((self.clock() - self.start) / self.computed * rounds) if self.computed else "-"


@dataclass
class RunSequence(_Pace):
    """Several runs, one after the other: the place of the current run, and the time that all will take."""

    rounds: list[int]  # of each run
    started: int = field(default=0, init=False)  # runs

    @property
    def position(self) -> str:
        """Place of the current run among several; "" where there is one."""
        return f"run {self.started} of {len(self.rounds)}" if len(self.rounds) > 1 else ""

    def status(self, done: int) -> str:
        """Return the place of the current run and the time left for all runs, after `done` rounds of the current."""
        if not self.position or not self.computed:
            return self.position
        return f"{self.position}, {self.time_left(sum(self.rounds[self.started - 1 :]) - done)} for all"


@contextmanager
def progress(
    console: Console,
    label: str,
    rounds: int,
    *,
    each: str = "round",
    sequence: RunSequence | None = None,
    interval: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Show]:
    """Show a live line: round, newest number, time left; with several runs also the time left for all.

    In a log file, print a line of text every `interval` seconds of `clock` instead. `each`: what is counted, if no
    rounds are.
    """
    sequence, pace = sequence or RunSequence([rounds]), _Pace(clock=clock)
    sequence.started += 1
    if console.is_jupyter:  # one line is rewritten, without widgets
        interval = 0.0
    if console.is_jupyter or not console.is_terminal:
        yield _lines(console, f"{label}: {each}", rounds, sequence, pace, interval)
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
        task = bar.add_task(escape(label), total=rounds, left="-", seen=sequence.status(0))

        def show(done: int, newest: str) -> None:
            _count_round(pace, sequence)
            seen = f"{newest}{_after_semicolon(sequence.status(done))}"
            bar.update(task, completed=done, left=pace.time_left(rounds - done), seen=seen)

        yield show


def optional_progress(label: str, rounds: int, enabled: bool | None) -> AbstractContextManager[Show | None]:
    """Return the `progress` of a run from Python. With `enabled` None it is shown on a terminal and in a notebook."""
    console = Console(stderr=True)
    is_visible = console.is_terminal or console.is_jupyter
    return progress(console, label, rounds) if (is_visible if enabled is None else enabled) else nullcontext()


def _lines(console: Console, label: str, rounds: int, sequence: RunSequence, pace: _Pace, interval: float) -> Show:
    last_time = pace.start
    line: Any = None  # of a notebook's cell

    def show(done: int, newest: str) -> None:
        nonlocal last_time, line
        now = pace.clock()
        _count_round(pace, sequence)
        if now - last_time >= interval and (done < rounds or console.is_jupyter):
            last_time = now
            time_left, status = pace.time_left(rounds - done), _after_semicolon(sequence.status(done))
            text = f"{label} {done} of {rounds}, {newest}, {time_left} left{status}"
            if console.is_jupyter:
                from IPython.display import display

                if line is None:
                    line = display({"text/plain": text}, raw=True, display_id=True)
                else:
                    line.update({"text/plain": text}, raw=True)
            else:
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    return show


def _count_round(*paces: _Pace) -> None:
    """Count a round that this process has computed."""
    for pace in paces:
        pace.computed += 1


def _after_semicolon(text: str) -> str:
    return f"; {text}" if text else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
