"""`fedloom explain`: what a message means, by the code in brackets at its end."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.wording import did_you_mean


def explanations() -> dict[str, str]:
    """Return what there is to say of each code; `scripts/make_errors.py` writes it, and a test compares."""
    found: dict[str, str] = json.loads(Path(__file__).with_name("errors.json").read_bytes())
    return found


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print what a code means, why there is the rule, how to mend what broke it, and examples; without one, all codes.

    Raises:
        SettingError: there is no such code.
    """
    known = explanations()
    if args.code is None:
        for text in known.values():
            console.print(text.partition("\n")[0], highlight=False)
        return 0
    if (code := args.code.strip("[]").upper()) not in known:
        raise SettingError(
            f"a code is one that `fedloom explain` lists, got {args.code!r}{did_you_mean(code, known)}: copy it from "
            "the brackets at the end of a message [FL-CLI-004]"
        )
    console.print(known[code], highlight=False)
    return 0
