"""`fedloom predict` and `fedloom evaluate`: a trained model on new rows."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.table import Table

from fedloom.core.errors import SettingError
from fedloom.core.task import Task
from fedloom.core.task_measures import TaskMeasure
from fedloom.deploy.device.device_results import is_of_device, model_of_device
from fedloom.display.progress import Show, progress
from fedloom.display.terminal import Terminal, table
from fedloom.evaluate.bootstrap import LEAST_ROWS, RESAMPLES, Interval
from fedloom.experiments.prediction_rows import RowReader
from fedloom.experiments.predictions import Predictions, predict as predict_rows, predict_by
from fedloom.experiments.run_evaluation import evaluate_by, evaluate_run
from fedloom.experiments.stored_experiments import print_code
from fedloom.experiments.trained_model import ModelAfterRound
from fedloom.storage.output import as_csv, check_new
from fedloom.wording import some_of

_FEW = 5  # sites in a line


def predict(args: argparse.Namespace, console: Terminal) -> int:
    """Write what a model of a run says of new rows: to a file, or to standard output."""
    if args.out is None:
        console = Terminal(stderr=True)  # for words beside the table
    elif not os.path.isdir(args.out):  # which masks are written into
        check_new(args.out, args.overwrite)
    if is_of_device(Path(args.directory)):
        return _write(predict_by(*_of_device(args), args.data), args, console)
    print_code(args.directory, args, console)
    said = predict_rows(
        args.directory,
        args.data,
        client=args.client,
        at=args.at,
        model=args.model,
        allow_code=args.allow_code,
    )
    return _write(said, args, console)


def _of_device(args: argparse.Namespace) -> tuple[ModelAfterRound, RowReader, tuple[Task, float | None]]:
    """Return a model that a device has of a finished run, with the reader of new rows and the task."""
    if args.at is not None or args.model is not None or args.client not in (None, "global", "personal"):
        raise SettingError(
            f"{args.directory} is of a device, which has the models of the last round: leave --at and --model out, and "
            "give --client global or --client personal"
        )
    return model_of_device(Path(args.directory), args.client)


def _write(said: Predictions, args: argparse.Namespace, console: Terminal) -> int:
    if args.out is None:
        sys.stdout.write(as_csv(said.rows()))
    write = said.csv if said.values.ndim < 3 else said.masks
    where = "standard output" if args.out is None else write(args.out, overwrite=args.overwrite)
    text = f"{said.whose} after round {said.round}{_by(said.threshold)} on {len(said):,} rows: {where}"
    console.print(text)
    return 0


def evaluate(args: argparse.Namespace, console: Terminal) -> int:
    """Print the measures of a model of a run on new rows; with --out, write them with those of all sites.

    Without new rows they are what the client holds out.
    """
    if args.out is not None:
        check_new(args.out, args.overwrite)
    measures = () if args.measures is None else args.measures.split(",")
    what = args.data or f"what client {args.client} holds out"
    said = f"evaluating {what}, with intervals of {RESAMPLES:,} resamples of its rows"
    if is_of_device(Path(args.directory)):
        if args.data is None:
            raise SettingError(
                f"{args.directory} is of a device, and a model is measured there on new rows alone, got none: give "
                "--data FILE (its own numbers are in curves.jsonl)"
            )
        with _telling(said, console) as show:
            found = evaluate_by(*_of_device(args), args.data, measures=measures, seed=args.seed, on_hundredth=show)
    else:
        print_code(args.directory, args, console)
        with _telling(said, console) as show:
            found = evaluate_run(
                args.directory,
                args.data,
                client=args.client,
                at=args.at,
                model=args.model,
                measures=measures,
                seed=args.seed,
                allow_code=args.allow_code,
                on_hundredth=show,
            )
    text = f"{found.whose} after round {found.round}{_by(found.threshold)} on {found.rows:,} rows"
    console.print(text)
    out = _table("All rows", "measure")
    for name, of in found.measures.items():
        out.add_row(found.described[name].title, *_shown(of, found.described[name]))
    console.print(out)
    for name in [*found.measures][: None if args.measures else 1] if found.by_site else []:
        out = _table(f"By site: {found.described[name].title}", "site", "rows")
        for site, measured in found.by_site.items():
            out.add_row(site, f"{found.sizes[site]:,}", *_shown(measured[name], found.described[name]))
        console.print(out)
    if found.few:
        listed = some_of((f"{site} ({rows})" for site, rows in found.few.items()), _FEW)
        console.print(f"sites with fewer than {LEAST_ROWS} rows are not measured by themselves: {listed}")
    if args.out is not None:
        console.print(f"measures: {found.csv(args.out, overwrite=args.overwrite)}")
    return 0


@contextmanager
def _telling(said: str, console: Terminal) -> Iterator[Callable[[int], None]]:
    """Show what takes the time, and once there are intervals, how many hundredths of them are done."""
    with ExitStack() as stack:
        status, bar = stack.enter_context(console.status(said)), list[Show]()

        def show(hundredth: int) -> None:
            if not bar:
                status.stop()
                bar.append(stack.enter_context(progress(console, "intervals", 100, each="part")))
            bar[0](hundredth, f"{RESAMPLES:,} resamples")

        yield show


def _by(threshold: float | None) -> str:
    return "" if threshold is None else f", by the threshold {threshold:.4f} that validation examples chose,"


def _table(title: str, first: str, *others: str) -> Table:
    out = table(title)
    out.add_column(first)
    for name in (*others, "value", "95 % interval"):
        out.add_column(name, justify="right")
    return out


def _shown(of: Interval, measure: TaskMeasure) -> tuple[str, str]:
    """Return a value and its interval; shares in percent."""
    if not math.isfinite(of.value):
        return "undefined", "-"

    def text(value: float) -> str:
        return f"{100 * value:.2f} %" if measure.unit == "%" else f"{value:.4g}"

    return text(of.value), f"{text(of.low)} to {text(of.high)}" if math.isfinite(of.low) else "-"
