"""`fedloom verify`: whether runs are what was written."""

from __future__ import annotations

import argparse

from rich.console import Console

from fedloom.coordinator.history import runs_below
from fedloom.coordinator.verdict import Verdict
from fedloom.coordinator.verdict import verify as check
from fedloom.core.errors import SettingError


def verify(args: argparse.Namespace, console: Console) -> int:
    """Print a line for each run below a directory, and one for each problem; the exit status is 1 if there is one."""
    runs = runs_below(args.directory, begun=True)
    if not runs:
        raise SettingError(f"there is no run in {args.directory}; name the folder that --out named")
    whole = True
    for path in runs:
        found = check(path)
        whole &= found.whole
        for line in _lines(found):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0 if whole else 1


def _lines(found: Verdict) -> list[str]:
    at = "" if found.round is None else f", round {found.round}, {found.checkpoints} checkpoint(s)"
    parts = ["whole" if found.whole else "NOT WHOLE", *found.notes]
    return [f"{found.path}{at}: {'; '.join(parts)}", *(f"  {problem}" for problem in found.problems)]
