"""Commands of single runs."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import allow_code, directory, file, round_or_best
from fedloom.display.command import Command


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=directory, help="a run, or a folder with runs below it")
    parser.set_defaults(allow_code=False)
    parser.add_argument(
        "--expect", metavar="DIGEST", help="the root that was printed before; a different root is an error"
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=directory, help="a run")
    parser.add_argument(
        "round", type=round_or_best, help="the number of the round, from 1, or best: the best on validation data"
    )
    parser.add_argument("--save", type=directory, metavar="DIR", help="write the local models there")
    allow_code(parser)


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=directory, help="a run")
    parser.add_argument("file", type=file, help="NAME.safetensors, NAME.pt (a state_dict), NAME.onnx; --peft: a folder")
    parser.add_argument("--peft", action="store_true", help="the adapter alone, as PeftModel.from_pretrained reads it")
    parser.add_argument("--client", metavar="NAME", help="the personal model of this client, by its name or number")
    parser.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    parser.add_argument(
        "--at", type=round_or_best, metavar="ROUND",
        help="a checkpoint other than the newest; best: of the best round on validation data, which --keep-best keeps",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    allow_code(parser)


COMMANDS = {
    "verify": Command(
        help="check that the runs in a directory are as they were written",
        do="fedloom.experiments.verify:verify",
        flags=_verify,
    ),
    "replay": Command(
        help="compute a past round again and print facts of its local models",
        do="fedloom.experiments.finished_runs:replay",
        flags=_replay,
    ),
    "export": Command(
        help="write a run's global model, or one client's",
        do="fedloom.experiments.finished_runs:export",
        flags=_export,
    ),
}
