"""`fedloom serve`: rank 0 of a run whose other ranks are devices."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from fedloom.cli.train import introduce, train
from fedloom.coordinator import Job, RunSettings, check_free
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import SettingError
from fedloom.core.naming import forbid_imports
from fedloom.device.data_manager import warn_about_own_scale
from fedloom.engines.norms import LEAST, MEDIAN_BOUND
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import DataSettings, Experiment, flat, named_code, read_settings
from fedloom.report import comparison_table
from fedloom.storage import files
from fedloom.wire.communication import communication, meeting_point, rank_here
from fedloom.wire.fleet import TRUSTED, Audit, RankFleet
from fedloom.wire.reception import register_devices, send_public
from fedloom.wire.registration import CAP, Registry

_OF_DEVICES = {"test_fraction", "val_fraction", "normalise", "augment", "classes", "partition_seed"}
_OF_SERVER = {"public_source", "public", "public_labels"}


def serve(args: argparse.Namespace, console: Console) -> int:
    """Wait for the devices, run the rounds, and let them go."""
    console.print(TRUSTED, soft_wrap=True)
    if rank_here(args.transport):
        raise SettingError("fedloom serve runs at rank 0, and fedloom join at the others: this rank is not 0")
    out, described = Path(args.out), read_settings(args.settings)
    if args.median_bound is not None:
        described["run.median_bound"] = args.median_bound
    elif args.resume and (out / "settings.json").exists() and not _says(described, "run.median_bound"):
        described["run.median_bound"] = Experiment.from_directory(out).run.median_bound
    experiment = settings_of(described)
    registry = out / "devices.json"
    if args.wait <= 0 or (args.least is not None and args.least < 1):
        raise SettingError(
            f"a run waits for more than 0 s (--wait), and begins with at least 1 device (--least), got {args.wait:g} "
            f"and {args.least}: raise them"
        )
    if args.resume:
        check_devices(out)
    else:
        check_free(out)
        if registry.exists():
            raise SettingError(f"{registry} names the devices of another run: go on with it (--resume), or remove it")
    d = experiment.data
    for source in (args.test, d.public_source):
        if source:
            warn_about_own_scale(
                source, catalogue.data(source, whole=True)
            )  # a wrong name shows before devices are asked
    files.make(out)
    where = meeting_point(args.transport)
    console.print(f"waiting for all devices at {where}, {args.wait:g} s at most (--wait)", soft_wrap=True)
    fleet = RankFleet(communication(args.transport), Audit(out / "audit.jsonl"))
    with closing(fleet):
        told = experiment.with_all({f"data.{name}": getattr(DataSettings(), name) for name in _OF_SERVER}).described()
        made = list[Job]()

        def check_fit() -> None:
            job = experiment.changed("data.source", f"devices:{registry.resolve()}").job()
            made.append(dataclasses.replace(job, fleet=fleet))
            made[0].check()

        found = register_devices(
            fleet, registry, told, experiment.model.split(","), test=args.test, cap=args.most_examples,
            public=d.public_source is not None, check_fit=check_fit, wait=args.wait, min_devices=args.least,
        )  # fmt: skip
        (job,) = made
        if job.federation.public is not None:
            send_public(fleet, job.federation.public, labels=d.public_labels)
        console.print(
            f"{len(fleet.connected())} of {len(found.devices)} devices are there; audit log: {fleet.audit.path}"
        )
        console.print(_bounds(job.settings, found), soft_wrap=True)
        introduce(job.federation, job.population.models, job.settings, console)
        name = experiment.algorithm
        history = train(name, job, console, out, resume=args.resume)
    console.print(comparison_table([(name, history)]))
    return 0


def check_devices(out: Path) -> None:
    """Raise DamageError unless a run that was begun has the devices with which it began, before any is told of it."""
    files = RunDirectory(out)
    if files.begun and "devices.json" in (named := files.document("manifest")["documents"]):
        files.check_named("devices.json", named)


def _says(described: dict[str, Any], key: str) -> bool:
    return key in flat(described)


def _bounds(settings: RunSettings, registry: Registry) -> str:
    """Return in words what no device can do to the others."""
    counts = f"of a device at most {registry.cap or CAP:,} examples count (--most-examples)"
    if settings.median_bound is None:
        return f"{counts}; no upload is too large (--median-bound)"
    late = f", once {LEAST} were accepted" if settings.cohort_size < LEAST else ""
    return (
        f"{counts}; refused are uploads of more than {settings.median_bound:g} times the median norm of their kind"
        f"{late} (--median-bound)"
    )


def settings_of(described: dict[str, Any]) -> Experiment:
    """Return the experiment of a settings file as devices can run it, with bounded uploads unless it says otherwise.

    Raises:
        SettingError: it says something of the clients' examples or of new clients, which devices bring, or that only
            a simulation can do.
    """
    if wrong := sorted(set(described.get("data", {})) - _OF_DEVICES - _OF_SERVER):
        raise SettingError(
            f"devices bring their own examples, so data.{wrong[0]} has no meaning here: leave it out; of [data] there "
            f"are {', '.join(sorted(_OF_DEVICES | _OF_SERVER))}"
        )
    if own := named_code(described):
        raise SettingError(
            f"fedloom serve: devices import no code that a server names, such as {', '.join(own)}: change the "
            "settings, or simulate it with fedloom run"
        )
    with forbid_imports("devices import no code that a server names"):
        experiment = Experiment.of(described)
    kind, run = catalogue.kind(experiment.algorithm), experiment.run
    for forbidden, why in (
        (kind.pooled, f"{experiment.algorithm} trains on the examples of all in one place"),
        (
            experiment.data.public_source is None and (kind.needs_public or experiment.data.public),
            "public examples are the server's, which data.public_source names",
        ),
        (experiment.start is not None, "start names a file that devices lack"),
        (experiment.clients.new is not None, "clients.new judges by training that devices are not asked for"),
        (run.partial_sums is not None, "run.partial_sums is for ranks, and each device answers for itself"),
        (run.per_client, "run.per_client asks devices for more than they give"),
        (
            run.engine not in ("auto", "devices"),
            f"run.engine = {run.engine!r} computes clients, which are devices here",
        ),
        (run.compilation not in ("auto", "none"), f"run.compilation = {run.compilation!r} is for a simulation"),
    ):
        if forbidden:
            raise SettingError(f"fedloom serve: {why}: change the settings, or simulate it with fedloom run")
    bound = {} if _says(described, "run.median_bound") else {"run.median_bound": MEDIAN_BOUND}
    return experiment.with_all(
        {"run.engine": "devices", "run.compilation": "none", "run.on_nonfinite": "refuse", **bound}
    )
