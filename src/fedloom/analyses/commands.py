"""Command of analyses."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import allow_code, directory
from fedloom.display.command import Command


def _analyse(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", type=directory, help="a run")
    parser.add_argument("names", nargs="*", metavar="NAME", help="analyses that --list shows; or all")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--round", type=int, metavar="T", help="the round to analyse (default: the last in which clients trained)"
    )
    which.add_argument(
        "--rounds",
        metavar="A,B,C",
        help="rounds of curves, or all (default: ten, evenly spaced); other analyses take the last of them",
    )
    parser.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    parser.add_argument(
        "--client", metavar="NAME",
        help="the model of this client, by its name or number (confusion, membership-inference), or its upload "
        "(gradient-inversion)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps in which rows are fitted (gradient-inversion; default: 300)"
    )
    parser.add_argument(
        "--shadows", type=int, metavar="N",
        help="train N runs on halves of the clients' examples first, for the likelihood ratio (membership-inference)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=directory, metavar="DIR", help="where figures and numbers go (default: analysis/ in the run)"
    )
    parser.add_argument("--list", action="store_true", help="list the analyses")
    allow_code(parser)


COMMANDS = {
    "analyse": Command(
        help="measure what happened inside the rounds of a run: figures and numbers",
        do="fedloom.analyses.analyse_run:run",
        flags=_analyse,
    ),
}
