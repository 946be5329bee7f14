"""`fedloom data`: classes by client, lists of data sets, and their files."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from fedloom.cli.options import experiments
from fedloom.core.errors import SettingError
from fedloom.data import Examples
from fedloom.display.terminal import Terminal, table
from fedloom.experiments.catalogue import PARTITIONS
from fedloom.experiments.shown_runs import describe_shape
from fedloom.report import FederationTable, TargetTable, draw_federation, draw_targets
from fedloom.report.style import FIGURES, drawing, rendered
from fedloom.sources.sources_by_name import SOURCES, download
from fedloom.storage.output import publish
from fedloom.wording import some_of

_NAMED = 30  # classes
_TARGETS = 5  # that are shown


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print, and with --out draw, the examples by client and class, or the targets by client."""
    (experiment,) = experiments(args, ["fedavg"], sections=("data", "run"))  # the algorithm does not matter here
    federation = experiment.federation()
    train = federation.train
    by = "target" if train.y.is_floating_point() else "class"
    console.print(f"{train.name}, {describe_shape(train)}; {federation.partition.name}; training examples by {by}")
    if train.classes:
        called = (f"{c} {name}" for c, name in enumerate(train.classes))
        console.print(f"classes: {some_of(called, _NAMED)}", highlight=False)
    if train.preparation is not None:
        facts = train.preparation.facts
        console.print(f"{facts['fitted_on']:,} training rows prepare the columns:", highlight=False)
        columns = facts["columns"]
        for name, what in columns.items() if isinstance(columns, dict) else [("all", columns)]:
            shown = facts.get("thousands", {}).get(name)
            what = f"thousands parted, as in {shown}; {what}" if shown else what
            console.print(f"  {name}: {what}", highlight=False)
    if by == "target":
        for name, values in _targets(train):
            console.print(TargetTable(values, federation.partition, name, shown=args.shown))
    else:
        counts = federation.counts()
        console.print(FederationTable(counts, shown=args.shown, names=federation.partition.clients))
    if args.out is not None:
        kind = next((kind for kind in FIGURES if Path(args.out).suffix.lower() == f".{kind}"), None)
        if kind is None:
            raise SettingError(f"a figure is .png, .svg or .pdf, got {args.out!r}")
        with drawing():
            title = federation.partition.name
            if by == "target":
                name, values = _targets(train)[0]
                figure = draw_targets(values, federation.partition, name=name, title=title)
            else:
                figure = draw_federation(counts, classes=train.classes, title=title)
            drawn = rendered(figure, kind)
        publish(Path(args.out).parent, Path(args.out).name, drawn)
        console.print(f"figure: {args.out}")
    return 0


def _targets(train: Examples) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """Return the name and the numbers of each of the first targets."""
    columns = train.y.reshape(len(train), -1)[:, :_TARGETS].numpy()
    names = train.targets or ["target", *(f"target {k}" for k in range(2, 1 + columns.shape[1]))]
    return list(zip(names, columns.T, strict=False))


def list_sources(args: argparse.Namespace, console: Terminal) -> int:
    """List the values of --data and --partition."""
    rest = (
        "Original files as NAME:FOLDER. Also FILE.npz, FILE.csv?label=y, sites/*.csv?label=y, huggingface:NAME, "
        "module:name."
    )
    out = table("Data sources", rest)
    out.add_column("name", no_wrap=True)
    out.add_column("what it is", overflow="fold")
    out.add_column("fedloom data download", justify="center")
    for source in SOURCES.values():
        fetched = "yes" if source.download else "-" if source.files else "needs no files"
        out.add_row(source.name, source.what.replace("`", ""), fetched)
    console.print(out)
    out = table("Partitions", "What stands behind a name may be left out.")
    out.add_column("name", no_wrap=True)
    out.add_column("what it does", overflow="fold")
    for partition in PARTITIONS.values():
        out.add_row(partition.form, partition.sentence.replace("`", ""))
    console.print(out)
    return 0


def fetch(args: argparse.Namespace, console: Terminal) -> int:
    """Download a data set's published files."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        paths = download(args.source, args.folder, progress=lambda file: _Bar(bar, file))
    for path in paths:
        console.print(str(path))
    console.print(f"train on it with --data {args.source}:{args.folder}")
    return 0


class _Bar:
    """Progress bar of a file, which `download` fills."""

    def __init__(self, bar: Progress, file: str) -> None:
        self.bar, self.task = bar, bar.add_task(escape(file), total=None)

    @property
    def total(self) -> float:
        return self.bar.tasks[self.task].total or 0

    @total.setter
    def total(self, count: float) -> None:
        self.bar.update(self.task, total=count or None)

    def update(self, count: int) -> None:
        self.bar.advance(self.task, count)

    def reset(self) -> None:
        self.bar.reset(self.task)

    def close(self) -> None: ...
