"""`fedloom algorithms`: the list of algorithms, without importing them."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from fedloom.cli.index import INDEX
from fedloom.display.terminal import table


def show(args: argparse.Namespace, console: Console) -> int:
    """Print every algorithm, its settings with their defaults, and the first line of its file."""
    out = table("Algorithms", "Change a setting with --set NAME=VALUE (run) or --set ALGORITHM.NAME=VALUE (compare).")
    out.add_column("name", no_wrap=True)
    for heading in ("what it is", "settings"):
        out.add_column(heading, overflow="fold")
    for name, entry in INDEX["algorithms"].items():
        out.add_row(name, escape(entry["what"]), escape(entry["settings"]))
    console.print(out)
    return 0
