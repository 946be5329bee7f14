"""`fedloom serve`: the server of a run whose other ranks are devices."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from fedloom import __version__
from fedloom.coordinator import Job, RunSettings, check_free
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import History
from fedloom.coordinator.part import encoders_of, gradients_of
from fedloom.coordinator.rounds import OnHistory
from fedloom.core.errors import CodecError, SettingError
from fedloom.core.naming import forbid_imports
from fedloom.core.task import needs_moments
from fedloom.deploy.commands import check_flags
from fedloom.deploy.initial_weights import Start
from fedloom.deploy.invitations import enrol
from fedloom.deploy.own_scale import warn_about_own_scale
from fedloom.deploy.presence import Presence
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.device_changes import ChangedDevices, ChangingFleet, DeviceChanges
from fedloom.deploy.server.device_registry import Registry
from fedloom.deploy.server.devices import Devices
from fedloom.deploy.server.joining import register_devices, send_public
from fedloom.deploy.status_file import StatusFile
from fedloom.deploy.status_server import check_page, serve_page
from fedloom.deploy.transport import ServerPlace, transport_named
from fedloom.display.terminal import Terminal
from fedloom.engines.upload_bounds import BOUND_OF_DEVICES, LEAST, bound
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.named_code import named_code
from fedloom.experiments.settings_file import flat, read_settings
from fedloom.experiments.settings_sections import OF_DEVICES, OF_SERVER, DataSettings
from fedloom.experiments.shown_runs import print_setup, train
from fedloom.report import comparison_table
from fedloom.storage import files

_SHOWN = 20  # devices in the terminal


def serve(args: argparse.Namespace, console: Terminal) -> int:
    """Wait for the devices, run the rounds, and dismiss the devices."""
    check_flags(args)
    out, transport = Path(args.out), transport_named(args.transport)
    audit = Audit(out / "audit.jsonl")
    place = ServerPlace(
        out=out,
        say=lambda text: console.print(text, highlight=False),
        refused=partial(audit, "refused"),
        certs=None if args.certs is None else Path(args.certs),
        host=args.host,
        port=args.port,
        insecure=args.insecure,
        wait=args.wait,
        least=args.least,
        resume=args.resume,
    )
    transport.check(place)
    check_page(args.page, args.metrics)
    described = read_settings(args.settings)
    if args.bound is not None:
        described["run.bound"] = args.bound
    elif args.resume and (out / "settings.json").exists() and "run.bound" not in flat(described):
        described["run.bound"] = Experiment.from_directory(out).run.bound
    try:
        experiment = settings_of(described)
    except SettingError as error:
        raise SettingError(f"{args.settings}: {error}") from None
    registry = out / "devices.json"
    if args.wait <= 0 or (args.least is not None and args.least < 1):
        raise SettingError(
            f"--wait must be above 0 s and --least at least 1 device, got {args.wait:g} and {args.least}: raise them"
        )
    if args.resume:
        check_devices(out)
    else:
        check_free(out)
        if registry.exists():
            raise SettingError(
                f"{registry} names the devices of another run: continue that run (--resume), or remove the file"
            )
    d = experiment.data
    for source in (args.test, d.public_source):
        if source:
            warn_about_own_scale(
                source, catalogue.data(source, whole=True)
            )  # a wrong name shows before devices are asked
    files.make(out)
    presence = Presence(place.say, experiment.run.rounds, __version__)
    audit.hear, presence.least = presence.hear, args.least or 1
    with (
        StatusFile(out, presence, place.say) as status,
        serve_page(status, args.page, args.metrics, place.say),
        transport.serve(place) as connections,
        closing(ChangingFleet(connections, audit)) as fleet,
    ):
        status.removed, presence.least = fleet.removed, args.least or connections.expected or 1
        if place.certs is not None:
            fleet.enrol = partial(enrol, place.certs)
        local = {f"data.{name}": getattr(DataSettings(), name) for name in OF_SERVER}
        settings = experiment.with_all(
            local | {"start": None, "start_only": "*", "parts": (), "schedule": None}
        ).described()
        jobs = list[Job]()

        whole = experiment.changed("data.source", f"devices:{registry.resolve()}")

        def check_fit() -> None:
            try:
                job = whole.job()
            except CodecError as error:  # of the file that is named by start
                raise SettingError(str(error)) from None
            jobs.append(dataclasses.replace(job, fleet=fleet))
            jobs[0].check()

        devices = register_devices(
            fleet, registry, settings, experiment.model.split(","), test=args.test, cap=args.most_examples,
            public=d.public_source is not None, start=experiment.start is not None,
            moments=needs_moments(catalogue.task(experiment.task)), check_fit=check_fit, wait=args.wait,
            min_devices=args.least,
        )  # fmt: skip
        (job,) = jobs
        presence.expect(devices.devices)
        if job.federation.public is not None:
            send_public(fleet, job.federation.public, labels=d.public_labels)
        if experiment.start is not None:
            (model,) = job.population.models.values()
            start = Start.of(model)
            text = f"devices without {experiment.start} are sent its {len(start.data):,} bytes"
            console.print(text)
            fleet.send_start(start, args.wait)
        console.print(
            f"{len(fleet.connected())} of {len(devices.devices)} devices are connected; audit log: {fleet.audit.path}",
        )
        for line in _described(devices, registry):
            console.print(line)
        if (made := devices.common_preparation()) is not None:
            text = f"tables are prepared by the statistics of {len(devices.devices)} devices, {made.facts['digest']}"
            console.print(f"{text}: {registry}")
        console.print(_bounds(job.settings, devices))
        print_setup(job.federation, job.population.models, job.settings, console)
        name, say = experiment.algorithm, partial(console.print, highlight=False)
        changes = DeviceChanges(
            job, out, lambda registry: whole.job(whole.federation_of(registry)), experiment.model.split(","), say,
            presence.expect,
        )  # fmt: skip
        job = changes.apply() if changes.are_there else job
        history = train_on(name, changes, console, out, resume=args.resume, on_round=presence.see_round)
        console.print(hand_out_models(changes.job, out, history))
    console.print(comparison_table([(name, history)]))
    return 0


def train_on(
    name: str, changes: DeviceChanges, console: Terminal, out: Path, *, resume: bool, on_round: OnHistory
) -> History:
    """Run the rounds, and go on from the newest checkpoint each time that devices have changed."""

    def watch(history: History) -> None:
        on_round(history)
        changes.look(history)

    while True:
        try:
            return train(name, changes.job, console, out, resume=resume, on_round=watch)
        except ChangedDevices:
            changes.apply()
            resume = True


def hand_out_models(job: Job, out: Path, history: History) -> str:
    """Send the connected devices their models of the finished run, and say how many have them."""
    restored = job.restore(out)
    engine, fleet = restored.engine, job.fleet
    assert isinstance(engine, Devices)
    assert fleet is not None
    connected = sorted(fleet.names.index(name) for name in fleet.connected())
    threshold = history.metrics[-1].get("threshold")
    have = engine.hand_out(restored.server, connected, max(0, restored.round - 1), threshold)
    said = f"{len(have)} of {len(fleet.names)} devices have their models of round {restored.round} in their folders"
    return said + "; --resume gives the others theirs, once they join" * (len(have) < len(fleet.names))


def check_devices(out: Path) -> None:
    """Raise DamageError unless the file of devices is that with which the run began."""
    files = RunDirectory(out)
    if files.begun:
        files.check_named("devices.json", files.manifest()["documents"])


def _described(registry: Registry, path: Path) -> list[str]:
    """Return which device each of the first clients is, a line for each, where devices have names."""
    if not registry.client_names:
        return []
    lines = [f"client {k} is device {device.label}" for k, device in enumerate(registry.devices[:_SHOWN])]
    return lines + [f"and {more} more: {path}" for more in [len(registry.devices) - _SHOWN] if more > 0]


def _bounds(settings: RunSettings, registry: Registry) -> str:
    """Return the bounds on every device, in words."""
    counts = f"at most {registry.cap:,} examples of a device count (--most-examples)"
    if (its := bound(settings.bound)) is None:
        return f"{counts}; uploads have no bound (--bound)"
    late = f", once {LEAST} were accepted" if settings.cohort_size < LEAST and its.of == "median" else ""
    done = "clipped" if its.clips else "refused"
    most = {"": "", "median": " times the median of their kind", "sent": " times the norm of what was sent"}[its.of]
    return (
        f"{counts}; uploads whose difference to what was sent has a norm above {its.most:g}{most} are {done}{late} "
        "(--bound)"
    )


def settings_of(described: dict[str, Any]) -> Experiment:
    """Return the experiment of a settings file for devices, with bounded uploads unless the file sets no bound.

    Raises:
        SettingError: a setting describes the clients' examples or new clients, or is for simulations alone.
    """
    if wrong := sorted(set(described.get("data", {})) - OF_DEVICES - OF_SERVER):
        raise SettingError(
            f"devices bring their own examples, so data.{wrong[0]} has no meaning here: leave it out; [data] may have "
            f"{', '.join(sorted(OF_DEVICES | OF_SERVER))}"
        )
    if code := named_code(described):
        raise SettingError(
            f"fedloom serve: devices import no code that a server names, such as {', '.join(code)}: change the "
            "settings, or simulate it with fedloom run"
        )
    with forbid_imports("devices import no code that a server names"):
        experiment = Experiment.of(described)
    needs, run = catalogue.kind(experiment.algorithm)().requires, experiment.run
    for forbidden, reason in (
        (needs.one_place, f"{experiment.algorithm} pools the examples of all clients"),
        (
            experiment.data.public_source is None and (needs.public or experiment.data.public),
            "public examples are the server's, which data.public_source names",
        ),
        (experiment.clients.new is not None, "clients.new needs training that devices do not do"),
        (experiment.clients.attack != "none", "clients.attack simulates clients that lie, which devices are not"),
        (run.partial_sums is not None, "run.partial_sums is for ranks, and each device answers for itself"),
        (run.evaluate_training, "run.evaluate_training needs numbers that devices do not send"),
        (run.per_client, "run.per_client needs numbers that devices do not send"),
        (
            run.engine not in ("auto", "devices"),
            f"run.engine = {run.engine!r} simulates clients, which are devices here",
        ),
        (run.compilation not in ("auto", "none"), f"run.compilation = {run.compilation!r} is for a simulation"),
    ):
        if forbidden:
            raise SettingError(f"fedloom serve: {reason}: change the settings, or simulate it with fedloom run")
    encoders_of(run), gradients_of(run)  # what devices would not take is said before they come
    its: dict[str, Any] = {"run.engine": "devices", "run.compilation": "none"}
    if run.secure_aggregation == "none":  # which refuses both: devices look at what they send themselves
        its["run.on_nonfinite"] = "refuse"
        if "run.bound" not in flat(described) and run.privacy == "none":
            its["run.bound"] = BOUND_OF_DEVICES
    return experiment.with_all(its)
