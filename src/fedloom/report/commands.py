"""Commands of results: the page, and tables for a paper."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import directory
from fedloom.display.command import Command


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    parser.add_argument(
        "--out", type=directory, metavar="DIR", help="where the report goes (default: report/ in the directory)"
    )
    parser.add_argument(
        "--over", default="rounds", metavar="X", help="what learning curves are drawn over in files, and first on the "
        "page: rounds, bytes or virtual_time (default: rounds)",
    )  # fmt: skip
    _add_level(parser)
    _add_names(parser)
    parser.set_defaults(allow_code=False)


def _summary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    parser.add_argument(
        "--against", metavar="METHOD", help="the method that others are compared with (default: the first)"
    )
    parser.add_argument(
        "--reading", default="last", metavar="R", help="reading of differences: last, tail, validated, best or mean"
    )
    parser.add_argument(
        "--columns", metavar="C", help="columns of accuracies in this order, with commas: seeds, readings as of "
        "--reading; differences for their table, noted for that of a method's own numbers, or some of these by name, "
        "client_gap (default: all of these); rounds_to, bytes_to, bytes_down_to, bytes_up_to, seconds_to (virtual "
        "time): what it costs to reach --to",
    )  # fmt: skip
    _add_level(parser)
    _add_names(parser)
    parser.add_argument("--out", type=directory, metavar="DIR", help="where summary.tex, summary.md and summary.csv go")
    parser.set_defaults(allow_code=False)


def _add_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", metavar="LEVEL", help="level whose cost in rounds, bytes and virtual time is shown: a value, 0.8, or a "
        "share of where the method ends that others are compared with (default: 95%%)",
    )  # fmt: skip


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", action="append", default=[], metavar="OLD=NEW",
        help="another name of a method or a data set in tables and figures, fedavg=FedAvg; repeatable",
    )  # fmt: skip


COMMANDS = {
    "report": Command(
        help="write one page with figures and tables of all runs in some directories",
        do="fedloom.report.printed_results:report",
        flags=_report,
    ),
    "summary": Command(
        help="means over seeds and differences of methods, for a paper",
        do="fedloom.report.printed_results:summarise",
        flags=_summary,
    ),
}
