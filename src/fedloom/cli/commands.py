"""Commands that join several rooms: they train and print results, or read new rows; and those of the command line."""

from __future__ import annotations

import argparse

from fedloom.cli.flags import add_settings
from fedloom.cli.index import INDEX
from fedloom.display.arguments import allow_code, count, directory, file, round_or_best
from fedloom.display.command import Command


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "algorithms",
        nargs="?",
        type=lambda name: [name],
        default=(),
        metavar="algorithm",
        help="a name that `fedloom algorithms` lists, or your own as module:Class",
    )
    add_settings(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("algorithms", nargs="+", metavar="algorithm", help="as of `fedloom run`")
    add_settings(parser)
    parser.add_argument(
        "--no-local-only",
        action="store_true",
        help="leave out local_only (every client trains alone), which a comparison runs by default",
    )
    parser.add_argument(
        "--leave-one-site-out",
        action="store_true",
        help="train without each natural client in turn and evaluate on what it holds out, a run each",
    )
    parser.add_argument(
        "--tuned", nargs="?", type=int, const=8, metavar="TRIES",
        help="tune each method first: the same number of tries (8) on validation data, of its paper's values and of "
        "learning rates; then run it as given and tuned, with every seed; needs --out and --val-fraction",
    )  # fmt: skip
    parser.add_argument(
        "--tune-with", choices=("grid", "optuna"), default="grid",
        help="what picks the tries: points of the grid, each value about equally often, or Optuna (default: grid)",
    )  # fmt: skip


def _resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=directory, help="the directory of --out")
    parser.add_argument("--rounds", type=int, metavar="N", help="a larger number of rounds")
    parser.add_argument("--at", type=int, metavar="ROUND", help="from this checkpoint instead of the newest")
    parser.add_argument("--mirror", metavar="ADDRESS", help="another address for the mirror; none: go on without one")
    allow_code(parser)


def _branch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=directory, help="the run to copy")
    parser.add_argument("--out", type=directory, metavar="DIR", required=True, help="the directory of the new run")
    parser.add_argument("--at", type=int, metavar="ROUND", help="copy from this checkpoint instead of the newest")
    parser.add_argument("--rounds", type=int, metavar="N", help="total rounds of the new run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="new value of a setting of the algorithm (fedntd.beta) or of its training (local.lr); repeatable",
    )  # fmt: skip
    allow_code(parser)


def _predict(parser: argparse.ArgumentParser) -> None:
    _new_rows(parser, required=True)
    parser.add_argument(
        "--out",
        type=file,
        metavar="FILE.csv",
        help="where predictions go (default: standard output); of masks a folder",
    )


def _evaluate(parser: argparse.ArgumentParser) -> None:
    _new_rows(parser, required=False)
    parser.epilog = (
        "Rows that equal training rows of the run are measured too, with a warning if chance does not explain them. "
        "Of a run over devices nobody knows them: give rows of no device."
    )
    parser.add_argument("--measures", metavar="NAMES", help="some of the task's measures, with commas (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap (default: 0)")
    parser.add_argument("--out", type=file, metavar="FILE.csv", help="where all measures go, by site too")


def _new_rows(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add what says which model and which rows; where these are not required, they may be a client's own."""
    add = parser.add_argument
    add("directory", type=directory, help="a run")
    add(
        "--data", required=required, metavar="FILE",
        help="new rows with the run's columns: a table (new.csv, new.csv?client=site&drop=id, 'new/*.csv'), a .npz "
        "file with x (and y), or a source as of `fedloom run`"
        + " (default: what --client holds out itself)" * (not required),
    )  # fmt: skip
    add("--client", metavar="NAME", help="the personal model of this client, by its name or number")
    add("--model", metavar="NAME", help="which architecture, where there are several")
    add(
        "--at", type=round_or_best, metavar="ROUND", help="a round other than the last, or best, as of `fedloom export`"
    )
    add("--overwrite", action="store_true", help="replace an existing file")
    allow_code(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, with_seeds=False)
    parser.add_argument("--shown", type=count, default=20, metavar="N", help="clients to draw (default: 20)")
    parser.add_argument("--out", type=file, metavar="FILE", help="a figure of the same, .png, .svg or .pdf")


def _download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="name", help="a name that `fedloom data sources` lists")
    parser.add_argument("folder", type=directory, help="where they go")


def _sweep(parser: argparse.ArgumentParser) -> None:
    validation = INDEX["validation"]
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


def _algorithms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="algorithm", help="print all facts of these alone")
    whose = parser.add_mutually_exclusive_group()
    for kind, by in (("personal", "models of their own"), ("global", "the global model")):
        whose.add_argument(
            f"--{kind}", dest="whose", action="store_const", const=kind, help=f"whose clients are evaluated by {by}"
        )
    needs = dict.fromkeys(need for one in INDEX["algorithms"].values() for need in one["needs"])
    parser.add_argument("--one-shot", action="store_true", help="with one round of uploads")
    parser.add_argument(
        "--needs", action="append", default=[], choices=(*needs, "nothing"),
        help="which need public examples, validation examples on clients, class numbers, a state that stays with the "
        "client, or none of these; repeatable",
    )  # fmt: skip


def _models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="model", help="these alone")


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="what stands in brackets at the end of a message, as FL-DATA-001 (default: list all)",
    )


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='eval "$(fedloom completion bash)"')


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=directory,
        help="where my_data.py, my_model.py and settings.toml go; method: a method's file and its test, in this folder",
    )  # fmt: skip
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the method: fedloom new method mine")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")


COMMANDS = {
    "run": Command(help="train with one algorithm", do="fedloom.cli.train:compare", flags=_run),
    "compare": Command(
        help="train with several algorithms on the same clients", do="fedloom.cli.train:compare", flags=_compare
    ),
    "resume": Command(
        help="continue the runs in a directory, bit for bit", do="fedloom.cli.train:resume", flags=_resume
    ),
    "branch": Command(
        help="continue a copy of a run with other settings", do="fedloom.cli.train:branch", flags=_branch
    ),
    "sweep": Command(
        help="train with many settings and choose between them on validation data",
        do="fedloom.cli.sweep:sweep",
        flags=_sweep,
    ),
    "predict": Command(
        help="write what a run's model says of new rows", do="fedloom.cli.predict:predict", flags=_predict
    ),
    "evaluate": Command(
        help="measure a run's model on new rows, with 95 %% intervals",
        do="fedloom.cli.predict:evaluate",
        flags=_evaluate,
    ),
    "data": Command(
        help="print the classes of each client, list data sets, download them",
        inner={
            "show": Command(
                help="print or draw the examples by client and class", do="fedloom.cli.data_sets:show", flags=_show
            ),
            "sources": Command(
                help="list the values of --data and --partition", do="fedloom.cli.data_sets:list_sources"
            ),
            "download": Command(
                help="fetch the published files of a data set", do="fedloom.cli.data_sets:fetch", flags=_download
            ),
        },
    ),
    "algorithms": Command(
        help="list the algorithms, their settings and their facts",
        do="fedloom.cli.list_algorithms:show",
        flags=_algorithms,
    ),
    "models": Command(
        help="list the networks that have names, with their inputs and sizes",
        do="fedloom.cli.list_models:show",
        flags=_models,
    ),
    "explain": Command(
        help="what an error or a warning means, by its code, and how to mend it",
        do="fedloom.cli.explain:show",
        flags=_explain,
    ),
    "completion": Command(
        help="a script that completes commands, flags and values in a shell",
        do="fedloom.cli.completion:show",
        flags=_completion,
    ),
    "new": Command(
        help="write data, model and settings of your own, or a method, as files to change",
        do="fedloom.cli.new:write",
        flags=_new,
    ),
    "schema": Command(help="print the JSON schema of settings files, for editors", do="fedloom.cli.new:schema"),
    "demo": Command(
        help="four algorithms on embedded data, checked against expected results",
        do="fedloom.cli.demo:run",
        flags=_demo,
    ),
}
