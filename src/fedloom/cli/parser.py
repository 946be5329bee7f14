"""What a person may type: all commands and their flags, known without importing what does them."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from fedloom import __version__
from fedloom.cli.flags import add_settings, directory, round_or_best
from fedloom.cli.index import INDEX
from fedloom.core.naming import did_you_mean

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
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. `do` of what it parses names a function, MODULE.NAME of this package."""
    made = _Parser(
        prog="fedloom",
        description="Federated learning, simulated on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"fedloom {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, do: str, of: Any = commands) -> argparse.ArgumentParser:
        one: argparse.ArgumentParser = of.add_parser(name, help=help, description=help)
        one.set_defaults(do=do)
        return one

    def named(one: argparse.ArgumentParser) -> None:
        one.add_argument(
            "--name", action="append", default=[], metavar="OLD=NEW",
            help="what a method or a data set is called in tables and figures, fedavg=FedAvg; repeatable",
        )  # fmt: skip

    one = command("run", "train with one algorithm", "train.compare")
    one.add_argument(
        "algorithms",
        nargs="?",
        type=lambda name: [name],
        default=(),
        metavar="algorithm",
        help="a name that `fedloom algorithms` lists, or your own as module:Class",
    )
    add_settings(one)
    many = command("compare", "train with several algorithms on the same clients", "train.compare")
    many.add_argument("algorithms", nargs="+", metavar="algorithm", help="as of `fedloom run`")
    add_settings(many)
    many.add_argument(
        "--no-local-only",
        action="store_true",
        help="without local_only, every client's training alone, which a comparison has beside it otherwise",
    )

    again = command("resume", "go on with the runs in a directory, bit for bit", "train.resume")
    again.add_argument("directory", type=directory, help="what --out named")
    again.add_argument("--rounds", type=int, metavar="N", help="more rounds than they were started with")
    again.add_argument("--at", type=int, metavar="ROUND", help="from this checkpoint instead of the newest")
    _allow_code(again)

    fork = command("branch", "a run that begins as another did and goes on with other settings", "train.branch")
    fork.add_argument("directory", type=directory, help="the run that it begins as")
    fork.add_argument("--out", type=directory, metavar="DIR", required=True, help="the directory of the new run")
    fork.add_argument("--at", type=int, metavar="ROUND", help="leave it at this checkpoint instead of the newest")
    fork.add_argument("--rounds", type=int, metavar="N", help="of the new run in all")
    fork.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="from then on: a setting of the algorithm (fedntd.beta) or of its training (local.lr); repeatable",
    )  # fmt: skip
    _allow_code(fork)

    whole = command("verify", "check every byte of the runs in a directory that decides a result", "verify.verify")
    whole.add_argument("directory", type=directory, help="a run, or a folder with runs below it")
    whole.set_defaults(allow_code=False)
    whole.add_argument("--expect", metavar="DIGEST", help="the root that was printed before: another one is an error")

    past = command("replay", "compute a past round again and look at its local models", "runs.replay")
    past.add_argument("directory", type=directory, help="a run")
    past.add_argument("round", type=round_or_best, help="which round, from 1; or best: the best on validation data")
    past.add_argument("--save", type=directory, metavar="DIR", help="write the local models there")
    _allow_code(past)

    page = command("report", "one page with figures and tables about all runs in some directories", "runs.report")
    page.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    page.add_argument(
        "--out", type=directory, metavar="DIR", help="where the report goes (default: report/ in the directory)"
    )
    named(page)

    page.set_defaults(allow_code=False)
    numbers = command("summary", "means over seeds and differences of methods, for a paper", "runs.summarise")
    numbers.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    numbers.add_argument("--against", metavar="METHOD", help="whom others are compared with (default: the first)")
    numbers.add_argument(
        "--reading", default="last", metavar="R", help="what differences are of: last, tail, validated, best or mean"
    )
    numbers.add_argument(
        "--columns", metavar="C", help="of accuracies, in this order: seeds, or readings as of --reading, with commas; "
        "and differences, their table (default: all)",
    )  # fmt: skip
    named(numbers)
    numbers.add_argument(
        "--out", type=directory, metavar="DIR", help="where summary.tex, summary.md and summary.csv go"
    )
    numbers.set_defaults(allow_code=False)

    model = command("export", "write a run's global model, or one client's", "runs.export")
    model.add_argument("directory", type=directory, help="a run")
    model.add_argument("file", help="NAME.safetensors, NAME.pt (a state_dict) or NAME.onnx")
    model.add_argument("--client", type=int, metavar="K", help="the personal model of this client")
    model.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    model.add_argument(
        "--at", type=round_or_best, metavar="ROUND",
        help="a checkpoint other than the newest; best: of the best round on validation data, which --keep-best keeps",
    )  # fmt: skip
    model.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    _allow_code(model)

    data = commands.add_parser("data", help="look at data sets and at who holds what; download")
    about = data.add_subparsers(dest="about", required=True, metavar="ABOUT")
    shown = command("show", "draw which client holds which classes", "data_sets.show", about)
    add_settings(shown, seeds=False)
    shown.add_argument("--shown", type=int, default=20, metavar="N", help="clients to draw (default: 20)")
    shown.add_argument("--out", metavar="FILE", help="a figure of the same, .png, .svg or .pdf")
    command("sources", "list what --data and --partition take", "data_sets.list_sources", about)
    fetch = command("download", "fetch the published files of a data set", "data_sets.fetch", about)
    fetch.add_argument("source", metavar="name", help="a name that `fedloom data sources` lists")
    fetch.add_argument("folder", help="where they go")

    _devices(command)
    _sweep(command)
    _analyse(command)
    _reproduce(command)
    command("algorithms", "list the algorithms and their settings", "list_algorithms.show")
    shell = command("completion", "a script that completes commands, flags and values in a shell", "completion.show")
    shell.add_argument("shell", choices=("bash", "zsh", "fish"), help='eval "$(fedloom completion bash)"')
    own = command("new", "write data, model and settings of your own, as files to change", "new.write")
    own.add_argument("directory", type=directory, help="where my_data.py, my_model.py and settings.toml go")
    command("schema", "print the JSON schema of settings files, for editors", "new.schema")
    check = command("demo", "four algorithms on embedded data, checked against expected results", "demo.run")
    check.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    return made


def _allow_code(command: argparse.ArgumentParser) -> None:
    """Add the flag that permits imports of what a run's folder names; commands of what a person types need none."""
    command.add_argument(
        "--allow-code", action="store_true",
        help="import the code that the run's settings name as module:name; without it, runs with such code are refused",
    )  # fmt: skip


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
        help="so many trials instead of all combinations, each picked by Optuna by what those before gave",
    )  # fmt: skip
    add("--search-seed", type=int, default=0, metavar="N", help="of the search (default: 0)")
    add(
        "--by", default=validation, metavar="NAME",
        help=f"what to choose by: {', '.join(INDEX['measures'])} (default: {validation}, the only one that spares the "
        "test data; needs --val-fraction)",
    )  # fmt: skip


def _devices(command: Any) -> None:
    serve = command("serve", "run rounds with devices that join, at rank 0; see docs/devices.md", "serve.serve")
    add = serve.add_argument
    add("--settings", required=True, metavar="FILE", help="what to run, .toml or .json; without the clients' examples")
    add("--out", required=True, type=directory, metavar="DIR", help="where the run and the audit log are written")
    add("--resume", action="store_true", help="go on with the run that --out holds, with the devices that are there")
    add(
        "--test",
        default="",
        metavar="SOURCE",
        help="as --data of fedloom run: its test examples judge the global model",
    )
    add(
        "--most-examples", type=int, metavar="N",
        help="examples that count of one device (default: ten times the median of all, at most 1000000; with --resume, "
        "as when the run began)",
    )  # fmt: skip
    add(
        "--median-bound", metavar="X",
        help="refuse uploads of more than X times the median norm of their kind, none for any (run.median_bound; "
        "default: 5; with --resume, as when the run began)",
    )  # fmt: skip
    add(
        "--wait", type=float, default=600.0, metavar="S",
        help="seconds to wait for devices: then the run begins with those that have come, or ends where all have left "
        "(default: 600)",
    )  # fmt: skip
    add(
        "--least", type=int, metavar="K",
        help="devices with which it begins at least (default: all that WORLD_SIZE says but those that are refused)",
    )  # fmt: skip
    join = command("join", "take part as a device, at any other rank; see docs/devices.md", "join.join")
    add = join.add_argument
    add("--data", required=True, metavar="SOURCE", help="as of fedloom run; or a folder with such a file, or images")
    add("--state", required=True, type=directory, metavar="DIR", help="where the device keeps its id and its states")
    add("--model", default="", metavar="NAME", help="which architecture of the settings (default: the server chooses)")
    add("--battery", type=float, metavar="SHARE", help="least charge with which it begins, if it is not plugged in")
    add("--load", type=float, metavar="SHARE", help="most load of its processors, 1 for all, with which it begins")
    add("--temperature", type=float, metavar="C", help="most degrees Celsius with which it begins")
    add("--memory", type=float, metavar="MIB", help="least free memory with which it begins")
    add(
        "--most-steps", type=int, default=100_000, metavar="N",
        help="training steps that it takes in a request; a server that asks for more is refused (default: 100000)",
    )  # fmt: skip
    add("--abort-battery", type=float, metavar="SHARE", help="least charge with which it goes on")
    add("--abort-temperature", type=float, metavar="C", help="most degrees Celsius with which it goes on")
    add("--abort-memory", type=float, metavar="MIB", help="least free memory with which it goes on")
    for one in (serve, join):
        one.add_argument("--transport", choices=("gloo", "mpi"), default="gloo", help="between ranks (default: gloo)")


def _analyse(command: Any) -> None:
    parser = command("analyse", "measure what happened inside the rounds of a run: figures and numbers", "analyse.run")
    parser.add_argument("directory", nargs="?", type=directory, help="a run")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure, as --list names it; or all")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--round", type=int, metavar="T", help="the round to look at (default: the last in which clients trained)"
    )
    which.add_argument(
        "--rounds",
        metavar="A,B,C",
        help="rounds of curves, or all (default: ten, evenly); others take the last of them",
    )
    parser.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    parser.add_argument(
        "--out", type=directory, metavar="DIR", help="where figures and numbers go (default: analysis/ in the run)"
    )
    parser.add_argument("--list", action="store_true", help="list what can be measured")
    _allow_code(parser)


def _reproduce(command: Any) -> None:
    parser = command("reproduce", "run the published experiments of a table and compare the numbers", "reproduce.run")
    add = parser.add_argument
    add("table", nargs="?", help="a name that --list shows")
    add(
        "--list", action="store_true",
        help="the tables; of one that is named, its columns and methods, or those of --only and --methods",
    )  # fmt: skip
    add(
        "--data", type=directory, metavar="FOLDER",
        help="with the original files of the data sets; needed where something must be run",
    )  # fmt: skip
    add("--out", type=directory, metavar="DIR", help="where runs and results go; what is done there is not done again")
    add("--only", metavar="COLUMN", help="cifar10-s2, or all that begin so (cifar10); several with commas")
    add(
        "--methods", metavar="NAME",
        help="of the table, or those in other readings of the settings (fedprox-config); several with commas",
    )  # fmt: skip
    add(
        "--rounds",
        metavar="N",
        help="only so many, of the same schedule: a later call can go on (default, and most: as published)",
    )
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--seeds", metavar="S", help="seeds 0 to S - 1 (default: 1)")
    many.add_argument("--seed", metavar="N", help="seeds, with commas")
    add("--threads", metavar="N", help="of PyTorch (default: as many as it chooses)")
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="another setting by its name in a settings file, run.device=cuda; repeatable; results say so",
    )  # fmt: skip
    add(
        "--known", action="append", default=[], type=directory, metavar="DIR",
        help="other results, also exported ones, whose runs with the same settings count as done; repeatable",
    )  # fmt: skip
    add("--report-only", action="store_true", help="run nothing, only compare what is there")
    add(
        "--export", type=directory, metavar="DIR",
        help="copy settings and logs of finished runs there, without weights",
    )  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """One that says which of its flags, commands and values may have been meant, in a line or two."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            close = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            if self.prog == "fedloom run" and not unknown[0].startswith("-"):
                close = ": fedloom compare trains with several algorithms"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{close}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            raise argparse.ArgumentError(
                action, f"invalid choice: {value!r}{did_you_mean(str(value), known)}; there are {', '.join(known)}"
            )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\nusage: {self.prog} --help tells more\n")
