"""`fedloom compare --tuned`: choose settings of each method by as many tries on validation data."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.cli.options import seeds_of, with_seed
from fedloom.core.errors import SettingError
from fedloom.display.terminal import Terminal
from fedloom.experiments.catalogue import label
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.mirrors import mirrored_below
from fedloom.experiments.trials import Sweep, Train
from fedloom.experiments.tuning import FOLDER, Tuned, sweep_of
from fedloom.report.order import tuning_of, write_order

SUFFIX = "-tuned"  # of the folder of a method with the settings that were chosen


def planned(args: argparse.Namespace, selected: Sequence[Experiment]) -> dict[str, Sweep]:
    """Return the sweep that tunes each method, by its label, before anything is run.

    Raises:
        SettingError: tuning lacks a folder or validation data, or goes with no other flag of the command.
    """
    if args.out is None:
        raise SettingError("--tuned keeps its tries in a directory; name it with --out DIR")
    if args.leave_one_site_out:
        raise SettingError("--tuned chooses once, and --leave-one-site-out trains without each site: leave one out")
    if (engine := selected[0].run.engine) in ("gloo", "mpi", "devices"):
        raise SettingError(f"--tuned takes an engine of this machine, got {engine}: tune with --engine auto first")
    if not selected[0].data.val_fraction:
        raise SettingError(
            "--tuned chooses on validation examples, and data.val_fraction is 0: hold some out with --val-fraction 0.2"
        )
    return {
        (name := label(e.algorithm)): sweep_of(
            mirrored_below(with_seed(e, seeds_of(args.seeds, e)[0]), f"{FOLDER}/{name}"), args.tuned, args.tune_with
        )
        for e in selected
    }


def tune(
    sweeps: dict[str, Sweep], args: argparse.Namespace, console: Terminal, train: Train
) -> tuple[dict[str, Experiment], dict[str, Any]]:
    """Run the tries of each method; return the tuned methods by their folders, and what `write_order` keeps of it.

    A method whose given settings are the best has no other folder.
    """
    facts: dict[str, Any] = {"tries": args.tuned, "with": args.tune_with, "methods": {}}
    before = tuning_of(args.out)
    write_order(args.out, list(sweeps), before or facts)
    out: dict[str, Experiment] = {}
    for name, sweep in sweeps.items():
        console.print(f"{name}: {sweep.count} tries, chosen by {sweep.by}")
        found = Tuned.of(sweep, sweep.run(Path(args.out, FOLDER, name), resume=args.resume, train=train))
        folder = name + SUFFIX * found.moved
        if found.moved:
            out[folder] = found.experiment
        said = {f.name: getattr(found, f.name) for f in dataclasses.fields(found) if f.name != "experiment"}
        facts["methods"][name] = said | {"folder": folder}
        facts["by"] = sweep.by
        values = ", ".join(f"{key}={value}" for key, value in found.chosen.items())
        text = f"{name}: {values}" if found.moved else f"{name}: as given"
        console.print(f"{text} ({sweep.by} {found.score:.4f})")
    write_order(
        args.out, [folder for name in sweeps for folder in (name, name + SUFFIX) if folder in {*sweeps, *out}], facts
    )
    return out, facts
