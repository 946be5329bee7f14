"""Parser of all commands and their flags, which imports none of their code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fedloom import __version__
from fedloom.cli.argument_parser import Parser
from fedloom.cli.device_commands import add_device_commands
from fedloom.cli.flags import add_settings, count, directory, file, round_or_best
from fedloom.cli.index import INDEX
from fedloom.core.entry_points import COMMANDS, offers
from fedloom.display.command import Command

_CLIENT = "the personal model of this client, by its name or number"
_ELSEWHERE = dict.fromkeys(("reproduce", "claims", "figures"), "fedloom-papers")  # the packages of known commands
_EXAMPLES = """\
examples:
  fedloom new mine
  fedloom algorithms
  fedloom run fedavg
  fedloom run fedntd --set beta=0.5 --partition dirichlet:0.1 --out runs/fedntd
  fedloom compare fedavg fedntd --rounds 50 --seed 0,1 --out runs/two
  fedloom run kt_pfl --model lenet,mlp,logistic --public 500 --clients 20
  fedloom sweep fedntd --over local.lr=0.01,0.1 --val-fraction 0.2 --out runs/lr
  fedloom resume runs/two
  fedloom branch runs/fedntd --at 100 --set fedntd.beta=0.3 --out runs/less
  fedloom verify runs/two
  fedloom report runs/two
  fedloom summary runs/two --name fedavg=FedAvg --out paper
  fedloom analyse runs/fedntd local-accuracy alignment
  fedloom export runs/fedntd model.safetensors
  fedloom predict runs/fedntd --data new.csv --out predictions.csv
  fedloom evaluate runs/fedntd --data new.csv
"""


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands. Its result's `do` names a function, MODULE.NAME of this package.

    Args:
        words: what a person has typed. Other packages are asked for their commands unless the first is one of ours.
    """
    root = Parser(
        prog="fedloom",
        description="Federated learning, simulated on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"fedloom {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, do: str, of: Any = commands) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = of.add_parser(name, help=help, description=help.replace("%%", "%"))
        added.set_defaults(do=do)
        return added

    def add_names(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--name", action="append", default=[], metavar="OLD=NEW",
            help="another name of a method or a data set in tables and figures, fedavg=FedAvg; repeatable",
        )  # fmt: skip

    run = command("run", "train with one algorithm", "train.compare")
    run.add_argument(
        "algorithms",
        nargs="?",
        type=lambda name: [name],
        default=(),
        metavar="algorithm",
        help="a name that `fedloom algorithms` lists, or your own as module:Class",
    )
    add_settings(run)
    compare = command("compare", "train with several algorithms on the same clients", "train.compare")
    compare.add_argument("algorithms", nargs="+", metavar="algorithm", help="as of `fedloom run`")
    add_settings(compare)
    compare.add_argument(
        "--no-local-only",
        action="store_true",
        help="leave out local_only (every client trains alone), which a comparison runs by default",
    )
    compare.add_argument(
        "--leave-one-site-out",
        action="store_true",
        help="train without each natural client in turn and evaluate on what it holds out, a run each",
    )
    compare.add_argument(
        "--tuned", nargs="?", type=int, const=8, metavar="TRIES",
        help="tune each method first: the same number of tries (8) on validation data, of its paper's values and of "
        "learning rates; then run it as given and tuned, with every seed; needs --out and --val-fraction",
    )  # fmt: skip
    compare.add_argument(
        "--tune-with", choices=("grid", "optuna"), default="grid",
        help="what picks the tries: points of the grid, each value about equally often, or Optuna (default: grid)",
    )  # fmt: skip

    resume = command("resume", "continue the runs in a directory, bit for bit", "train.resume")
    resume.add_argument("directory", type=directory, help="the directory of --out")
    resume.add_argument("--rounds", type=int, metavar="N", help="a larger number of rounds")
    resume.add_argument("--at", type=int, metavar="ROUND", help="from this checkpoint instead of the newest")
    _allow_code(resume)

    branch = command("branch", "continue a copy of a run with other settings", "train.branch")
    branch.add_argument("directory", type=directory, help="the run to copy")
    branch.add_argument("--out", type=directory, metavar="DIR", required=True, help="the directory of the new run")
    branch.add_argument("--at", type=int, metavar="ROUND", help="copy from this checkpoint instead of the newest")
    branch.add_argument("--rounds", type=int, metavar="N", help="total rounds of the new run")
    branch.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="new value of a setting of the algorithm (fedntd.beta) or of its training (local.lr); repeatable",
    )  # fmt: skip
    _allow_code(branch)

    verify = command("verify", "check that the runs in a directory are as they were written", "verify.verify")
    verify.add_argument("directory", type=directory, help="a run, or a folder with runs below it")
    verify.set_defaults(allow_code=False)
    verify.add_argument(
        "--expect", metavar="DIGEST", help="the root that was printed before; a different root is an error"
    )

    replay = command("replay", "compute a past round again and print facts of its local models", "runs.replay")
    replay.add_argument("directory", type=directory, help="a run")
    replay.add_argument(
        "round", type=round_or_best, help="the number of the round, from 1, or best: the best on validation data"
    )
    replay.add_argument("--save", type=directory, metavar="DIR", help="write the local models there")
    _allow_code(replay)

    report = command("report", "write one page with figures and tables of all runs in some directories", "runs.report")
    report.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    report.add_argument(
        "--out", type=directory, metavar="DIR", help="where the report goes (default: report/ in the directory)"
    )
    add_names(report)

    report.set_defaults(allow_code=False)
    summary = command("summary", "means over seeds and differences of methods, for a paper", "runs.summarise")
    summary.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    summary.add_argument(
        "--against", metavar="METHOD", help="the method that others are compared with (default: the first)"
    )
    summary.add_argument(
        "--reading", default="last", metavar="R", help="reading of differences: last, tail, validated, best or mean"
    )
    summary.add_argument(
        "--columns", metavar="C", help="columns of accuracies in this order, with commas: seeds, readings as of "
        "--reading; and differences for their table (default: all)",
    )  # fmt: skip
    add_names(summary)
    summary.add_argument(
        "--out", type=directory, metavar="DIR", help="where summary.tex, summary.md and summary.csv go"
    )
    summary.set_defaults(allow_code=False)

    export = command("export", "write a run's global model, or one client's", "runs.export")
    export.add_argument("directory", type=directory, help="a run")
    export.add_argument("file", type=file, help="NAME.safetensors, NAME.pt (a state_dict) or NAME.onnx")
    export.add_argument("--client", metavar="NAME", help=_CLIENT)
    export.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    export.add_argument(
        "--at", type=round_or_best, metavar="ROUND",
        help="a checkpoint other than the newest; best: of the best round on validation data, which --keep-best keeps",
    )  # fmt: skip
    export.add_argument("--overwrite", action="store_true", help="replace an existing file")
    _allow_code(export)

    said = command("predict", "write what a run's model says of new rows", "predict.predict")
    _new_rows(said)
    said.add_argument("--out", type=file, metavar="FILE.csv", help="where predictions go (default: standard output)")
    evaluate = command("evaluate", "measure a run's model on new rows, with 95 %% intervals", "predict.evaluate")
    _new_rows(evaluate)
    evaluate.epilog = (
        "Rows that equal training rows of the run are measured too, with a warning if chance does not explain them. "
        "Of a run over devices nobody knows them: give rows of no device."
    )
    evaluate.add_argument("--measures", metavar="NAMES", help="some of the task's measures, with commas (default: all)")
    evaluate.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap (default: 0)")
    evaluate.add_argument("--out", type=file, metavar="FILE.csv", help="where all measures go, by site too")

    data = commands.add_parser("data", help="print the classes of each client, list data sets, download them")
    subjects = data.add_subparsers(dest="about", required=True, metavar="ABOUT")
    shown = command("show", "print or draw the examples by client and class", "data_sets.show", subjects)
    add_settings(shown, with_seeds=False)
    shown.add_argument("--shown", type=count, default=20, metavar="N", help="clients to draw (default: 20)")
    shown.add_argument("--out", type=file, metavar="FILE", help="a figure of the same, .png, .svg or .pdf")
    command("sources", "list the values of --data and --partition", "data_sets.list_sources", subjects)
    fetch = command("download", "fetch the published files of a data set", "data_sets.fetch", subjects)
    fetch.add_argument("source", metavar="name", help="a name that `fedloom data sources` lists")
    fetch.add_argument("folder", type=directory, help="where they go")

    add_device_commands(command)
    _sweep(command)
    _analyse(command)
    algorithms = command("algorithms", "list the algorithms, their settings and their facts", "list_algorithms.show")
    algorithms.add_argument("names", nargs="*", metavar="algorithm", help="print all facts of these alone")
    whose = algorithms.add_mutually_exclusive_group()
    for kind, by in (("personal", "models of their own"), ("global", "the global model")):
        whose.add_argument(
            f"--{kind}", dest="whose", action="store_const", const=kind, help=f"whose clients are evaluated by {by}"
        )
    needs = dict.fromkeys(need for one in INDEX["algorithms"].values() for need in one["needs"])
    algorithms.add_argument("--one-shot", action="store_true", help="with one round of uploads")
    algorithms.add_argument(
        "--needs", action="append", default=[], choices=(*needs, "nothing"),
        help="which need public examples, validation examples on clients, class numbers, a state that stays with the "
        "client, or none of these; repeatable",
    )  # fmt: skip
    models = command("models", "list the networks that have names, with their inputs and sizes", "list_models.show")
    models.add_argument("names", nargs="*", metavar="model", help="these alone")
    completion = command(
        "completion", "a script that completes commands, flags and values in a shell", "completion.show"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help='eval "$(fedloom completion bash)"')
    new = command("new", "write data, model and settings of your own, or a method, as files to change", "new.write")
    new.add_argument(
        "directory", type=directory,
        help="where my_data.py, my_model.py and settings.toml go; method: a method's file and its test, in this folder",
    )  # fmt: skip
    new.add_argument("name", nargs="?", metavar="NAME", help="of the method: fedloom new method mine")
    command("schema", "print the JSON schema of settings files, for editors", "new.schema")
    demo = command("demo", "four algorithms on embedded data, checked against expected results", "demo.run")
    demo.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    if not words or words[0] not in commands.choices:
        for name, offer in offers(COMMANDS, commands.choices).items():
            declared: Command = offer.load()
            declared.flags(command(name, declared.help, declared.do))
        root.elsewhere = {name: package for name, package in _ELSEWHERE.items() if name not in commands.choices}
    return root


def _allow_code(command: argparse.ArgumentParser) -> None:
    """Add the flag that permits imports of the code that a run's folder names."""
    command.add_argument(
        "--allow-code", action="store_true",
        help="import the code that the run's settings name as module:name; without it, runs with such code are refused",
    )  # fmt: skip


def _new_rows(command: argparse.ArgumentParser) -> None:
    """Add what says which model and which rows."""
    add = command.add_argument
    add("directory", type=directory, help="a run")
    add(
        "--data", required=True, metavar="FILE",
        help="new rows with the run's columns: a table (new.csv, new.csv?client=site&drop=id, 'new/*.csv'), a .npz "
        "file with x (and y), or a source as of `fedloom run`",
    )  # fmt: skip
    add("--client", metavar="NAME", help=_CLIENT)
    add("--model", metavar="NAME", help="which architecture, where there are several")
    add(
        "--at", type=round_or_best, metavar="ROUND", help="a round other than the last, or best, as of `fedloom export`"
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    _allow_code(command)


def _sweep(command: Any) -> None:
    validation = INDEX["validation"]
    parser = command("sweep", "train with many settings and choose between them on validation data", "sweep.sweep")
    parser.add_argument("algorithm", nargs="?", help="as of `fedloom run`")
    add_settings(parser)
    add = parser.add_argument_group("sweep").add_argument
    add(
        "--over", action="append", default=[], metavar="KEY=VALUES",
        help="a setting by its name in a settings file (local.lr), or the algorithm's own (beta), and its values: "
        "V1,V2,...; or 'V1|V2' where values hold commas; or, with --search, log:LOW:HIGH, uniform:LOW:HIGH or "
        "int:LOW:HIGH; repeatable: all combinations",
    )  # fmt: skip
    add(
        "--search", type=int, metavar="N",
        help="N trials that Optuna chooses by the results of earlier ones, instead of all combinations",
    )  # fmt: skip
    add("--search-seed", type=int, default=0, metavar="N", help="of the search (default: 0)")
    add(
        "--by", default=validation, metavar="NAME",
        help=f"measure to choose by: {', '.join(INDEX['measures'])} (default: {validation}, the only one without test "
        "data; needs --val-fraction)",
    )  # fmt: skip


def _analyse(command: Any) -> None:
    parser = command("analyse", "measure what happened inside the rounds of a run: figures and numbers", "analyse.run")
    parser.add_argument("directory", nargs="?", type=directory, help="a run")
    parser.add_argument("names", nargs="*", metavar="NAME", help="analyses that --list shows; or all")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--round", type=int, metavar="T", help="the round to analyse (default: the last in which clients trained)"
    )
    which.add_argument(
        "--rounds",
        metavar="A,B,C",
        help="rounds of curves, or all (default: ten, evenly spaced); other analyses take the last of them",
    )
    parser.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    parser.add_argument(
        "--out", type=directory, metavar="DIR", help="where figures and numbers go (default: analysis/ in the run)"
    )
    parser.add_argument("--list", action="store_true", help="list the analyses")
    _allow_code(parser)
