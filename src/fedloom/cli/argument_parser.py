"""Parse arguments with errors of a line or two."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from fedloom.wording import did_you_mean

_CODE = re.compile(r"\[(FL-[A-Z]+-\d{3})\]")
# Flags that nobody types who means one of fedloom's.
_PFLLIB = frozenset({"-algo", "-did", "-eg", "-gr", "-jr", "-lbs", "-ld", "-ldg", "-ls", "-nc"})


def way_on(message: str) -> str:
    """Return the command that explains a message by its code; "" where it has none."""
    codes = _CODE.findall(message)
    return f"fedloom explain {codes[-1]}" if codes else ""


class Parser(argparse.ArgumentParser):
    """Parser whose errors are a line or two, with a guess of the intended flag, command or value.

    Attributes:
        elsewhere: of commands that are missing here, the package that brings them.
        fill: adds the flags, when they are first needed; None where they are there.
    """

    fill: Callable[[], None] | None = None
    elsewhere: Mapping[str, str] = MappingProxyType({})

    def filled(self) -> Parser:
        """Return this parser with its flags."""
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill()
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.filled()
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            if self.prog == "fedloom run" and not unknown[0].startswith("-"):
                close = ": fedloom compare trains with several algorithms"
            if _PFLLIB.intersection(unknown):
                close = ": coming from PFLlib? docs/coming-from.md has its flags"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{close} [FL-CLI-002]")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            if (package := self.elsewhere.get(str(value))) is not None:
                self.error(
                    f"{value} is a command of {package}: pip install '<PATH>' brings it, where <PATH> is the folder "
                    "papers of fedloom's or its wheel file"
                )
            choices = list(map(str, action.choices))
            said = f"invalid choice: {value!r}{did_you_mean(str(value), choices)}"
            raise argparse.ArgumentError(action, f"{said}; there are {', '.join(choices)} [FL-CLI-001]")

    def error(self, message: str) -> NoReturn:
        way = way_on(message)
        more = f"{self.prog} --help tells more{way and f', and {way}'}"
        self.exit(2, f"{self.prog}: error: {message}\nusage: {more}\n")
