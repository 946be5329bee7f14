"""The command `fedloom`."""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedloom import __version__
from fedloom.cli import analyse, reproduce, results, sweep, train
from fedloom.cli.options import add_settings, directory
from fedloom.core.errors import FedloomError
from fedloom.recipes import demo
from fedloom.report import algorithm_table, comparison_table, table

_EXAMPLES = """\
examples:
  fedloom algorithms
  fedloom run fedavg
  fedloom run fedntd --set beta=0.5 --partition dirichlet:0.1 --out runs/fedntd
  fedloom compare fedavg fedntd --rounds 50 --seed 0,1 --out runs/two
  fedloom run kt_pfl --model lenet,mlp,logistic --public 500 --clients 20
  fedloom sweep fedntd --over local.lr=0.01,0.1 --val-fraction 0.2 --out runs/lr
  fedloom resume runs/two
  fedloom report runs/two
  fedloom analyse runs/fedntd local-accuracy alignment
  fedloom export runs/fedntd model.safetensors
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print; the exit status: 0; 1 (demo: a number is off; reproduce: something asked for is missing);
    2 (an error, or nothing could be run); 130 (interrupted).
    """
    args = _parser().parse_args(argv)
    console, errors = Console(), Console(stderr=True)

    def show(message: Any, *rest: Any, **more: Any) -> None:
        console.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False, soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        try:
            return int(args.do(args, console))
        except (FedloomError, ValueError, OSError) as error:
            errors.print(f"[red]error:[/] {escape(str(error) + _place(error))}", highlight=False, soft_wrap=True)
            return 2
        except KeyboardInterrupt:
            by_flag = hasattr(args, "resume") and args.out is not None
            goes_on = "; the same command with --resume goes on" if by_flag else ""
            errors.print("interrupted" + ("; the same command goes on" if args.command == "reproduce" else goes_on))
            return 130


def _place(error: BaseException) -> str:
    """Where in somebody's own code an error came from: its innermost line outside of Python and of all packages."""
    origin = error.__cause__ if isinstance(error, FedloomError) else error
    frames = [] if origin is None else traceback.extract_tb(origin.__traceback__)
    packages = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))
    own = [f for f in frames if Path(f.filename).exists() and not any(map(Path(f.filename).is_relative_to, packages))]
    return f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedloom",
        description="Federated learning, simulated on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedloom {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, do: Callable[..., int], of: Any = commands) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = of.add_parser(name, help=help, description=help)
        made.set_defaults(do=do)
        return made

    one = command(
        "run", "train with one algorithm", lambda a, c: train.compare(a, [a.algorithm] * bool(a.algorithm), c)
    )
    one.add_argument("algorithm", nargs="?", help="a name that `fedloom algorithms` lists, or your own as module:Class")
    add_settings(one)
    many = command(
        "compare",
        "train with several algorithms on the same clients",
        lambda a, c: train.compare(a, a.algorithms, c),
    )
    many.add_argument("algorithms", nargs="+", metavar="algorithm", help="as of `fedloom run`")
    add_settings(many)

    again = command("resume", "go on with the runs in a directory, bit for bit", train.resume)
    again.add_argument("directory", type=directory, help="what --out named")
    again.add_argument("--rounds", type=int, metavar="N", help="more rounds than they were started with")
    again.add_argument("--at", type=int, metavar="ROUND", help="from this checkpoint instead of the newest")

    past = command("replay", "compute a past round again and look at its local models", results.replay)
    past.add_argument("directory", type=directory, help="a run")
    past.add_argument("round", type=int, help="which round, from 1")
    past.add_argument("--save", type=directory, metavar="DIR", help="write the local models there")

    page = command("report", "one page with figures and tables about all runs in some directories", results.report)
    page.add_argument(
        "directories", nargs="+", type=directory, metavar="directory", help="a run, or a folder with runs below it"
    )
    page.add_argument(
        "--out", type=directory, metavar="DIR", help="where the report goes (default: report/ in the directory)"
    )

    model = command("export", "write a run's global model, or one client's", results.export)
    model.add_argument("directory", type=directory, help="a run")
    model.add_argument("file", help="NAME.safetensors, NAME.pt (a state_dict) or NAME.onnx")
    model.add_argument("--client", type=int, metavar="K", help="the personal model of this client")
    model.add_argument("--model", metavar="NAME", help="which architecture, where there are several")
    model.add_argument("--at", type=int, metavar="ROUND", help="a checkpoint other than the newest")
    model.add_argument("--overwrite", action="store_true", help="replace a file that is there")

    data = commands.add_parser("data", help="look at data sets and at who holds what; download")
    about = data.add_subparsers(dest="about", required=True, metavar="ABOUT")
    shown = command("show", "draw which client holds which classes", results.show_data, about)
    add_settings(shown, seeds=False)
    shown.add_argument("--shown", type=int, default=20, metavar="N", help="clients to draw (default: 20)")
    shown.add_argument("--out", metavar="FILE", help="a figure of the same, .png or .svg")
    command("sources", "list what --data and --partition take", results.list_sources, about)
    fetch = command("download", "fetch the published files of a data set", results.fetch_data, about)
    fetch.add_argument("name", help="a name that `fedloom data sources` lists")
    fetch.add_argument("folder", help="where they go")

    sweep.add_command(command)
    analyse.add_command(command)
    reproduce.add_command(command)
    command("algorithms", "list the algorithms and their settings", _list)
    check = command("demo", "four algorithms on embedded data, checked against expected results", _demo)
    check.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    return parser


def _list(args: argparse.Namespace, console: Console) -> int:
    console.print(algorithm_table())
    return 0


def _demo(args: argparse.Namespace, console: Console) -> int:
    experiments = demo.experiments(args.seed)
    federation = next(iter(experiments.values())).federation()
    jobs = {name: experiment.job(federation) for name, experiment in experiments.items()}
    first = next(iter(jobs.values()))
    train.introduce(federation, first.population.models, first.settings, console)
    found = {name: train.train(name, job, console) for name, job in jobs.items()}
    console.print()
    console.print(comparison_table(list(found.items())))
    verdicts = table("Expected over seeds and got, mean of the last rounds")
    for heading in ("algorithm", "metric", "expected", "got", "ok"):
        verdicts.add_column(heading, no_wrap=heading != "metric")
    failed = 0
    for e in demo.EXPECTED:
        got = found[e.algorithm].last(e.metric, e.rounds)
        if e.minus is not None:
            got -= found[e.minus].last(e.metric, e.rounds)
        ok = e.low <= got <= e.high
        failed += not ok
        verdict = "[green]yes[/]" if ok else "[red]NO[/]"
        verdicts.add_row(
            e.algorithm,
            f"{e.metric.replace('_', ' ')} ({e.rounds})",
            f"{e.low:.2f} to {e.high:.2f}",
            f"{got:.3f}",
            verdict,
        )
    console.print()
    console.print(verdicts)
    if failed:
        Console(stderr=True).print(f"[red]{failed} of {len(demo.EXPECTED)} numbers are out of their range[/]")
    return 1 if failed else 0
