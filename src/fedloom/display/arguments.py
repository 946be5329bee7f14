"""Arguments that several commands take: folders, files, counts, rounds, the permission to import code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from fedloom.wording import local_path


def directory(text: str) -> str:
    """Return the directory of a flag; refuse an empty name, as from an unset variable of a shell, and an address."""
    return _place(text, "a directory")


def file(text: str) -> str:
    """Return the file of a flag; refuse an empty name and an address."""
    return _place(text, "a file")


def _place(text: str, what: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(f"is empty; name {what}")
    try:
        return os.fspath(local_path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not {what} here: {error}") from None


def count(text: str) -> int:
    """Return a number of at least 1 that a person has typed."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"is a number of at least 1, got {text!r} [FL-CLI-003]")
    return int(text)


def round_or_best(text: str) -> int | str:
    """Return the round that a person names: its number, or "best" for the best one on validation data."""
    if text != "best" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"is the number of a round, or best, got {text!r}")
    return text if text == "best" else int(text)


def allow_code(parser: argparse.ArgumentParser) -> None:
    """Add the flag that permits imports of the code that a run's folder names."""
    parser.add_argument(
        "--allow-code", action="store_true",
        help="import the code that the run's settings name as module:name; without it, runs with such code are refused",
    )  # fmt: skip


def script(add: Callable[..., Any]) -> None:
    """Add the flag that writes runs as a script for a cluster, by what adds flags to a parser or a group."""
    add(
        "--script", metavar="slurm:OPTIONS",
        help="run nothing, and print a script that runs each cell as a job of a Slurm array, or one after another by "
        "bash: slurm, or slurm:time=2:00:00,cpus=2,partition=short",
    )  # fmt: skip
