"""The flags of a run, as a person types them."""

from __future__ import annotations

import argparse

from fedloom.cli.index import INDEX

_SETTINGS = INDEX["settings"]
FLAGS: dict[str, tuple[tuple[str, str, str, str], ...]] = {  # flag, setting, value's name, what it is
    "data and clients": (
        (
            "--data", "data.source", "SOURCE",
            "fashion_mnist_small; original files as NAME:FOLDER (mnist, cifar10, svhn, leaf, ...: see fedloom data "
            "sources); a .npz file with x_train, y_train, x_test, y_test; a .csv file; your own as module:name",
        ),
        ("--partition", "data.partition", "P", INDEX["partitions"]),
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
            f"{', '.join(INDEX['models'])}; your own as module:name; several, with commas, are given to the clients in "
            "turn",
        ),
        ("--start", "start", "FILE", "weights to start from (.safetensors or .pt)"),
        ("--task", "task", "NAME", f"{', '.join(INDEX['tasks'])}, or your own as module:name"),
        (
            "--sampler", "clients.sampler", "S",
            "uniform, by_size, by_round, available:SHARE:PERIOD, list:0,1;2,3; any with +arriving:FIRST:PER_ROUND",
        ),
        ("--declined", "clients.declined", "P", "probability that a client refuses"),
        ("--lost", "clients.lost", "P", "probability that a client vanishes"),
        ("--late", "clients.late", "P", "probability that a client answers too late"),
        ("--new", "clients.new", "N", "clients held out from training and judged in the end: the last N, or list:3,7"),
        ("--joins", "clients.joins", "ROUND", "from which on new clients may be asked (default: never)"),
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
        (
            "--monitor", "run.monitor", "NAME",
            f"what --target and --patience watch: {', '.join(_SETTINGS['run.monitor']['choices'])}",
        ),
        ("--target", "run.target", "X", "stop when it is reached"),
        ("--patience", "run.patience", "N", "stop after so many measurements without a better one"),
    ),
    "engine": (
        ("--engine", "run.engine", "", "how clients are simulated"),
        ("--device", "run.device", "NAME", "cpu or cuda"),
        ("--dtype", "run.dtype", "", "of weights and activations"),
        ("--threads", "run.threads", "N", "of PyTorch (default: as many as it chooses)"),
        ("--bf16", "run.bf16", "", "mixed precision in local training"),
        ("--compilation", "run.compilation", "", "of the training step"),
        ("--workers", "run.workers", "N", "processes of the engine workers (default: one for each core)"),
        ("--deadline", "run.deadline", "S", "seconds that clients in other processes have for an exchange"),
        ("--chunk", "run.chunk", "K", "clients stacked at a time (default: by memory)"),
        ("--state-memory", "run.state_memory_mib", "MIB", "of clients' states; more goes to disk (default: all of it)"),
    ),
    "results": (
        ("--eval-every", "run.eval_every", "N", "rounds between judgements of personal models"),
        ("--per-client", "run.per_client", "", "each client's numbers in clients.jsonl"),
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
    for group, flags in FLAGS.items():
        add = parser.add_argument_group(group).add_argument
        if group == "data and clients":
            add("--settings", metavar="FILE", help="a .toml or .json file of settings, which flags override")
        for flag, key, metavar, what in flags:
            default = _SETTINGS[key]["default"]
            text = what if default is None or default is False else f"{what} (default: {default})"
            if default is False:
                add(flag, dest=key, action="store_const", const=True, help=text)
            elif not metavar:
                add(flag, dest=key, choices=_SETTINGS[key]["choices"], help=text)
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
