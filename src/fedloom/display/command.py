"""Command of `fedloom`, as a room or another distribution declares it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """Declaration of a command, which imports none of the command's code.

    Attributes:
        help: its line in the list of commands.
        do: what it runs, `module:function`, imported when it is called: it gets what the flags say and the terminal,
            and returns the exit status.
        flags: adds its arguments and flags to its parser.
    """

    help: str
    do: str
    flags: Callable[[argparse.ArgumentParser], None] = lambda parser: None
