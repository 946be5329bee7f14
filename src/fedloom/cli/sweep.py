"""`fedloom sweep`: trials with many settings, and the choice between them."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedloom.cli.options import experiments, seeds_of
from fedloom.coordinator import History, Job
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.errors import SettingError
from fedloom.display.progress import RunSequence
from fedloom.display.terminal import Terminal, table
from fedloom.experiments.cluster_jobs import console_of_script, run_cells, script_of
from fedloom.experiments.search import is_range
from fedloom.experiments.shown_runs import print_setup, train
from fedloom.experiments.trackers import tracker
from fedloom.experiments.trials import LAST, Sweep, Trial

_SHOWN = 20  # trials in the table; all of them are in sweep.csv


def sweep(args: argparse.Namespace, console: Terminal) -> int:
    """Run every trial with every seed, and print the best, if all are on one problem; or print a script of the runs."""
    if args.script is not None:
        console = console_of_script(args)
    (base,) = experiments(args, [args.algorithm] * bool(args.algorithm))
    if args.out is None:
        raise SettingError("a sweep keeps its trials in a directory; name it with --out DIR")
    plan = Sweep(
        base, _space(args.over), by=args.by, seeds=seeds_of(args.seeds, base), search=args.search, seed=args.search_seed
    )
    for text in args.track:
        tracker(text)  # a wrong name fails before any work
    if args.script is not None:
        cells = run_cells(plan.begin(args.out), args.out, args.track)
        print(script_of(cells, args.script, args.out), end="")
        return 0
    trials: list[Trial] = []
    is_started = False
    rounds = [trial.experiment.run.rounds for trial in plan.trials] or [base.run.rounds] * plan.count
    sequence = RunSequence([count for count in rounds for _ in plan.seeds or ()])

    def run(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        nonlocal is_started
        if not is_started:
            print_setup(job.federation, job.population.models, job.settings, console)
        is_started = True
        return train(
            name, job, console, directory, resume=resume, trackers=args.track, on_round=on_round, sequence=sequence
        )

    def note(trial: Trial) -> None:
        trials.append(trial)
        if trial.score is None:
            console.print(f"{trial.name} {trial.status}")

    console.print(f"sweep: {plan.count} trials of {len(plan.seeds or ())} runs, chosen by {plan.by}")
    try:
        plan.run(args.out, resume=args.resume, on_trial=note, train=run)
    finally:  # also show the trials of an interrupted sweep
        _show(plan, trials, Path(args.out), console)
    if not plan.ranked(trials):
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
            raise SettingError(f"--over takes each setting once, got {key} again; give its values together")
        out[key] = values if is_range(values) else parts
    return out


def _show(plan: Sweep, trials: Sequence[Trial], out: Path, console: Terminal) -> None:
    ranked = plan.ranked(trials)
    if not ranked:
        return
    has_several_seeds = len(plan.seeds or ()) > 1
    measure = plan.by.replace("_", " ")
    failed = sum(trial.score is None for trial in trials)
    caption = [f"{len(ranked) - _SHOWN} more are in sweep.csv"] if len(ranked) > _SHOWN else []
    caption += [f"{failed} failed"] if failed else []
    first = "" if plan.problems else ", best first"
    output = table(f"Trials{first}: {measure}, mean of the last {LAST} measurements", ", ".join(caption))
    output.add_column("trial", no_wrap=True)
    for key in plan.space:
        output.add_column(key, overflow="fold")
    main = next(iter(plan.measures)).removeprefix("val_")
    headlines = [f"{whose}_{main}" for whose in ("global", "personal")]
    tested = [n for n in headlines if any(n in trial.measures for trial in ranked)]
    headings = [f"test:\n{name.partition('_')[0]}" for name in tested]
    for heading in [measure.replace(" ", "\n", 1), *["std over\nseeds"] * has_several_seeds, *headings]:
        output.add_column(heading, justify="right", no_wrap=True)
    for trial in ranked[:_SHOWN]:
        numbers = [trial.score, *[trial.std] * has_several_seeds]
        numbers += [trial.measures.get(name) for name in tested]
        cells = ["-" if number is None else f"{number:.4f}" for number in numbers]
        output.add_row(
            trial.name,
            *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.settings.values()),
            *cells,
        )
    console.print()
    console.print(output)
    lines = [f"trials: {out / 'sweep.csv'}"]
    if len(trials) < plan.count:
        lines.append(f"{len(trials)} of {plan.count} trials are done; continue with the same command and --resume")
    elif plan.problems:
        lines.append(f"no best trial: trials differ in {', '.join(plan.problems)}, so each is another problem")
    else:
        best = ranked[0]
        shown = (headlines[0], "forgetting", headlines[1], "personal_worst_tenth")
        results = [f"{name.replace('_', ' ')} {best.measures[name]:.4f}" for name in shown if name in best.measures]
        lines = [
            f"best: {best.name}, {', '.join(f'{key}={value}' for key, value in best.settings.items())}",
            f"its test measures in the same rounds: {', '.join(results) or 'none'}",
            *lines,
            f"once more: fedloom run --settings {shlex.quote(str(out / 'best.json'))}",
        ]
    for line in lines:
        console.print(line, highlight=False)
