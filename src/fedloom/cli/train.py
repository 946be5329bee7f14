"""`fedloom run`, `compare` and `resume`: train, show, write."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console, ConsoleRenderable

from fedloom.cli.options import experiments, opened, pairs, seeds, with_seed
from fedloom.coordinator import History, Job, RunSettings, check_free
from fedloom.coordinator.history import showing
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.errors import FedloomError, NonFiniteError, SettingError
from fedloom.core.model import Model
from fedloom.data import Examples, Federation
from fedloom.display.progress import Whole, progress
from fedloom.experiments.catalogue import label
from fedloom.experiments.experiment import Experiment, Federations
from fedloom.experiments.trackers import track, tracker
from fedloom.report import comparison_table, readings_table, summary
from fedloom.report.grouping import grouped, titled
from fedloom.report.methods import Run, is_local_only
from fedloom.report.order import ordered_runs, write_order
from fedloom.wire.communication import only_computes

Results = list[tuple[str, History]]
_SEED = re.compile(r"/?seed-\d+$")


def compare(args: argparse.Namespace, console: Console) -> int:
    """Train with each algorithm and each seed.

    A run that diverges costs no other, and the exit status is 1 then. What others gave is shown even where one fails
    otherwise.
    """
    beside = [*args.algorithms, *_beside(args)]
    chosen = experiments(args, beside)
    runs = {_place(e, s, args, chosen): with_seed(e, s) for e in chosen for s in seeds(args.seeds, e)}
    if args.resume and args.out is None:
        raise SettingError("--resume goes on with what a directory holds; name it with --out DIR")
    computes = only_computes(chosen[0].run.engine)
    if args.out is not None and not args.resume and not computes:
        for place in runs:
            check_free(Path(args.out, place))
    for text in args.track:
        tracker(text)  # a wrong name shows before any work
    federations = Federations()
    jobs = {place: federations.job(experiment) for place, experiment in runs.items()}
    added = beside[len(args.algorithms) :]
    for place, job in list(jobs.items()):  # what does not fit shows before the first of them trains
        try:
            if runs[place].algorithm in added and job.federation.local_test is None:
                raise SettingError("clients hold out no examples to be judged on")
            job.check()
        except SettingError as error:
            if runs[place].algorithm not in added:
                raise
            del jobs[place]
            console.print(f"{place} is left out: {error}", markup=False, soft_wrap=True)
    if computes:
        for job in jobs.values():
            job.run()
        return 0
    if args.out is not None and len(chosen) > 1:
        write_order(args.out, list(dict.fromkeys(Path(place).parts[0] for place in jobs)))
    first = next(iter(jobs.values()))
    introduce(first.federation, first.population.models, first.settings, console)
    results: Results = []
    diverged: dict[str, str] = {}
    whole = Whole([job.settings.rounds for job in jobs.values()])
    try:
        for place, job in jobs.items():
            name = place if place != "." else label(chosen[0].algorithm)
            directory = None if args.out is None else Path(args.out, place)
            how = {"resume": args.resume, "trackers": args.track, "whole": whole}
            with _costs_no_other(name, diverged, len(jobs)):
                results.append((name, train(name, job, console, directory, **how)))
    finally:  # where one fails or is interrupted, what the others gave is still worth a look
        _show(results, args.out, console)
        _show_diverged(diverged, console)
    return int(bool(diverged))


def resume(args: argparse.Namespace, console: Console) -> int:
    """Go on with every run below a directory.

    A run that diverges, or that cannot be read, costs no other; the exit status is 1 then.
    """
    runs = ordered_runs(args.directory, begun=True)
    if not runs:
        raise SettingError(f"there is no run in {args.directory}; name the folder that --out named")
    federations, results, diverged, left = Federations(), Results(), dict[str, str](), dict[str, str]()
    experiments = dict[Path, Experiment]()
    for place in runs:
        with _costs_no_other(str(place), left, len(runs), FedloomError):  # started from Python, or damaged
            experiments[place] = opened(place, args, console)
    try:
        for place, experiment in experiments.items():
            if args.rounds is not None:
                experiment = experiment.changed("run.rounds", args.rounds)
            name = (
                label(experiment.algorithm) if place == Path(args.directory) else str(place.relative_to(args.directory))
            )
            job = federations.job(experiment)
            if only_computes(job.settings.engine):
                job.run()
                continue
            with _costs_no_other(name, diverged, len(runs)):
                results.append((name, train(name, job, console, place, resume=True, at=args.at)))
    finally:
        _show(results, args.directory, console)
        _show_diverged(diverged, console)
        for why in left.values():
            console.print(f"left as it is: {why}", markup=False, soft_wrap=True)
    if Path(args.directory) not in runs:
        text = "went on with every run that had begun; the command that made them starts the others too, with --resume"
        console.print(text, markup=False, soft_wrap=True)
    return int(bool(diverged or left))


@contextmanager
def _costs_no_other(
    name: str, noted: dict[str, str], runs: int, kind: type[FedloomError] = NonFiniteError
) -> Iterator[None]:
    """Note why a run among several diverges, or fails with another error of the `kind`; raise that of a single run."""
    try:
        yield
    except kind as error:
        if runs == 1:
            raise
        noted[name] = str(error)


def _show_diverged(diverged: Mapping[str, str], console: Console) -> None:
    for name, why in diverged.items():
        console.print(f"{name} is in no table, it diverged: {why}", markup=False, soft_wrap=True)


def branch(args: argparse.Namespace, console: Console) -> int:
    """Begin a run as another did, with other settings from there on, and train."""
    experiment = opened(args.directory, args, console)
    named = [pair.removeprefix("algorithm=") for pair in args.set if pair.startswith("algorithm=")]
    own = label([experiment.algorithm, *named][-1])
    experiment = experiment.with_all(pairs(args.set, own, [own]))
    if args.rounds is not None:
        experiment = experiment.changed("run.rounds", args.rounds)
    job, name = Federations().job(experiment), label(experiment.algorithm)
    job.branch(args.directory, args.out, at=args.at)
    _show([(name, train(name, job, console, args.out, resume=True))], args.out, console)
    return 0


def train(
    name: str,
    job: Job,
    console: Console,
    directory: Path | None = None,
    *,
    resume: bool = False,
    at: int | None = None,
    trackers: Sequence[str] = (),
    on_round: OnHistory | None = None,
    whole: Whole | None = None,
) -> History:
    """Run a job with a progress bar, and print what a reader should know of how it went."""

    def announce(history: History) -> None:
        which = f"{whole.which}, " if whole is not None and whole.which else ""
        text = f"{which}{name}: {history.engine} engine ({history.engine_reason})"
        if resume and history.metrics:
            text += f", from round {history.metrics[-1]['round']}"
        console.print(text, markup=False, soft_wrap=True)
        for network, said in history.manifest.get("front", {}).items():
            console.print(f"frozen front of {network}: {said}", markup=False, soft_wrap=True)

    with ExitStack() as stack:
        watchers = [showing(stack.enter_context(progress(console, name, job.settings.rounds, whole=whole)))]
        watchers += [] if on_round is None else [on_round]
        for text in trackers:
            watchers.append(stack.enter_context(track(tracker(_own_folder(text, name)), dict(job.described or {}))))

        def watch(history: History) -> None:
            for watcher in watchers:
                watcher(history)

        history = job.run(directory, resume=resume, at=at, on_start=announce, on_round=watch)
    if stayed := [str(m["round"]) for m in history.metrics if "server_refused" in m]:
        text = f"{name}: the server's new state was not finite, it kept the one before, in round {', '.join(stayed)}"
        console.print(text, markup=False, soft_wrap=True)
    if history.stopped is not None:
        console.print(f"{name}: stopped after round {history.metrics[-1]['round']}: {history.stopped}", markup=False)
    return history


def introduce(federation: Federation, models: Mapping[str, Model], settings: RunSettings, console: Console) -> None:
    """Print what is about to run: data, clients, models."""
    train, test, sizes = federation.train, federation.test, federation.partition.sizes
    held = sum(int(part.sizes.sum()) for part in (federation.local_test, federation.local_val) if part is not None)
    span = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    lines = (
        f"data: {train.name.removesuffix(' train')}, {sizes.sum():,} training and {len(test or ()):,} test examples "
        f"of {of_one(train)}, {federation.num_classes} classes" + f"; clients hold out {held:,} more" * (held > 0),
        f"clients: {federation.num_clients}, {federation.partition.name}, {span} examples each to train on; "
        f"{settings.cohort_size} a round for {settings.rounds} round{'s' * (settings.rounds > 1)}",
        "model: " + ", ".join(f"{name} ({model.num_params:,} parameters)" for name, model in models.items()),
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def of_one(examples: Examples) -> str:
    """Describe one example: "3 x 32 x 32", "54 features"."""
    return " x ".join(map(str, examples.shape)) + " features" * (len(examples.shape) == 1)


def _beside(args: argparse.Namespace) -> list[str]:
    """Return what a comparison adds to what it names: local-only training, by which federated learning is measured."""
    declined = args.command != "compare" or len(args.algorithms) < 2 or args.no_local_only
    return [] if declined or any(is_local_only(name) for name in args.algorithms) else ["local_only"]


def _place(experiment: Experiment, seed: int, args: argparse.Namespace, all: Sequence[Experiment]) -> str:
    """Return where a run stands below --out, which is also what it is called."""
    parts = [label(experiment.algorithm)] if len(all) > 1 else []
    parts += [f"seed-{seed}"] if len(seeds(args.seeds, experiment)) > 1 else []
    return "/".join(parts) or "."


def _own_folder(text: str, name: str) -> str:
    """Return a tracker with a folder of the run's own where it is TensorBoard, which tells runs apart by folder."""
    return f"{text}/{name}" if text.startswith("tensorboard:") else text


def _called(history: History) -> str:
    return label(str(history.settings.get("algorithm") or history.algorithm))


def _by_problem(results: Results) -> Iterator[ConsoleRenderable]:
    """Yield a table for each problem that shows where its runs ended."""
    runs = [Run(name, history) for name, history in results]
    groups = grouped(runs)
    for problem, group in zip(titled(groups), groups, strict=True):
        called = f"{problem.title}: " * (len(groups) > 1)
        yield comparison_table([(run.folder, run.history) for run in group], called)


def _show(results: Results, out: str | None, console: Console) -> None:
    if results:
        for table in _by_problem(results):
            console.print()
            console.print(table)
        by_method: dict[str, list[History]] = {}
        for name, history in results:
            if history.metrics:
                by_method.setdefault(_SEED.sub("", name) or _called(history), []).append(history)
        found = summary(by_method) if by_method else None
        console.print()
        console.print(found if found is not None and found.several else readings_table(results))
        if out is not None:
            if found is not None and len(results) > 1:
                paths = found.write(out)
                console.print(f"summary: {', '.join(map(str, paths))}", markup=False, soft_wrap=True)
            console.print(f"settings, metrics and timing: {out}", markup=False, soft_wrap=True)
