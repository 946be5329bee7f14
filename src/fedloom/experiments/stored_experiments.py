"""Experiments of runs that a command names, with the permission to import code that they name."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedloom.display.terminal import Terminal
from fedloom.experiments.experiment import Experiment


def open_experiment(directory: str | Path, args: argparse.Namespace, console: Terminal) -> Experiment:
    """Return the experiment of the run in a directory."""
    print_code(directory, args, console)
    return Experiment.from_directory(directory, allow_code=args.allow_code)


def print_code(directory: str | Path, args: argparse.Namespace, console: Terminal) -> None:
    """Print the code that the run in a directory names, if it may be imported, before its import."""
    if args.allow_code and (code := Experiment.code_of(directory)):
        text = f"{directory} imports {', '.join(code)}"
        console.print(text, highlight=False)
