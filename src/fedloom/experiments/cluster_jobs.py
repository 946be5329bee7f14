"""Cells of a comparison, a sweep or a table as jobs of a cluster: a plain script, which arrays of Slurm run.

Each cell is a command of its own, a line of the script. So the script can be read, and holds nothing that is unpacked.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.coordinator.descriptions import plain
from fedloom.core import grammar
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.shown_runs import tracker_for_run
from fedloom.storage.output import publish
from fedloom.storage.strict_json import document

FOLDER = "cells"
"""Folder below that of the results: the settings of each cell, and its log."""
_MOST_RESTARTS = 50  # of a job whose time was up: one that never reaches a checkpoint would go on for ever
_WARNING = 120  # seconds before a job's time is up


def _of(pattern: str) -> Callable[[str], str]:
    """Return what reads a text of a pattern."""

    def read(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError
        return text

    return read


_COUNT, _WORD = _of(r"[1-9]\d{0,5}"), _of(r"[\w.:@+|&*=-]+")
_KINDS: dict[str, Callable[[str], str]] = {
    "time": _of(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}"), "cpus": _COUNT, "mem": _of(r"\d+[KMGT]?"),
    "gpus": _of(r"([\w.-]+:)?\d+"), "partition": _WORD, "account": _WORD, "qos": _WORD, "constraint": _WORD,
    "at_once": _COUNT, "cells": _COUNT,
}  # fmt: skip
_FLAGS = {"cpus": "cpus-per-task"}  # of sbatch, where it has another name
_FORM = "slurm:time=2:00:00,cpus=2,mem=4G,partition=NAME,account=NAME,qos=NAME,gpus=1,constraint=NAME,at_once=8,cells=4"


@dataclass(frozen=True)
class Cell:
    """One run of many, as a command.

    Attributes:
        name: of its log, below the folder of cells: `trial-000/seed-0`.
        words: those of the command behind `fedloom`.
    """

    name: str
    words: tuple[str, ...]


def read_script(text: str) -> dict[str, str]:
    """Return what a person asks of the jobs of a script, by the names of the options.

    Args:
        text: as in `slurm:time=2:00:00,cpus=2`.

    Raises:
        SettingError: there is no such script, or an option of it is unknown, there twice, or not of its form.
    """
    name, _, written = text.partition(":")
    if name != "slurm":
        raise SettingError(f"a script is written for slurm, got {text!r}: write {_FORM}, or any of its options")
    remedy = "sbatch takes all others itself, as in sbatch --exclude=NODE job.sh"
    found = grammar.arguments("jobs", written.replace(",", "&"), _KINDS, _FORM, remedy) if written else {}
    return {"cpus": "1"} | found


def console_of_script(args: argparse.Namespace) -> Terminal:
    """Check what --script asks for, before any work, and return the terminal for all but the script: standard error.

    Raises:
        SettingError: what is asked of the jobs is wrong, or there is no folder of results.
    """
    read_script(args.script)
    if args.out is None:
        raise SettingError("the runs of a script meet in a folder: name it with --out DIR")
    return Terminal(stderr=True)


def run_cells(runs: Mapping[str, Experiment], out: str, trackers: Sequence[str]) -> list[Cell]:
    """Write the settings of runs below the folder of results, and return the commands that run them.

    Args:
        runs: by their folders below `out`; `.` is itself.
        out: the folder of results.
        trackers: of each run.

    Raises:
        SettingError: an engine takes several processes that are launched together, or devices.
        StorageError: a file cannot be written.
    """
    cells = []
    for place, experiment in runs.items():
        engine = experiment.run.engine
        if engine in ("gloo", "mpi", "devices"):
            raise SettingError(
                f"a cell of a script is a command of one process, got engine {engine}: launch each run by itself, as "
                "docs/ranks.md says for Slurm"
            )
        name = "run" if place == "." else place
        settings = publish(Path(out), f"{FOLDER}/{name}.json", document(plain(experiment.described())))
        tracked = [
            word for text in trackers for word in ("--track", text if place == "." else tracker_for_run(text, place))
        ]
        words = ("run", "--settings", str(settings), "--out", str(Path(out, place)), "--resume", *tracked)
        cells.append(Cell(name, words))
    return cells


def script_of(cells: Sequence[Cell], text: str, out: str, report: str = "with --resume in place of --script") -> str:
    """Return the script that runs cells, as an array of Slurm or without one.

    Args:
        cells: in order.
        text: as of `read_script`.
        out: the folder of results, where the logs go.
        report: how the same command reports on all.

    Raises:
        SettingError: there is no cell, or what is asked of the jobs is wrong.
    """
    asked = read_script(text)
    if not cells:
        raise SettingError("a script has at least one cell, and nothing is left to run: leave --script out to report")
    each = int(asked.pop("cells", "1"))
    throttle = f"%{asked.pop('at_once')}" if "at_once" in asked else ""
    jobs, logs = -(-len(cells) // each), Path(out, FOLDER).absolute()
    if not str(logs).isprintable():
        raise SettingError(
            f"the folder of a script has a name of printable characters, got {str(logs)!r}: name another"
        )
    logs.mkdir(parents=True, exist_ok=True)  # Slurm makes none
    options = {
        "job-name": "fedloom-" + re.sub(r"[^\w.-]+", "-", logs.parent.name),
        "array": f"0-{jobs - 1}{throttle}",
        **{_FLAGS.get(name, name): value for name, value in asked.items()},
        "signal": f"B:USR1@{_WARNING}",
        "open-mode": "append",
        "output": str(logs).replace("%", "%%") + "/job-%a.log",
    }
    lines = (f"    {number}) run {shlex.join([cell.name, *cell.words])} ;;" for number, cell in enumerate(cells))
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items()),
        cells=len(cells),
        last=len(cells) - 1,
        jobs=jobs,
        each=each,
        restarts=_MOST_RESTARTS,
        cpus=asked["cpus"],
        report=report,
        place=shlex.quote(str(Path.cwd())),
        logs=shlex.quote(str(logs)),
        python=shlex.quote(sys.executable),
        lines="\n".join(lines),
    )


_SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
#
# {cells} cells in {jobs} jobs.
#   sbatch job.sh                          all, as an array of Slurm; its own flags win over the lines above
#   bash job.sh                            all here, one after another
#   SLURM_ARRAY_TASK_ID=0 bash job.sh      those of the first job
# Submitted again, a cancelled cell goes on from its last checkpoint, and a finished one is not run again.
# The command that wrote this, {report}, reports on all.

cd {place} || exit 2
export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{cpus}}}
logs={logs}

cell() {{
    case $1 in
{lines}
    *) echo "there is no cell $1: 0 to {last}" >&2; return 2 ;;
    esac
}}

run() {{  # NAME WORDS: fedloom with these words, and what it says in a log
    local name=$1 log="$logs/$1.log"
    shift
    mkdir -p "$(dirname "$log")"
    {python} -m fedloom "$@" >>"$log" 2>&1 &
    child=$!
    [ -z "$stopped" ] || end
    wait "$child"
    local status=$?
    [ -z "$stopped" ] || end
    child=
    echo "$name: status $status, log $log"
    return "$status"
}}

end() {{
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null
    [ -z "$child" ] || wait "$child"
    if [ "$stopped" = time ] && [ -n "$SLURM_ARRAY_JOB_ID" ]; then
        if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
            echo "time is up for the {restarts}th time: give more (sbatch --time=...), or save more often" >&2
            exit 1
        fi
        echo "time is up: once more"
        scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
    fi
    exit 143
}}

stopped= child= failed=0
trap 'stopped=time; [ -z "$child" ] || end' USR1
trap 'stopped=cancelled; [ -z "$child" ] || end' TERM INT

first=0 count={cells}
[ -z "$SLURM_ARRAY_TASK_ID" ] || first=$((SLURM_ARRAY_TASK_ID * {each})) count={each}
for ((n = first; n == first || (n < first + count && n <= {last}); n++)); do
    cell "$n" || failed=1
    [ -z "$stopped" ] || end
done
exit "$failed"
"""
