"""Flags of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.cli.index import INDEX
from fedloom.display.arguments import directory, file, script

FLAGS: dict[str, dict[str, Any]] = INDEX["settings"]
"""Settings with a flag: the flag, its value and group in the help, default, sentence, choices."""
_GROUPS = ("data and clients", "training", "engine", "results")


def add_settings(parser: argparse.ArgumentParser, with_seeds: bool = True) -> None:
    """Add the flags of a run. They have no defaults: without a flag, the setting of the file stays."""
    for group in _GROUPS:
        add = parser.add_argument_group(group).add_argument
        if group == _GROUPS[0]:
            add("--settings", type=file, metavar="FILE", help="a .toml or .json file of settings, which flags override")
        for key, declaration in FLAGS.items():
            if declaration["group"] == group:
                _add_flag(add, key, declaration)
        if group == "training":
            add(
                "--set", action="append", default=[], metavar="NAME=VALUE",
                help="a setting of the algorithm, in a comparison ALGORITHM.NAME=VALUE; or any other by its name in a "
                "settings file, local.clip=1; repeatable",
            )  # fmt: skip
            if with_seeds:
                add(
                    "--seed",
                    dest="seeds",
                    metavar="N",
                    help="of everything random; several with commas, one run each (default: 0)",
                )
        if group == "engine" and with_seeds:
            add(
                "--debug", action="store_true",
                help="compute the clients one by one in this process, where breakpoint() stops, and show the whole "
                "traceback of an error",
            )  # fmt: skip
        if group == "results" and with_seeds:
            add(
                "--out",
                type=directory,
                metavar="DIR",
                help="where settings, metrics, checkpoints and timing are written",
            )
            add("--resume", action="store_true", help="go on with the runs that --out holds; start those it lacks")
            add(
                "--track", action="append", default=[], metavar="TRACKER",
                help="tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT; repeatable",
            )  # fmt: skip
            script(add)


def _add_flag(add: Callable[..., Any], key: str, declaration: Mapping[str, Any]) -> None:
    """Add the flag of a setting."""
    flag, default, text = declaration["flag"], declaration["default"], declaration["what"]
    text = text.replace("%", "%%")
    if default is False:
        add(flag, dest=key, action="store_const", const=True, help=text)
        return
    text += "" if default is None else f" (default: {default})"
    if declaration["value"]:
        add(flag, dest=key, metavar=declaration["value"], help=text)
    else:
        add(flag, dest=key, choices=declaration["choices"], help=text)
