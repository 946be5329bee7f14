"""`fedloom models`: the networks that have names, without importing them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fedloom.cli.index import INDEX
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal, table
from fedloom.wording import did_you_mean


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print the networks: what they are, what they are made for, and how many parameters they have then.

    Raises:
        SettingError: one that was asked for is unknown.
    """
    known: Mapping[str, Any] = INDEX["models"]
    for name in args.names:
        if name not in known:
            raise SettingError(
                f"unknown model {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}; those of "
                "torchvision are torchvision:NAME"
            )
    out = table(
        "Networks",
        "Sizes follow the data; the parameters are those for the inputs beside them. Settings follow a name, "
        "--model 'lstm?hidden=128'. Where torchvision is installed, its networks are torchvision:NAME, with GroupNorm "
        "torchvision:NAME?norm=group; your own are module:name. --start FILE begins with the weights of a file.",
    )
    out.add_column("name", no_wrap=True)
    for heading, justify in (("what it is", "left"), ("inputs", "left"), ("parameters", "right"), ("settings", "left")):
        out.add_column(heading, overflow="fold", justify=justify)  # type: ignore[arg-type]
    for name in args.names or known:
        one = known[name]
        out.add_row(name, one["what"], one["inputs"], f"{one['parameters']:,}", one["settings"])
    console.print(out)
    return 0
