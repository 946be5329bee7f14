"""`fedloom verify`: a check that runs are as they were written."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.run_folders import runs_below
from fedloom.coordinator.verification import Verdict, root_of, verify as check
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.experiments.bought_models import files_changed, files_gone, models_of
from fedloom.wording import printable

NO_RUN = "there is no run in {}; name the folder that --out named [FL-RUN-020]"


def verify(args: argparse.Namespace, console: Terminal) -> int:
    """Print a line for each run below a directory, one for each problem, and the root of all.

    The exit status is 1 if there is a problem, or if the root is not the expected one.
    """
    if args.expect is not None and not re.fullmatch("[0-9a-f]{32}", args.expect):
        raise SettingError(
            f"--expect takes a root as fedloom verify prints it, 32 of the digits 0-9a-f, got {args.expect!r}: copy it"
        )
    runs = runs_below(args.directory, begun=True)
    if not runs:
        raise SettingError(NO_RUN.format(args.directory))
    verdicts = {path.relative_to(args.directory).as_posix(): _checked(path) for path in runs}
    is_whole, root = all(verdict.whole for verdict in verdicts.values()), root_of(verdicts)
    lines = [line for verdict in verdicts.values() for line in _lines(verdict)]
    if root is not None:
        lines.append(f"root: {root}")
    if args.expect not in (None, root):
        lines.append(f"NOT THE EXPECTED ROOT {args.expect}: the runs were changed or continued since then")
    for line in lines:
        console.print(printable(line, len(line)), highlight=False)
    return 0 if is_whole and args.expect in (None, root) else 1


def _checked(path: Path) -> Verdict:
    """Check a run, and the models that were trained elsewhere, which it uploads, where they are here."""
    verdict = check(path)
    if verdict.whole:  # else nothing says which they were
        models = models_of(RunDirectory(path).manifest())
        verdict.problems += files_changed(models)
        verdict.notes += files_gone(models)
        verdict.root = verdict.root if verdict.whole else None
    return verdict


def _lines(verdict: Verdict) -> list[str]:
    position = "" if verdict.round is None else f", round {verdict.round}, {verdict.checkpoints} checkpoint(s)"
    parts = ["whole" if verdict.whole else "NOT WHOLE", *verdict.notes]
    return [f"{verdict.path}{position}: {'; '.join(parts)}", *(f"  {problem}" for problem in verdict.problems)]
