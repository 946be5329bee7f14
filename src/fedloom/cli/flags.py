"""The flags of a run, as a person types them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.cli.index import INDEX

FLAGS: dict[str, dict[str, Any]] = INDEX["settings"]
"""The settings that have a flag: its name, the value and the group that the help shows, default, sentence, choices."""
_GROUPS = ("data and clients", "training", "engine", "results")


def directory(text: str) -> str:
    """Return the directory that a flag names; refuse an empty name, as of a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a directory")
    return text


def round_or_best(text: str) -> int | str:
    """Return the round that a person names: its number, or "best" for the best one on validation data."""
    if text != "best" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"is the number of a round, or best, got {text!r}")
    return text if text == "best" else int(text)


def add_settings(parser: argparse.ArgumentParser, seeds: bool = True) -> None:
    """Add the flags of a run. None has a default of its own: without it, a setting stays as in the settings file."""
    for group in _GROUPS:
        add = parser.add_argument_group(group).add_argument
        if group == _GROUPS[0]:
            add("--settings", metavar="FILE", help="a .toml or .json file of settings, which flags override")
        for key, about in FLAGS.items():
            if about["group"] == group:
                _add(add, key, about)
        if group == "training":
            add(
                "--set", action="append", default=[], metavar="NAME=VALUE",
                help="a setting of the algorithm, in a comparison ALGORITHM.NAME=VALUE; or any other by its name in a "
                "settings file, local.clip=1; repeatable",
            )  # fmt: skip
            if seeds:
                add(
                    "--seed",
                    dest="seeds",
                    metavar="N",
                    help="of everything random; several with commas, one run each (default: 0)",
                )
        if group == "results" and seeds:
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


def _add(add: Callable[..., Any], key: str, about: Mapping[str, Any]) -> None:
    """Add the flag of a setting."""
    flag, default, text = about["flag"], about["default"], about["what"]
    text = text.replace("%", "%%")
    if default is False:
        add(flag, dest=key, action="store_const", const=True, help=text)
        return
    text += "" if default is None else f" (default: {default})"
    if about["value"]:
        add(flag, dest=key, metavar=about["value"], help=text)
    else:
        add(flag, dest=key, choices=about["choices"], help=text)
