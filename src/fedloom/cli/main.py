"""The command `fedloom`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedloom.coordinator import History, RunSettings, catalogue, run
from fedloom.core.errors import FedloomError
from fedloom.core.optimiser import Local
from fedloom.data import Federation, federate
from fedloom.recipes import demo
from fedloom.report import algorithm_table, comparison_table, progress

console = Console()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print; the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    warnings.showwarning = lambda message, *rest, **more: console.print(f"[yellow]warning:[/] {message}")
    try:
        return int(args.do(args))
    except (FedloomError, ValueError) as error:
        Console(stderr=True).print(f"[red]error:[/] {error}", highlight=False, soft_wrap=True)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedloom", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="train with one algorithm")
    one.add_argument("algorithm")
    one.set_defaults(do=lambda a: _compare(a, [a.algorithm]))
    many = commands.add_parser("compare", help="train with several algorithms on the same clients")
    many.add_argument("algorithms", nargs="+")
    many.set_defaults(do=lambda a: _compare(a, a.algorithms))
    for command in (one, many):
        _add_settings(command)
    listing = commands.add_parser("algorithms", help="list the algorithms and their settings")
    listing.set_defaults(do=_list)
    show = commands.add_parser("demo", help="four algorithms on embedded data, checked against expected results")
    show.add_argument("--seed", type=int, default=0)
    show.set_defaults(do=_demo)
    return parser


def _list(args: argparse.Namespace) -> int:
    console.print(algorithm_table())
    return 0


def _add_settings(parser: argparse.ArgumentParser) -> None:
    local, defaults = Local(), RunSettings()
    optimiser = catalogue.sgd(0.01, 0.9, 1e-5)
    add = parser.add_argument
    add("--data", default=catalogue.DATA, help="fashion_mnist_small, or a .npz with x_train, y_train, x_test, y_test")
    add("--partition", default="shards:2", help="iid, shards:S or dirichlet:ALPHA (default shards:2)")
    add("--clients", type=int, default=100)
    add("--test-fraction", type=float, default=0.2, help="of each client's examples, held out to judge its model")
    add("--public", type=int, default=0, help="training examples taken out first, unlabelled and known to all (KT-pFL)")
    add("--model", default="lenet", help="one architecture, or several with commas, given to clients in turn")
    add("--cohort", type=int, default=defaults.cohort_size, help="clients asked per round")
    add("--rounds", type=int, default=defaults.rounds)
    add("--epochs", type=int, default=local.epochs)
    add("--batch-size", type=int, default=local.batch_size)
    add("--lr", type=float, default=optimiser.lr)
    add("--momentum", type=float, default=optimiser.momentum)
    add("--weight-decay", type=float, default=optimiser.weight_decay)
    add("--decay", type=float, default=local.decay, help="factor on the rate after each round")
    add("--seed", type=int, default=defaults.seed)
    add("--engine", default=defaults.engine, choices=("auto", "loop", "stacked"))
    add(
        "--compilation",
        default=defaults.compilation,
        choices=("none", "trace", "compile"),
        help="of the stacked engine",
    )
    add("--chunk", type=int, default=None, help="clients computed at a time by the stacked engine")
    add("--bf16", action="store_true", help="mixed precision in local training")
    add("--device", default=defaults.device)
    add("--dtype", default=defaults.dtype, choices=("float32", "float64"))
    add("--eval-every", type=int, default=defaults.eval_every)
    add("--on-nonfinite", default=defaults.on_nonfinite, choices=("stop", "refuse"))
    add("--set", action="append", default=[], metavar="[ALGORITHM.]NAME=VALUE", help="a hyper-parameter; repeatable")
    add("--out", type=Path, default=None, help="directory for settings, metrics and timing")


def _compare(args: argparse.Namespace, names: Sequence[str]) -> int:
    local = Local(
        epochs=args.epochs,
        batch_size=args.batch_size,
        optimiser=catalogue.sgd(args.lr, args.momentum, args.weight_decay),
        decay=args.decay,
    )
    settings = RunSettings(
        rounds=args.rounds,
        cohort_size=args.cohort,
        seed=args.seed,
        engine=args.engine,
        compilation=args.compilation,
        chunk=args.chunk,
        bf16=args.bf16,
        device=args.device,
        dtype=args.dtype,
        eval_every=args.eval_every,
        on_nonfinite=args.on_nonfinite,
    )
    chosen = _settings_of(args.set, names)
    algorithms = [(name, catalogue.algorithm(name, local, chosen[name])) for name in names]
    federation = _federation(args)
    models = catalogue.models(args.model, federation.train)
    results: list[tuple[str, History]] = []
    for name, algorithm in algorithms:
        out = None if args.out is None else (args.out / name if len(names) > 1 else args.out)
        with progress(console, name, args.rounds) as on_round:
            history = run(algorithm, federation, models, settings, directory=out, on_round=on_round)
        results.append((name, history))
    console.print(comparison_table(results))
    if args.out is not None:
        console.print(f"metrics and timing: {args.out}")
    return 0


def _settings_of(pairs: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """`name.key=value` for one algorithm, `key=value` where there is only one."""
    out: dict[str, dict[str, str]] = {name: {} for name in names}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        owner, _, rest = key.partition(".")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, got {pair!r}")
        if owner in out and rest:
            out[owner][rest] = value
        elif len(names) == 1:
            out[names[0]][key] = value
        else:
            raise ValueError(f"--set {pair!r}: say whose it is, ALGORITHM.NAME=VALUE with one of {', '.join(names)}")
    return out


def _federation(args: argparse.Namespace) -> Federation:
    train, test = catalogue.data(args.data)
    public = None
    if args.public:
        train, public = catalogue.take_out(train, args.public, args.seed)
    partition = catalogue.partition(args.partition, train.y, args.clients, args.seed)
    return federate(train, partition, test=test, test_fraction=args.test_fraction, public=public, seed=args.seed)


def _demo(args: argparse.Namespace) -> int:
    train, test = catalogue.data(catalogue.DATA)
    federation = federate(
        train, catalogue.partition(demo.PARTITION, train.y, demo.CLIENTS, args.seed), test=test, seed=args.seed
    )
    models = catalogue.models(demo.MODEL, train)
    results: dict[str, History] = {}
    for name in demo.ALGORITHMS:
        algorithm = catalogue.algorithm(name, demo.LOCAL, {})
        settings = demo.settings(args.seed)
        with progress(console, name, settings.rounds) as on_round:
            results[name] = run(algorithm, federation, models, settings, on_round=on_round)
    console.print(comparison_table(list(results.items())))
    table = Table(title="Expected and got")
    for heading in ("algorithm", "metric", "expected (range over seeds)", "got", "ok"):
        table.add_column(heading)
    failed = 0
    for e in demo.EXPECTED:
        got = results[e.algorithm].last(e.metric)
        ok = e.low <= got <= e.high
        failed += not ok
        verdict = "[green]yes[/]" if ok else "[red]NO[/]"
        table.add_row(e.algorithm, e.metric.replace("_", " "), f"{e.low:.2f} to {e.high:.2f}", f"{got:.3f}", verdict)
    console.print(table)
    if failed:
        Console(stderr=True).print(f"[red]{failed} of {len(demo.EXPECTED)} numbers are out of their range[/]")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
