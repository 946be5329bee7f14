"""`fedloom algorithms`: the list of algorithms and their facts, without importing them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fedloom.cli.index import INDEX
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal, table
from fedloom.wording import did_you_mean

NEEDS = {
    "public": "public examples",
    "validation": "validation examples on clients",
    "classes": "targets that are class numbers",
    "state": "a state that stays with the client",
}


def show(args: argparse.Namespace, console: Terminal) -> int:
    """Print the algorithms that were asked for: a row for each, or all facts of those that are named.

    Raises:
        SettingError: an algorithm is unknown, or none is as asked for.
    """
    known: Mapping[str, Any] = INDEX["algorithms"]
    for name in args.names:
        if name not in known:
            raise SettingError(f"unknown algorithm {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    found = {name: entry for name, entry in known.items() if _wanted(entry, args) and name in (args.names or known)}
    if not found:
        raise SettingError("no algorithm is all of that: leave a flag out")
    if args.names:
        for name, entry in found.items():
            _show_facts(name, entry, console)
        return 0
    out = table(
        "Algorithms",
        "Change a setting with --set NAME=VALUE (run) or --set ALGORITHM.NAME=VALUE (compare). "
        "fedloom algorithms NAME prints all facts of one.",
    )
    out.add_column("name", no_wrap=True)
    for heading in ("what it is", "settings"):
        out.add_column(heading, overflow="fold")
    for name, entry in found.items():
        out.add_row(name, entry["what"], entry["settings"])
    console.print(out)
    return 0


def _wanted(entry: Mapping[str, Any], args: argparse.Namespace) -> bool:
    if args.whose is not None and entry["personal"] is not (args.whose == "personal"):
        return False
    if args.one_shot and not entry["one-shot"]:
        return False
    return all(not entry["needs"] if need == "nothing" else need in entry["needs"] for need in args.needs)


def _show_facts(name: str, entry: Mapping[str, Any], console: Terminal) -> None:
    facts = entry["facts"]
    needs = [NEEDS[need] for need in entry["needs"]] or ["nothing else"]
    tried = [f"{key} in {', '.join(f'{v:g}' for v in values)}" for key, values in entry["tried"].items()]
    lines = {
        "paper": facts["paper"],
        "family": entry["family"] + ", one round of uploads" * entry["one-shot"],
        "clients are evaluated by": "models of their own" if entry["personal"] else "the global model",
        "down": facts["down"],
        "up": facts["up"],
        "client keeps": facts["client keeps"],
        "needs": ", ".join(needs),
        "tasks": "classification" if "classes" in entry["needs"] else "any",
        "cost of a round": f"{facts['cost']} times FedAvg's bytes down / bytes up / work on the clients",
        "FedAvg": facts["FedAvg"],
        "settings": entry["settings"],
        "tuned over": "; ".join(tried) or "the learning rate alone",
    }
    out = table(f"{name}: {entry['what']}", f"docs/algorithms/{name}.md has its equations.")
    out.add_column("fact", no_wrap=True)
    out.add_column("of this algorithm", overflow="fold")
    for fact, text in lines.items():
        out.add_row(fact, text)
    console.print(out)
