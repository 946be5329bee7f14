"""`fedloom report` and `summary`: the page of runs, and means over seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.report import summary, write_report
from fedloom.report.level_costs import TO


def report(args: argparse.Namespace, console: Terminal) -> int:
    """Write one page about every run below some directories."""
    path = write_report(
        [Path(d) for d in args.directories], args.out, names=_names(args.name), over=args.over, to=args.to or TO
    )
    console.print(f"report: {path}")
    return 0


def summarise(args: argparse.Namespace, console: Terminal) -> int:
    """Print means over seeds and differences, and with --out write them for a paper."""
    columns = None if args.columns is None else args.columns.split(",")
    result = summary(
        *map(Path, args.directories),
        against=args.against,
        reading=args.reading,
        names=_names(args.name),
        columns=columns,
        to=args.to,
    )
    console.print(result)
    if args.out is not None:
        console.print(f"files: {', '.join(map(str, result.write(args.out)))}")
    return 0


def _names(texts: Sequence[str]) -> dict[str, str]:
    """Return OLD=NEW of each --name, split at the last =, since names of methods may contain settings."""
    pairs = [text.rpartition("=") for text in texts]
    for text, (old, equals, new) in zip(texts, pairs, strict=True):
        if not (old and equals and new):
            raise SettingError(f"--name takes OLD=NEW, as in fedavg=FedAvg, got {text!r}")
    names = {old: new for old, _, new in pairs}
    if len(names) < len(pairs):
        raise SettingError(f"--name takes each OLD once, got {' '.join(texts)}: drop the repeats")
    return names
