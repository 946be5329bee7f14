"""`fedloom run`, `compare`, `resume` and `branch`: train, show, write."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import ConsoleRenderable

from fedloom.cli.leave_one_out import show_sites, without_each_site
from fedloom.cli.options import experiments, seeds_of, settings_of_method, with_seed
from fedloom.cli.tune import SUFFIX, planned, tune
from fedloom.coordinator import History, Job, check_free
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.rounds import OnHistory
from fedloom.coordinator.trial_round import try_round
from fedloom.core.errors import FedloomError, NonFiniteError, SettingError
from fedloom.display.progress import RunSequence
from fedloom.display.terminal import Terminal
from fedloom.engines.by_name import only_computes
from fedloom.experiments.catalogue import label
from fedloom.experiments.cluster_jobs import console_of_script, run_cells, script_of
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.federations import Federations
from fedloom.experiments.mirrors import mirrored_below
from fedloom.experiments.shown_runs import print_setup, train
from fedloom.experiments.stored_experiments import open_experiment
from fedloom.experiments.trackers import tracker
from fedloom.experiments.trials import Train
from fedloom.experiments.verify import NO_RUN
from fedloom.mirror.fetch import fetched
from fedloom.report import comparison_table, readings_table, summary
from fedloom.report.console import fit_terminal
from fedloom.report.grouping import group_by_problem, methods_of, with_titles
from fedloom.report.methods import Run, is_local_only
from fedloom.report.order import ordered_runs, write_order
from fedloom.report.tuned_methods import describe_tuning, tuning_table

Results = list[tuple[str, History]]
_SEED = re.compile(r"/?seed-\d+$")


def compare(args: argparse.Namespace, console: Terminal) -> int:
    """Train with each algorithm and each seed.

    Several methods are each tried on one batch before the first run. If a run diverges, the others continue, and the
    exit status is 1. Finished runs are shown even if another error ends the command. With --script they are checked
    alike, and printed as a script that runs them.
    """
    if args.script is not None:
        console = console_of_script(args)
    names = [*args.algorithms, *_reference_methods(args)]
    selected = experiments(args, names)
    tunes = args.command == "compare" and args.tuned is not None
    if tunes and args.script is not None:
        raise SettingError(
            "--script writes runs that are known before any has ended, and --tuned chooses by its tries: sweep each "
            "method with --script, or run the whole as one job (sbatch --wrap)"
        )
    runs = _runs(args, [(label(e.algorithm), e) for e in selected], several=tunes or len(selected) > 1)
    sweeps = planned(args, selected) if tunes else {}
    federations = Federations()
    if leaves_out := args.command == "compare" and args.leave_one_site_out:
        runs = without_each_site(runs, federations)
    if args.resume and args.out is None:
        raise SettingError("--resume continues the runs of a directory: name it with --out DIR [FL-RUN-010]")
    computes = args.script is None and only_computes(selected[0].run.engine)
    if args.out is not None and not args.resume and not computes:
        for place in runs:
            if args.script is not None and RunDirectory(Path(args.out, place)).begun:
                continue  # it goes on by the script
            check_free(Path(args.out, place))
            if (address := runs[place].run.mirror) is not None and args.script is None:
                fetched(address, Path(args.out, place), resume=False)
    for text in args.track:
        tracker(text)  # a wrong name fails before any work
    jobs = {place: federations.job(experiment) for place, experiment in runs.items()}
    reference = names[len(args.algorithms) :]
    for place, job in list(jobs.items()):  # errors come before the first run trains
        try:
            if runs[place].algorithm in reference and job.federation.local_test is None:
                raise SettingError("clients hold out no examples for evaluation")
            job.check()
        except SettingError as error:
            if runs[place].algorithm not in reference:
                raise
            del jobs[place]
            console.print(f"{place} is left out: {error}")
    if computes:
        for job in jobs.values():
            job.run()
        return 0
    if args.script is not None or (args.resume and len(jobs) > 1):  # one alone is checked where it begins
        for place, job in jobs.items():
            job.check_resume(Path(args.out, place))
    if len(selected) > 1:
        for job in {Path(place).parts[0]: job for place, job in reversed(jobs.items())}.values():
            try_round(job)
    if args.out is not None and len(selected) > 1:
        write_order(args.out, list(dict.fromkeys(Path(place).parts[0] for place in jobs)))
    if args.script is not None:
        cells = run_cells({place: runs[place] for place in jobs}, args.out, args.track)
        print(script_of(cells, args.script, args.out), end="")
        return 0
    first = next(iter(jobs.values()))
    print_setup(first.federation, first.population.models, first.settings, console)
    tuning: dict[str, Any] = {}
    if sweeps := {name: sweep for name, sweep in sweeps.items() if any(Path(p).parts[0] == name for p in jobs)}:
        tuned, tuning = tune(sweeps, args, console, _trials(console))
        tuned = {name: e.changed("run.mirror", selected[0].run.mirror) for name, e in tuned.items()}
        jobs |= {place: federations.job(e) for place, e in _runs(args, [*tuned.items()], several=True).items()}
        order = [folder for name in sweeps for folder in (name, name + SUFFIX)]
        jobs = dict(sorted(jobs.items(), key=lambda item: order.index(Path(item[0]).parts[0])))
    results: Results = []
    diverged: dict[str, str] = {}
    ends = False
    sequence = RunSequence([job.settings.rounds for job in jobs.values()])
    try:
        for place, job in jobs.items():
            name = place if place != "." else label(selected[0].algorithm)
            directory = None if args.out is None else Path(args.out, place)
            options = {"resume": args.resume, "trackers": args.track, "sequence": sequence}
            with _contain_failure(name, diverged, len(jobs)):
                results.append((name, train(name, job, console, directory, **options)))
    except Exception:
        ends = True
        raise
    finally:  # also show finished runs if one fails or is interrupted
        (show_sites if leaves_out else _show)(results, args.out, console)
        _show_tuning(results, tuning, console)
        _show_diverged(diverged, console)
        if ends and len(jobs) > 1:
            console.print(_kept(len(results), len(jobs), args.out), highlight=False)
    return int(bool(diverged))


def _kept(done: int, runs: int, out: str | None) -> str:
    """Return what is left of a comparison that an error ends, and how to go on."""
    if out is None:
        return f"{done} of {runs} runs were finished, and none is kept: name a folder (--out DIR) to go on another time"
    return f"{done} of {runs} runs are kept in {out}; the same command with --resume goes on with the others"


def resume(args: argparse.Namespace, console: Terminal) -> int:
    """Continue every run below a directory.

    If a run diverges or cannot be read, the others continue, and the exit status is 1.
    """
    runs = ordered_runs(args.directory, begun=True)
    if not runs:
        raise SettingError(NO_RUN.format(args.directory))
    federations, results, diverged, unread = Federations(), Results(), dict[str, str](), dict[str, str]()
    experiments = dict[Path, Experiment]()
    for place in runs:
        with _contain_failure(str(place), unread, len(runs), FedloomError):  # it was started from Python, or is damaged
            experiments[place] = open_experiment(place, args, console)
    try:
        for place, experiment in experiments.items():
            if args.rounds is not None:
                experiment = experiment.changed("run.rounds", args.rounds)
            if args.mirror is not None:
                address = None if args.mirror == "none" else args.mirror
                experiment = experiment.changed("run.mirror", address)
                experiment = mirrored_below(experiment, place.relative_to(args.directory).as_posix())
            name = (
                label(experiment.algorithm) if place == Path(args.directory) else str(place.relative_to(args.directory))
            )
            job = federations.job(experiment)
            if only_computes(job.settings.engine):
                job.run()
                continue
            with _contain_failure(name, diverged, len(runs)):
                results.append((name, train(name, job, console, place, resume=True, at=args.at)))
    finally:
        _show(results, args.directory, console)
        _show_diverged(diverged, console)
        for why in unread.values():
            console.print(f"not resumed: {why}")
    if Path(args.directory) not in runs:
        text = "every run that had begun is continued; if others had not, repeat their command with --resume"
        console.print(text)
    return int(bool(diverged or unread))


@contextmanager
def _contain_failure(
    name: str, problems: dict[str, str], runs: int, kind: type[FedloomError] = NonFiniteError
) -> Iterator[None]:
    """Record an error of the `kind`, so that the other runs continue; raise that of a single run."""
    try:
        yield
    except kind as error:
        if runs == 1:
            raise
        problems[name] = str(error)


def _show_diverged(diverged: Mapping[str, str], console: Terminal) -> None:
    for name, why in diverged.items():
        console.print(f"{name} diverged and is in no table: {why}")


def branch(args: argparse.Namespace, console: Terminal) -> int:
    """Copy a run up to a checkpoint, and continue the copy with other settings."""
    experiment = open_experiment(args.directory, args, console)
    methods = [pair.removeprefix("algorithm=") for pair in args.set if pair.startswith("algorithm=")]
    method = label([experiment.algorithm, *methods][-1])
    experiment = experiment.with_all(settings_of_method(args.set, method, [method]))
    if args.rounds is not None:
        experiment = experiment.changed("run.rounds", args.rounds)
    if experiment.run.mirror is not None and not any(pair.startswith("run.mirror=") for pair in args.set):
        experiment = experiment.changed("run.mirror", None)
        console.print("the branch has no mirror: --set run.mirror=ADDRESS gives it one")
    job, name = Federations().job(experiment), label(experiment.algorithm)
    job.branch(args.directory, args.out, at=args.at)
    _show([(name, train(name, job, console, args.out, resume=True))], args.out, console)
    return 0


def _trials(console: Terminal) -> Train:
    """Return what trains the runs of a sweep, with a progress bar each."""

    def run(name: str, job: Job, directory: Path, *, resume: bool, on_round: OnHistory) -> History:
        return train(name, job, console, directory, resume=resume, on_round=on_round)

    return run


def _reference_methods(args: argparse.Namespace) -> list[str]:
    """Return the methods that a comparison adds: local-only training, as the reference."""
    is_disabled = args.command != "compare" or len(args.algorithms) < 2 or args.no_local_only
    is_disabled = is_disabled or args.leave_one_site_out  # a site that takes part once trains no model alone
    return [] if is_disabled or any(is_local_only(name) for name in args.algorithms) else ["local_only"]


def _runs(args: argparse.Namespace, methods: Sequence[tuple[str, Experiment]], several: bool) -> dict[str, Experiment]:
    """Return a run for each method, given with its name, and each seed, by its folder below --out, which names it.

    `several`: whether each method has a folder.
    """
    out: dict[str, Experiment] = {}
    for name, experiment in methods:
        seeds = seeds_of(args.seeds, experiment)
        for seed in seeds:
            parts = [name] * several + [f"seed-{seed}"] * (len(seeds) > 1)
            place = "/".join(parts) or "."
            out[place] = mirrored_below(with_seed(experiment, seed), place)
    return out


def _method_of(history: History) -> str:
    return label(str(history.settings.get("algorithm") or history.algorithm))


def _comparison_tables(results: Results) -> Iterator[ConsoleRenderable]:
    """Yield a comparison table for each problem."""
    runs = [Run(name, history) for name, history in results]
    groups = group_by_problem(runs)
    for problem, group in zip(with_titles(groups), groups, strict=True):
        prefix = f"{problem.title}: " * (len(groups) > 1)
        yield comparison_table([(run.folder, run.history) for run in group], prefix)


def _show_tuning(results: Results, tuning: Mapping[str, Any], console: Terminal) -> None:
    if tuning and results:
        methods = methods_of([Run(name, history) for name, history in results])
        if (table := tuning_table(methods, tuning)) is not None:
            console.print()
            console.print(fit_terminal("What tuning moved", table, split=True))
            console.print(describe_tuning(tuning), soft_wrap=False)


def _show(results: Results, out: str | None, console: Terminal) -> None:
    if results:
        for table in _comparison_tables(results):
            console.print()
            console.print(table)
        by_method: dict[str, list[History]] = {}
        for name, history in results:
            if history.metrics:
                by_method.setdefault(_SEED.sub("", name) or _method_of(history), []).append(history)
        totals = summary(by_method) if by_method else None
        console.print()
        if totals is not None and totals.several:
            console.print(totals)
        else:
            console.print(readings_table(results))
            for caption, recall in totals.recalls() if totals is not None else []:
                console.print()
                console.print(fit_terminal(caption, recall, split=True))
        if out is not None:
            if totals is not None and len(results) > 1:
                paths = totals.write(out)
                console.print(f"summary: {', '.join(map(str, paths))}")
            console.print(f"settings, metrics and timing: {out}")
