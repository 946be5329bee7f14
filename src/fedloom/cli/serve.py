"""`fedloom serve`: rank 0 of a run whose other ranks are devices."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from fedloom.cli.train import introduce, train
from fedloom.coordinator import check_free
from fedloom.core.errors import SettingError
from fedloom.engines.communication import communication, rank_here
from fedloom.engines.fleet import TRUSTED, Audit, RankFleet
from fedloom.engines.reception import receive
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment, named_code, read_settings
from fedloom.report import comparison_table

_OF_DEVICES = {"test_fraction", "val_fraction", "normalise", "augment", "classes", "partition_seed"}


def serve(args: argparse.Namespace, console: Console) -> int:
    """Wait for the devices, run the rounds, and let them go."""
    console.print(TRUSTED, soft_wrap=True)
    if rank_here(args.transport):
        raise SettingError("fedloom serve runs at rank 0, and fedloom join at the others: this rank is not 0")
    out, experiment = Path(args.out), settings_of(read_settings(args.settings))
    registry = out / "devices.json"
    if not args.resume:
        check_free(out)
        if registry.exists():
            raise SettingError(f"{registry} names the devices of another run: go on with it (--resume), or remove it")
    if args.test:
        catalogue.data(args.test)  # a wrong name shows before devices are asked
    out.mkdir(parents=True, exist_ok=True)
    fleet = RankFleet(communication(args.transport), Audit(out / "audit.jsonl"))
    with closing(fleet):
        found = receive(
            fleet, registry, experiment.described(), experiment.model.split(","), test=args.test, cap=args.most_examples
        )
        job = experiment.changed("data.source", f"devices:{registry.resolve()}").job()
        job = dataclasses.replace(job, fleet=fleet)
        console.print(f"{len(fleet.there())} of {len(found.devices)} devices are there; audit log: {fleet.audit.path}")
        introduce(job.federation, job.population.models, job.settings, console)
        name = experiment.algorithm
        history = train(name, job, console, out, resume=args.resume)
    console.print(comparison_table([(name, history)]))
    return 0


def settings_of(described: dict[str, Any]) -> Experiment:
    """The experiment of a settings file, as it can be run with devices.

    Raises:
        SettingError: it says something of the clients' examples or of new clients, which devices bring, or that only
            a simulation can do.
    """
    if wrong := sorted(set(described.get("data", {})) - _OF_DEVICES):
        raise SettingError(
            f"devices bring their own examples, so data.{wrong[0]} has no meaning here: leave it out; of [data] there "
            f"are {', '.join(sorted(_OF_DEVICES))}"
        )
    experiment = Experiment.of(described)
    kind, run = catalogue.kind(experiment.algorithm), experiment.run
    own = named_code(described)
    for forbidden, why in (
        (kind.pooled, f"{experiment.algorithm} trains on the examples of all in one place"),
        (kind.needs_public, f"{experiment.algorithm} needs public examples, which devices do not have"),
        (bool(own), f"devices import no code that a server names, such as {', '.join(own)}"),
        (experiment.start is not None, "start names a file that devices lack"),
        (experiment.clients.new is not None, "clients.new judges by training that devices are not asked for"),
        (run.per_client, "run.per_client asks devices for more than they give"),
        (
            run.engine not in ("auto", "devices"),
            f"run.engine = {run.engine!r} computes clients, which are devices here",
        ),
        (run.compilation not in ("auto", "none"), f"run.compilation = {run.compilation!r} is for a simulation"),
    ):
        if forbidden:
            raise SettingError(f"fedloom serve: {why}: change the settings, or simulate it with fedloom run")
    return experiment.with_all({"run.engine": "devices", "run.compilation": "none", "run.on_nonfinite": "refuse"})
