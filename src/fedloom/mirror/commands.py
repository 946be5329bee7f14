"""Commands of mirrors."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import directory
from fedloom.display.command import Command


def _fetch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", help="of the mirror, as --mirror named it; or of a folder with mirrors below it")
    parser.add_argument("directory", type=directory, help="a new folder")


COMMANDS = {
    "fetch": Command(
        help="copy a run from its mirror, to go on with it here", do="fedloom.mirror.fetch:fetch_runs", flags=_fetch
    ),
}
