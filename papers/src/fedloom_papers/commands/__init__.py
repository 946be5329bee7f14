"""Commands of papers, which pyproject.toml declares: `fedloom reproduce`, `claims` and `figures`."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import directory, script
from fedloom.display.command import Command
from fedloom_papers import STUDIES


def _reproduce(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(continues=True)  # an interrupted call, by the same command
    add = parser.add_argument
    add("table", nargs="?", help="a name that --list shows")
    add(
        "--list", action="store_true",
        help="list the tables; with TABLE its columns and methods, limited by --only and --methods",
    )  # fmt: skip
    add(
        "--data", type=directory, metavar="FOLDER",
        help="the original files of the data sets; needed unless all runs exist",
    )  # fmt: skip
    add("--out", type=directory, metavar="DIR", help="where runs and results go; finished runs are not repeated")
    add(
        "--only", metavar="COLUMN", help="cifar10-s2, or all columns with this beginning (cifar10); several with commas"
    )
    add(
        "--methods", metavar="NAME",
        help="methods of the table, or of another reading of its settings (fedprox-config); several with commas",
    )  # fmt: skip
    add(
        "--rounds",
        metavar="N",
        help="stop after N rounds of the same schedule; a later call can continue (default and maximum: as published)",
    )
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--seeds", metavar="S", help="seeds 0 to S - 1 (default: 1)")
    many.add_argument("--seed", metavar="N", help="seeds, with commas")
    add("--threads", metavar="N", help="of PyTorch (default: as many as it chooses)")
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a setting by its name in a settings file, run.device=cuda; repeatable; results name it",
    )  # fmt: skip
    add(
        "--known", action="append", default=[], type=directory, metavar="DIR",
        help="other results, also exported ones, whose runs with the same settings count as done, or go on; repeatable",
    )  # fmt: skip
    add("--mirror", metavar="ADDRESS", help="each run is copied below it after each checkpoint, and fetched from there")
    add("--report-only", action="store_true", help="run nothing, only compare existing runs")
    add("--runs-only", action="store_true", help="only run, compare nothing: for several calls at once")
    script(add)
    add(
        "--export", type=directory, metavar="DIR",
        help="copy settings and logs of finished runs there, and of unfinished ones the newest checkpoint",
    )  # fmt: skip


def _claims(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", choices=STUDIES, help="one of these papers (default: all)")
    parser.add_argument(
        "--known", action="append", default=[], type=directory, metavar="DIR",
        help="judge the runs in this folder of results instead of those that were kept for this version; repeatable",
    )  # fmt: skip


def _figures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to draw, as --list names it")
    parser.add_argument(
        "--known", action="append", default=[], type=directory, metavar="DIR",
        help="a folder of results; the first before the others, as of reproduce; repeatable",
    )  # fmt: skip
    parser.add_argument("--out", type=directory, metavar="DIR", help="where NAME.png, .svg, .pdf and .csv go")
    parser.add_argument(
        "--over", metavar="X", help="what curves, of any runs, are drawn over: rounds, bytes or virtual_time (default: "
        "rounds)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list what can be drawn")


reproduce = Command(
    help="run the published experiments of a table and compare the numbers",
    do="fedloom_papers.commands.reproduce_table:run",
    flags=_reproduce,
)
claims = Command(
    help="what the papers claim, and which claims our runs hold",
    do="fedloom_papers.commands.show_claims:show",
    flags=_claims,
)
figures = Command(
    help="figures of the papers, drawn of many runs of their recipes",
    do="fedloom_papers.commands.draw_figures:draw",
    flags=_figures,
)
