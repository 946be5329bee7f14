"""The engine that `auto` takes beside the best one, in thirty cases: wide and narrow networks, cohorts of 2 to 100.

    python benchmarks/choices.py --out choices            # ten minutes on a quiet machine; goes on after a stop
    python benchmarks/choices.py --out choices --only mlp # cases whose name has this word
    python benchmarks/choices.py --out choices --report   # the table of what is there

Each engine has the compilation and the threads that the rules give it in a run of 200 rounds. Whole rounds of FedAvg,
one epoch, are timed in turn, A B C A B C ..., after one that traces. `behind`: the time of the engine that was picked
by that of the best, the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rows
import run
from torch import nn

import fedloom as fl
from fedloom.coordinator.engine_choice import choose, choose_compilation
from fedloom.coordinator.thread_count import choose_threads
from fedloom.core.errors import FedloomError
from fedloom.data import Normalise, Tokens, iid, next_tokens
from fedloom.engines.engine import Engine
from fedloom.engines.engine_options import Options
from fedloom.engines.population import Population
from fedloom.models import build
from fedloom.models.sequences import CausalTransformer

SECONDS = 12.0  # of turns of a case
WORST = 1.1


@dataclass(frozen=True)
class Case:
    """A cohort of `clients` of `size` examples, all of which take part in each round."""

    network: str
    clients: int
    size: int
    batch: int = 10

    @property
    def name(self) -> str:
        return f"{self.network}, {self.clients} clients of {self.size}, batch {self.batch}"


CASES = (
    *(Case("logistic", clients, 600) for clients in (2, 3, 5, 10, 30, 100)),
    *(Case("mlp 200", clients, 200) for clients in (2, 3, 5, 10, 40)),
    *(Case("mlp 2000", clients, 100) for clients in (2, 3, 5, 10)),
    *(Case("mlp 2000", clients, 200, 50) for clients in (3, 10)),
    *(Case("lenet", clients, 200) for clients in (2, 3, 4, 5, 10)),
    *(Case("cnn", clients, 100) for clients in (2, 3, 5)),
    *(Case("lstm", clients, 200) for clients in (2, 5)),
    *(Case("transformer", clients, 64, 8) for clients in (2, 4, 10)),
)


def wide(width: int) -> nn.Module:
    """Two layers of `width` units."""
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "logistic": functools.partial(build, "logistic", (1, 28, 28), 10),
    "mlp 200": functools.partial(wide, 200),
    "mlp 2000": functools.partial(wide, 2000),
    "lenet": functools.partial(build, "lenet", (1, 28, 28), 10),
    "cnn": run.CNN,
    "lstm": run.LSTM,
    "transformer": functools.partial(CausalTransformer, 82, 82, length=80, next_token=True),
}


def population_of(case: Case) -> Population:
    count = case.clients * case.size
    rng = np.random.default_rng(0)
    if case.network == "transformer":
        tokens = rng.integers(1, 82, (count, 80)).astype(np.int16)
        examples = fl.from_arrays(tokens, next_tokens(tokens), num_classes=82, normalise=Tokens())
    else:
        x = rng.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        examples = fl.from_arrays(x, rng.integers(0, 10, count), num_classes=10, normalise=Normalise(scale=1 / 255))
    parts = iid(np.arange(count) % 10, case.clients, 0)
    more = {"task": fl.NextToken()} if case.network == "transformer" else {}
    return Population(fl.Federation(examples, parts), {"model": fl.Model(NETWORKS[case.network])}, **more)


def measured(case: Case) -> dict[str, Any]:
    """Microseconds of a client-step of each engine, the one that `auto` picks, and how far that is behind the best."""
    method = fl.FedAvg(local=fl.Local(epochs=1, batch_size=case.batch, optimiser=fl.SGD(lr=0.01)))
    picked, why = choose("auto", population_of(case), method.local, case.clients)
    works, engines = dict[str, Callable[[], float]](), list[Engine]()
    for name, kind in run.KINDS.items():
        population = population_of(case)
        try:
            choose(name, population, method.local, case.clients)  # type: ignore[arg-type]
            form = choose_compilation(kind, population, method.local, case.clients, 200)
            engines.append(kind(population, method, Options(compilation=form)))
            threads = choose_threads(kind, method, population, case.clients)
            works[name] = run.rounds_of(engines[-1], [list(range(case.clients))], threads)
            works[name]()  # traces
        except FedloomError:
            works.pop(name, None)
    until, turns = time.monotonic() + SECONDS, list[dict[str, float]]()
    while len(turns) < 3 or (time.monotonic() < until and len(turns) < 25):
        turns.append({name: work() for name, work in works.items()})
    for engine in engines:
        engine.close()
    middle = {name: statistics.median(turn[name] for turn in turns) for name in works}
    best = min(middle, key=middle.__getitem__)
    steps = case.clients * -(-case.size // case.batch)
    return {
        **{name: round(1e6 * middle[name] / steps, 1) if name in middle else None for name in run.KINDS},
        "auto": picked.name,
        "best": best,
        "behind": statistics.median(turn[picked.name] / turn[best] for turn in turns),
        "turns": len(turns),
        "why": why,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows and the report")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--report", action="store_true", help="write the report of the rows that are there")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        warnings.simplefilter("ignore")
        rows.say("choices", args.case, measured(next(case for case in CASES if case.name == args.case)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for case in CASES if not args.report else ():
        if args.only in case.name and case.name not in rows.done(args.out, "choices"):
            rows.measure("choices", args.out, [__file__, "--out", str(args.out), "--case", case.name], 120)
    found = [row for row in rows.read(args.out) if row["case"]]
    (args.out / "report.md").write_text(rows.table(found))
    far = [
        f"{row['case']}: {row['auto']} {row['behind']:.2f} of {row['best']}" for row in found if row["behind"] > WORST
    ]
    print(f"{len(found)} of {len(CASES)} cases, {len(far)} behind the best by more than {WORST}:", *far, sep="\n  ")


if __name__ == "__main__":
    main()
