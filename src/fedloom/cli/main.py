"""The command `fedloom`."""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedloom.cli.parser import parser
from fedloom.core.errors import FedloomError, enough_memory
from fedloom.core.naming import forbid_imports, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print; return the exit status.

    It is 0; 1 (demo: a number is off; reproduce: something asked for is missing; verify: a run is not whole, or the
    root is not the expected one; run, compare, resume: one of several runs diverged, or could not be read);
    2 (an error, or nothing could be run); 130 (interrupted).
    """
    asked = sys.argv[1:] if argv is None else argv
    if not asked:
        parser().print_help()
        return 2
    args = parser().parse_args(asked)
    console, errors = _Terminal(), _Terminal(stderr=True)

    shown = set[str]()

    def show(message: Any, *rest: Any, **more: Any) -> None:
        if str(message) in shown:  # of every run of a comparison
            return
        shown.add(str(message))
        console.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

    try:
        do = _function(args.do)
        with enough_memory(), _permission(args), warnings.catch_warnings():  # not those of imports
            warnings.simplefilter("default")
            warnings.showwarning = show
            return do(args, console)
    except (FedloomError, ValueError, OSError) as error:
        errors.print(f"[red]error:[/] {escape(str(error) + _place(error))}", highlight=False, soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        by_flag = hasattr(args, "resume") and args.out is not None
        goes_on = "; the same command with --resume goes on" if by_flag else ""
        errors.print("interrupted" + ("; the same command goes on" if args.command == "reproduce" else goes_on))
        return 130


def _permission(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Return a context in which imports of code that settings name are forbidden or not.

    Code may be imported where a person types its name, and where --allow-code lets a run's folder name it.
    """
    allowed = getattr(args, "allow_code", True)
    return forbid_imports(None if allowed else "a run's settings are somebody's words: allow it with --allow-code")


class _Terminal(Console):
    """A console on which words of files and folders do nothing: their control characters are not sent to it."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(_harmless(o) if isinstance(o, str) else o for o in objects), **how)


def _harmless(text: str) -> str:
    return "\n".join(printable(line, len(line)) for line in text.split("\n"))


def _function(name: str) -> Callable[[argparse.Namespace, Console], int]:
    """Return the function of a command, MODULE.NAME of this package; it is imported when it is asked for."""
    module, _, function = name.partition(".")
    found: Callable[[argparse.Namespace, Console], int] = getattr(import_module(f"fedloom.cli.{module}"), function)
    return found


def _place(error: BaseException) -> str:
    """Return where in somebody's own code an error came from: its innermost line outside of Python and all packages."""
    origin = error.__cause__ if isinstance(error, FedloomError) else error
    frames = [] if origin is None else traceback.extract_tb(origin.__traceback__)
    packages = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))
    own = [f for f in frames if Path(f.filename).exists() and not any(map(Path(f.filename).is_relative_to, packages))]
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
