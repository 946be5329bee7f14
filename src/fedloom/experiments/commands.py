"""Commands of single runs."""

from __future__ import annotations

import argparse

from fedloom.display.arguments import allow_code, count, directory, file, round_or_best
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


def _distil(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="FILE:NETWORK",
        help="weights that were trained elsewhere, a state_dict (.pt, .pth) or .safetensors, and of what: a name of "
        "`fedloom models` or your own as module:name",
    )  # fmt: skip
    parser.add_argument("--student", required=True, metavar="NETWORK", help="the network that is taught")
    parser.add_argument("--shape", required=True, metavar="CxHxW", help="of an example, as in 1x28x28")
    parser.add_argument("--classes", required=True, type=count, metavar="C", help="how many the models know")
    parser.add_argument(
        "--normalise", required=True, metavar="N",
        help="how their inputs were made: MEANS/STDS by channel, or as those of a source, such as mnist",
    )  # fmt: skip
    parser.add_argument("--test", default="", metavar="SOURCE", help="test examples, as of --data; they teach nothing")
    parser.add_argument("--method", choices=("dense", "fed_dafl", "fed_adi", "feddf"), default="dense")
    parser.add_argument("--public", metavar="SOURCE", help="examples from which feddf learns, without their labels")
    parser.add_argument("--epochs", type=count, metavar="N", help="of the student (default: 200, of feddf 50)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    parser.add_argument("--device", default="cpu", metavar="D", help="of PyTorch (default: cpu)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the method; repeatable"
    )
    parser.add_argument("--out", required=True, type=directory, metavar="DIR", help="where the run is written")


COMMANDS = {
    "distil": Command(
        help="teach a student what models know that were trained elsewhere, without their data",
        do="fedloom.experiments.distil:distil",
        flags=_distil,
    ),
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
