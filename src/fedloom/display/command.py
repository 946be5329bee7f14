"""Command of `fedloom`, as a room or another distribution declares it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Command:
    """Declaration of a command, which imports none of the command's code.

    Attributes:
        help: its line in the list of commands.
        do: what it runs, `module:function`, imported when it is called: it gets what the flags say and the terminal,
            and returns the exit status. "" where `inner` has the commands.
        flags: adds its arguments and flags to its parser.
        inner: commands behind its name, as `fedloom data show`.
    """

    help: str
    do: str = ""
    flags: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    inner: Mapping[str, Command] = field(default_factory=dict)
