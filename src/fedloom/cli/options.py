"""Flags and settings files: from what a person types to experiments."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import get_args, get_type_hints

from fedloom.coordinator.settings import Monitor, RunSettings
from fedloom.core.errors import SettingError
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment, flat, read_settings
from fedloom.experiments.words import coerce
from fedloom.models import MODELS

_FLAGS: dict[str, tuple[tuple[str, str, str, str], ...]] = {  # flag, setting, value's name, what it is
    "data and clients": (
        (
            "--data", "data.source", "SOURCE",
            f"{catalogue.DATA}; original files as NAME:FOLDER (mnist, cifar10, svhn, leaf, ...: see fedloom data "
            "sources); a .npz file with x_train, y_train, x_test, y_test; a .csv file; your own as module:name",
        ),
        ("--partition", "data.partition", "P", catalogue.PARTITIONS),
        ("--clients", "data.clients", "N", "number of clients"),
        ("--partition-seed", "data.partition_seed", "N", "of the partition (default: that of the run)"),
        ("--test-fraction", "data.test_fraction", "F", "of a client's examples, held out to judge it by"),
        ("--val-fraction", "data.val_fraction", "F", "of the others, held out to choose between settings"),
        (
            "--public", "data.public", "N",
            "training examples taken out first, unlabelled and known to all (kt_pfl needs some)",
        ),
        ("--augment", "data.augment", "A", "of training images, for example crop:4,flip,cutout:16"),
        (
            "--model", "model", "NAME",
            f"{', '.join(MODELS)}; your own as module:name; several, with commas, are given to the clients in turn",
        ),
        ("--start", "start", "FILE", "weights to start from (.safetensors or .pt)"),
        ("--task", "task", "NAME", f"{', '.join(catalogue.TASKS)}, or your own as module:name"),
        (
            "--sampler", "clients.sampler", "S",
            "uniform, by_size, by_round, available:SHARE:PERIOD, list:0,1;2,3; any with +arriving:FIRST:PER_ROUND",
        ),
        ("--declined", "clients.declined", "P", "probability that a client refuses"),
        ("--lost", "clients.lost", "P", "probability that a client vanishes"),
        ("--late", "clients.late", "P", "probability that a client answers too late"),
    ),
    "training": (
        ("--rounds", "run.rounds", "N", "number of rounds"),
        ("--cohort", "run.cohort_size", "K", "clients asked per round"),
        ("--epochs", "local.epochs", "N", "passes of a client over its examples per round"),
        ("--batch-size", "local.batch_size", "N", "of local training"),
        ("--optimiser", "local.optimiser", "NAME", "sgd or adam"),
        ("--lr", "local.lr", "RATE", "rate of local training"),
        ("--decay", "local.decay", "F", "factor on the rate after each round"),
        ("--momentum", "local.momentum", "M", "of local SGD"),
        ("--weight-decay", "local.weight_decay", "W", "of local training"),
        ("--on-nonfinite", "run.on_nonfinite", "", "at a loss that is NaN: stop, or go on without that client"),
        ("--monitor", "run.monitor", "NAME", f"what --target and --patience watch: {', '.join(get_args(Monitor))}"),
        ("--target", "run.target", "X", "stop when it is reached"),
        ("--patience", "run.patience", "N", "stop after so many measurements without a better one"),
    ),
    "engine": (
        ("--engine", "run.engine", "", "how clients are simulated"),
        ("--device", "run.device", "NAME", "cpu or cuda"),
        ("--dtype", "run.dtype", "", "of weights and activations"),
        ("--threads", "run.threads", "N", "of PyTorch (default: as many as it chooses)"),
        ("--bf16", "run.bf16", "", "mixed precision in local training"),
        ("--compilation", "run.compilation", "", "of the training step on the stacked engine"),
        ("--chunk", "run.chunk", "K", "clients stacked at a time (default: by memory)"),
        ("--state-memory", "run.state_memory_mib", "MIB", "of clients' states; more goes to disk (default: all of it)"),
    ),
    "results": (
        ("--eval-every", "run.eval_every", "N", "rounds between judgements of personal models"),
        ("--checkpoint-every", "run.checkpoint_every", "N", "rounds between checkpoints"),
    ),
}  # fmt: skip


def directory(text: str) -> str:
    """The type of a flag that names a directory: an empty one, as of a variable that is not set, is none."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a directory")
    return text


def add_settings(parser: argparse.ArgumentParser, seeds: bool = True) -> None:
    """The flags of a run. None has a default of its own: what is not said stays as the settings file has it."""
    kinds, plain = get_type_hints(RunSettings), flat(Experiment().described())
    for group, flags in _FLAGS.items():
        add = parser.add_argument_group(group).add_argument
        if group == "data and clients":
            add("--settings", metavar="FILE", help="a .toml or .json file of settings, which flags override")
        for flag, key, metavar, what in flags:
            default = plain.get(key)
            text = what if default is None or default is False else f"{what} (default: {default})"
            if key == "run.bf16":
                add(flag, dest=key, action="store_const", const=True, help=text)
            elif not metavar:  # the annotation lists the words
                add(flag, dest=key, choices=get_args(kinds[key.partition(".")[2]]), help=text)
            else:
                add(flag, dest=key, metavar=metavar, help=text)
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


def experiments(args: argparse.Namespace, names: Sequence[str], sections: Sequence[str] = ()) -> list[Experiment]:
    """One experiment for each algorithm: the settings file (or `sections` of it), then flags, then --set."""
    described = {} if args.settings is None else read_settings(args.settings)
    if sections:
        described = {name: table for name, table in described.items() if name in sections}
    chosen = list(names) or ([str(described["algorithm"])] if "algorithm" in described else [])
    if not chosen:
        raise SettingError("say which algorithm: fedloom run NAME, or algorithm = NAME in the settings file")
    labels = [catalogue.label(name) for name in chosen]
    if twice := [name for name in chosen if labels.count(catalogue.label(name)) > 1]:
        raise SettingError(
            f"each algorithm is named once, since results stand under its name, got {' and '.join(twice)}: drop the "
            "repeats, or rename your own"
        )
    # Tables of algorithms from outside the package are known as such only where one of these names them.
    outside = {catalogue.label(name) for name in (*chosen, str(described.get("algorithm", ""))) if ":" in name}
    out = []
    for name in chosen:
        others = outside - {catalogue.label(name)}
        said = {key: value for key, value in described.items() if key not in others}
        try:
            experiment = Experiment.of({**said, "algorithm": name})
        except SettingError as error:
            where = "" if args.settings is None else f"{args.settings}: "
            raise SettingError(f"{where}{error}") from None
        flags = {key: getattr(args, key, None) for flags in _FLAGS.values() for _, key, _, _ in flags}
        flags = {key: value for key, value in flags.items() if value is not None}
        out.append(experiment.with_all(flags | _pairs(args.set, catalogue.label(name), labels)))
    return out


def seeds(text: str | None, experiment: Experiment) -> list[int]:
    """`0,1,2`; that of the experiment where nothing is said."""
    if text is None:
        return [experiment.run.seed]
    found = [int(coerce(part, int, "--seed")) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise SettingError(f"each seed is named once, got --seed {text}")
    return found


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with another seed."""
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, seed=seed))


def _pairs(pairs: Sequence[str], own: str, labels: Sequence[str]) -> dict[str, str]:
    """What --set says to the algorithm `own` of these, by full names of settings."""
    out: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        owner, dot, _ = key.partition(".")
        if not (equals and key and value):
            raise SettingError(f"--set takes NAME=VALUE, got {pair!r}")
        if Experiment.knows(key):
            out[key] = value
        elif dot and owner in labels:
            out |= {key: value} if owner == own else {}
        elif len(labels) == 1:
            out[f"{own}.{key}"] = value
        else:
            raise SettingError(f"--set {pair!r}: say whose it is, ALGORITHM.NAME=VALUE with one of {', '.join(labels)}")
    return out
