"""`fedloom sweep`: many settings, and the choice between them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedloom.cli.options import experiments, seeds
from fedloom.cli.train import introduce, train
from fedloom.coordinator import History, Job
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.errors import SettingError
from fedloom.display.progress import RunSequence
from fedloom.display.terminal import table
from fedloom.experiments.search import is_range
from fedloom.experiments.trackers import tracker
from fedloom.experiments.trials import LAST, Sweep, Trial

_SHOWN = 20  # trials in the table; all of them are in sweep.csv
_SHOWN_MEASURES = ("global_accuracy", "forgetting", "personal_accuracy", "personal_worst_tenth")


def sweep(args: argparse.Namespace, console: Console) -> int:
    """Run every trial with every seed, and print the best of them, where they are on one problem."""
    (base,) = experiments(args, [args.algorithm] * bool(args.algorithm))
    if args.out is None:
        raise SettingError("a sweep keeps its trials in a directory; name it with --out DIR")
    asked = Sweep(
        base, _space(args.over), by=args.by, seeds=seeds(args.seeds, base), search=args.search, seed=args.search_seed
    )
    for text in args.track:
        tracker(text)  # a wrong name shows before any work
    tried: list[Trial] = []
    begun = False
    rounds = [trial.experiment.run.rounds for trial in asked.trials] or [base.run.rounds] * asked.count
    sequence = RunSequence([count for count in rounds for _ in asked.seeds or ()])

    def run(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        nonlocal begun
        if not begun:
            introduce(job.federation, job.population.models, job.settings, console)
        begun = True
        return train(
            name, job, console, directory, resume=resume, trackers=args.track, on_round=on_round, sequence=sequence
        )

    def note(trial: Trial) -> None:
        tried.append(trial)
        if trial.score is None:
            console.print(f"{trial.name} {trial.status}", markup=False, soft_wrap=True)

    console.print(f"sweep: {asked.count} trials of {len(asked.seeds or ())} runs, chosen by {args.by}")
    try:
        asked.run(args.out, resume=args.resume, on_trial=note, train=run)
    finally:  # where the sweep is interrupted, what was tried is still worth a look
        _show(asked, tried, Path(args.out), console)
    if not asked.ranked(tried):
        raise SettingError(f"no trial has a score; {Path(args.out, 'sweep.csv')} says why")
    return 0


def _space(over: Sequence[str]) -> dict[str, Sequence[str] | str]:
    """Return the values that --over gives to each setting, or their range."""
    out: dict[str, Sequence[str] | str] = {}
    for text in over:
        key, equals, values = text.partition("=")
        parts = values.split("|" if "|" in values else ",")
        if not (equals and key and all(parts)):
            raise SettingError(f"--over takes KEY=V1,V2,... or KEY=log:LOW:HIGH, got {text!r}")
        if key in out:
            raise SettingError(f"--over names each setting once, got {key} again; give its values together")
        out[key] = values if is_range(values) else parts
    return out


def _show(asked: Sweep, tried: Sequence[Trial], out: Path, console: Console) -> None:
    ranked = asked.ranked(tried)
    if not ranked:
        return
    several = len(asked.seeds or ()) > 1
    what = asked.by.replace("_", " ")
    failed = sum(trial.score is None for trial in tried)
    rest = [f"{len(ranked) - _SHOWN} more are in sweep.csv"] if len(ranked) > _SHOWN else []
    rest += [f"{failed} failed"] if failed else []
    first = "" if asked.problems else ", best first"
    made = table(f"Trials{first}: {what}, mean of the last {LAST} measurements", ", ".join(rest) or None)
    made.add_column("trial", no_wrap=True)
    for key in asked.space:
        made.add_column(escape(key), overflow="fold")
    tested = [n for n in ("global_accuracy", "personal_accuracy") if any(n in trial.measures for trial in ranked)]
    headings = [f"test:\n{name.partition('_')[0]}" for name in tested]
    for heading in [what.replace(" ", "\n", 1), *["std over\nseeds"] * several, *headings]:
        made.add_column(heading, justify="right", no_wrap=True)
    for trial in ranked[:_SHOWN]:
        numbers = [trial.score, *[trial.std] * several]
        numbers += [trial.measures.get(name) for name in tested]
        cells = ["-" if number is None else f"{number:.4f}" for number in numbers]
        made.add_row(
            trial.name,
            *(escape(f"{value:.4g}" if isinstance(value, float) else str(value)) for value in trial.settings.values()),
            *cells,
        )
    console.print()
    console.print(made)
    lines = [f"trials: {out / 'sweep.csv'}"]
    if len(tried) < asked.count:
        lines.append(f"{len(tried)} of {asked.count} trials are done; go on with the same command and --resume")
    elif asked.problems:
        lines.append(f"none is the best: trials differ in {', '.join(asked.problems)}, each is another problem")
    else:
        best = ranked[0]
        measured = [
            f"{name.replace('_', ' ')} {best.measures[name]:.4f}" for name in _SHOWN_MEASURES if name in best.measures
        ]
        lines = [
            f"best: {best.name}, {', '.join(f'{key}={value}' for key, value in best.settings.items())}",
            f"its test measures in the same rounds: {', '.join(measured) or 'none'}",
            *lines,
            f"once more: fedloom run --settings {shlex.quote(str(out / 'best.json'))}",
        ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
