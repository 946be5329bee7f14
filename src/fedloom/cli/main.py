"""Command `fedloom`."""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedloom.cli.argument_parser import way_on
from fedloom.cli.parser import parser
from fedloom.core.errors import FedloomError, SettingError, enough_memory, line_of
from fedloom.core.naming import forbid_imports

if TYPE_CHECKING:
    from fedloom.display.terminal import Terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print; return the exit status.

    It is 0; 1 (demo: a number is out of its range; verify: a run is damaged, or the root is not the expected one; run,
    compare, resume: one of several runs diverged, or could not be read; reproduce: a requested run is missing);
    2 (an error, or nothing could be run); 130 (interrupted, or left from a debugger).
    """
    words = sys.argv[1:] if argv is None else argv
    try:
        commands = parser(words)
    except SettingError as error:  # of what another package offers
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not words:
        commands.print_help()
        return 2
    args = commands.parse_args(words)
    from fedloom.display.terminal import Terminal  # which takes longer than all that is needed to print help

    debugs = getattr(args, "debug", False)
    console, errors = Terminal(force_terminal=False if debugs else None), Terminal(stderr=True)  # a bar hides prompts

    printed = set[str]()

    def announce(kind: str, style: str, text: str) -> None:
        errors.announce(kind, style, text)
        if way := way_on(text):
            errors.print(f"{way} tells more", style="dim", highlight=False)

    def show(message: Any, *rest: Any, **more: Any) -> None:
        if str(message) in printed:  # every run of a comparison warns again
            return
        printed.add(str(message))
        announce("warning", "yellow", str(message))

    try:
        do = _load_function(args.do)
        with enough_memory(), _permission(args), warnings.catch_warnings():  # not those of imports
            warnings.simplefilter("default")
            warnings.showwarning = show
            return do(args, console)
    except KeyboardInterrupt:
        return _interrupted("interrupted", args, errors)
    except Exception as error:
        if debugs and _left_debugger(error):
            return _interrupted("the debugger was left", args, errors)
        if not isinstance(error, (FedloomError, ValueError, OSError)):
            raise
        if debugs:
            traceback.print_exception(error)
        said = str(error)
        if hasattr(args, "settings"):
            from fedloom.cli.options import in_flags

            said = in_flags(said, args)
        announce("error", "red", said + (f" ({line})" if (line := line_of(error)) else ""))
        return 2


def _interrupted(how: str, args: argparse.Namespace, errors: Terminal) -> int:
    """Say how a command goes on that a person has ended, and return its exit status."""
    hint = ""
    if getattr(args, "continues", False):
        hint = "; the same command continues"
    elif hasattr(args, "resume"):
        kept = f"; what was written is kept in {args.out}: the same command with --resume continues"
        hint = "; nothing is kept, since no folder was named (--out DIR)" if args.out is None else kept
    errors.print(how + hint)
    return 130


def _left_debugger(error: BaseException | None) -> bool:
    """Return whether an error is, or was made of, what Python's debugger raises where somebody quits it."""
    from bdb import BdbQuit

    return error is not None and (isinstance(error, BdbQuit) or _left_debugger(error.__cause__ or error.__context__))


def _permission(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Return a context that allows or forbids imports of code that settings name.

    Code may be imported if the user types its name, or if --allow-code lets a run's folder name it.
    """
    allowed = getattr(args, "allow_code", True)
    return forbid_imports(None if allowed else "a run's settings may come from others: allow it with --allow-code")


def _load_function(name: str) -> Callable[[argparse.Namespace, Terminal], int]:
    """Import and return the function of a command, `module:function`."""
    module, _, function = name.partition(":")
    loaded: Callable[[argparse.Namespace, Terminal], int] = getattr(import_module(module), function)
    return loaded
