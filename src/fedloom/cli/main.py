"""The command `fedloom`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedloom import __version__
from fedloom.coordinator import History, RunSettings, catalogue, check_free, run
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import FedloomError, SettingError
from fedloom.core.model import Model
from fedloom.core.optimiser import SGD, Local
from fedloom.data import Federation, federate
from fedloom.models import MODELS
from fedloom.recipes import demo
from fedloom.report import algorithm_table, comparison_table, progress, table

_EXAMPLES = """\
examples:
  fedloom algorithms
  fedloom run fedavg
  fedloom run fedntd --set beta=0.5 --partition dirichlet:0.1 --out runs/fedntd
  fedloom compare fedavg scaffold fedntd --set fedntd.beta=0.5 --rounds 50
  fedloom run kt_pfl --model lenet,mlp,logistic --public 500 --clients 20
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run, print; the exit status: 0, 1 (demo: a number is off), 2 (an error), 130 (interrupted)."""
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
            errors.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            return 2
        except KeyboardInterrupt:
            errors.print("interrupted")
            return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedloom",
        description="Federated learning, simulated on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fedloom {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("run", help="train with one algorithm", formatter_class=_Help)
    one.add_argument("algorithm", help="a name that `fedloom algorithms` lists")
    one.set_defaults(do=lambda a, console: _compare(a, [a.algorithm], console))
    many = commands.add_parser(
        "compare", help="train with several algorithms on the same clients", formatter_class=_Help
    )
    many.add_argument("algorithms", nargs="+", metavar="algorithm", help="names that `fedloom algorithms` lists")
    many.set_defaults(do=lambda a, console: _compare(a, a.algorithms, console))
    for command in (one, many):
        _add_settings(command)
    listing = commands.add_parser("algorithms", help="list the algorithms and their settings")
    listing.set_defaults(do=_list)
    show = commands.add_parser(
        "demo", help="four algorithms on embedded data, checked against expected results", formatter_class=_Help
    )
    show.add_argument("--seed", type=int, default=0, help="of everything random")
    show.set_defaults(do=_demo)
    return parser


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Says the default of every setting that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        return super()._get_help_string(action)


def _list(args: argparse.Namespace, console: Console) -> int:
    console.print(algorithm_table())
    return 0


def _add_settings(parser: argparse.ArgumentParser) -> None:
    local, defaults = Local(), RunSettings()
    optimiser = SGD(lr=0.01, momentum=0.9, weight_decay=1e-5)
    add = parser.add_argument_group("data and clients").add_argument
    add(
        "--data",
        default=catalogue.DATA,
        metavar="NAME",
        help=f"{catalogue.DATA}; original files as NAME:FOLDER (mnist, fashion_mnist, cifar10, cifar100, "
        "emnist_letters); or a .npz file with the arrays x_train, y_train, x_test, y_test",
    )
    add("--partition", default="shards:2", metavar="P", help="iid, shards:S or dirichlet:ALPHA")
    add("--clients", type=int, default=100, metavar="N", help="number of clients")
    add("--test-fraction", type=float, default=0.2, metavar="F", help="of a client's examples, held out to judge it by")
    add(
        "--public",
        type=int,
        default=0,
        metavar="N",
        help="training examples taken out first, unlabelled and known to all (kt_pfl needs some)",
    )
    add(
        "--model",
        default="lenet",
        metavar="NAME",
        help=f"{', '.join(MODELS)}; several, with commas, are given to the clients in turn",
    )
    add = parser.add_argument_group("training").add_argument
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the algorithm, in a comparison ALGORITHM.NAME=VALUE; repeatable",
    )
    add("--rounds", type=int, default=defaults.rounds, metavar="N", help="number of rounds")
    add("--cohort", type=int, default=defaults.cohort_size, metavar="K", help="clients asked per round")
    add("--epochs", type=int, default=local.epochs, metavar="N", help="passes of a client over its examples per round")
    add("--batch-size", type=int, default=local.batch_size, metavar="N", help="of local training")
    add("--lr", type=float, default=optimiser.lr, metavar="RATE", help="rate of local SGD")
    add("--decay", type=float, default=local.decay, metavar="F", help="factor on the rate after each round")
    add("--momentum", type=float, default=optimiser.momentum, metavar="M", help="of local SGD")
    add("--weight-decay", type=float, default=optimiser.weight_decay, metavar="W", help="of local SGD")
    add("--seed", type=int, default=defaults.seed, metavar="N", help="of everything random")
    add(
        "--on-nonfinite",
        default=defaults.on_nonfinite,
        choices=("stop", "refuse"),
        help="at a loss that is NaN or infinite: stop, or go on without that client",
    )
    add = parser.add_argument_group("engine").add_argument
    add("--engine", default=defaults.engine, choices=("auto", "loop", "stacked"), help="how clients are simulated")
    add("--device", default=defaults.device, help="cpu or cuda")
    add("--dtype", default=defaults.dtype, choices=("float32", "float64"), help="of weights and activations")
    add("--threads", type=int, default=None, metavar="N", help="of PyTorch (default: as many as it chooses)")
    add("--bf16", action="store_true", help="mixed precision in local training")
    add(
        "--compilation",
        default=defaults.compilation,
        choices=("none", "trace", "compile"),
        help="of the training step on the stacked engine",
    )
    add("--chunk", type=int, default=None, metavar="K", help="clients stacked at a time (default: by memory)")
    add = parser.add_argument_group("results").add_argument
    add(
        "--eval-every",
        type=int,
        default=defaults.eval_every,
        metavar="N",
        help="rounds between judgements of personal models",
    )
    add("--out", type=Path, default=None, metavar="DIR", help="where settings, metrics and timing are written")


def _compare(args: argparse.Namespace, names: Sequence[str], console: Console) -> int:
    optimiser = SGD(lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    local = Local(epochs=args.epochs, batch_size=args.batch_size, optimiser=optimiser, decay=args.decay)
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
        threads=args.threads,
        eval_every=args.eval_every,
        on_nonfinite=args.on_nonfinite,
    )
    if twice := [name for name in dict.fromkeys(names) if list(names).count(name) > 1]:
        raise SettingError(f"each algorithm is named once, got {', '.join(twice)} more often; drop the repeats")
    chosen = _settings_of(args.set, names)
    algorithms = {name: catalogue.algorithm(name, local, chosen[name]) for name in names}
    if not args.public and (needy := [name for name, a in algorithms.items() if a.mixed]):
        raise SettingError(f"{', '.join(needy)} needs public examples, got none; take some out with --public 500")
    if args.out is not None:
        for name in names:
            check_free(_directory(args.out, name, names))
    federation = _federation(args)
    models = {name: Model(make, name=name) for name, make in catalogue.models(args.model, federation.train).items()}
    _introduce(federation, models, settings, console)
    results: list[tuple[str, History]] = []
    try:
        for name, algorithm in algorithms.items():
            out = None if args.out is None else _directory(args.out, name, names)
            results.append((name, _train(name, algorithm, federation, models, settings, console, out)))
    finally:  # where one fails or is interrupted, what the others gave is still worth a look
        if results:
            console.print()
            console.print(comparison_table(results))
            if args.out is not None:
                console.print(f"settings, metrics and timing: {args.out}", markup=False, soft_wrap=True)
    return 0


def _train(
    name: str,
    algorithm: Algorithm[Any, Any],
    federation: Federation,
    models: dict[str, Model],
    settings: RunSettings,
    console: Console,
    out: Path | None = None,
) -> History:
    def announce(history: History) -> None:
        console.print(f"{name}: {history.engine} engine ({history.engine_reason})", markup=False, soft_wrap=True)

    with progress(console, name, settings.rounds) as on_round:
        return run(algorithm, federation, models, settings, directory=out, on_start=announce, on_round=on_round)


def _introduce(federation: Federation, models: dict[str, Model], settings: RunSettings, console: Console) -> None:
    """What is about to run: data, clients, models."""
    train, test, sizes = federation.train, federation.test, federation.partition.sizes
    shape = " x ".join(map(str, train.shape))
    span = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    lines = (
        f"data: {train.name.removesuffix(' train')}, {len(train):,} training and {len(test or ()):,} test examples "
        f"of {shape}, {federation.num_classes} classes",
        f"clients: {federation.num_clients}, {federation.partition.name}, {span} examples each to train on; "
        f"{settings.cohort_size} a round for {settings.rounds} round{'s' * (settings.rounds > 1)}",
        "model: " + ", ".join(f"{name} ({model.num_params:,} parameters)" for name, model in models.items()),
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _directory(out: Path, name: str, names: Sequence[str]) -> Path:
    return out / name if len(names) > 1 else out


def _settings_of(pairs: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """`name.key=value` for one algorithm, `key=value` where there is only one."""
    out: dict[str, dict[str, str]] = {name: {} for name in names}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        owner, _, rest = key.partition(".")
        if not (equals and key and value):
            raise SettingError(f"--set takes NAME=VALUE, got {pair!r}")
        if owner in out and rest:
            out[owner][rest] = value
        elif len(names) == 1:
            out[names[0]][key] = value
        else:
            raise SettingError(f"--set {pair!r}: say whose it is, ALGORITHM.NAME=VALUE with one of {', '.join(names)}")
    return out


def _federation(args: argparse.Namespace) -> Federation:
    train, test = catalogue.data(args.data)
    public = None
    if args.public:
        train, public = catalogue.take_out(train, args.public, args.seed)
    partition = catalogue.partition(args.partition, train.y, args.clients, args.seed)
    return federate(train, partition, test=test, test_fraction=args.test_fraction, public=public, seed=args.seed)


def _demo(args: argparse.Namespace, console: Console) -> int:
    train, test = catalogue.data(catalogue.DATA)
    partition = catalogue.partition(demo.PARTITION, train.y, demo.CLIENTS, demo.PARTITION_SEED)
    federation = federate(train, partition, test=test, seed=demo.PARTITION_SEED)
    settings = demo.settings(args.seed)
    models = {name: Model(make, name=name) for name, make in catalogue.models(demo.MODEL, train).items()}
    _introduce(federation, models, settings, console)
    results: dict[str, History] = {}
    for name in demo.ALGORITHMS:
        algorithm = catalogue.algorithm(name, demo.LOCAL, {})
        results[name] = _train(name, algorithm, federation, models, settings, console)
    console.print()
    console.print(comparison_table(list(results.items())))
    verdicts = table("Expected and got, mean of the last rounds")
    for heading in ("algorithm", "metric", "expected over seeds", "got", "ok"):
        verdicts.add_column(heading, no_wrap=True)
    failed = 0
    for e in demo.EXPECTED:
        got = results[e.algorithm].last(e.metric, e.rounds)
        if e.minus is not None:
            got -= results[e.minus].last(e.metric, e.rounds)
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


if __name__ == "__main__":
    sys.exit(main())
