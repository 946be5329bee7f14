"""1,000 clients that keep 9 MB each: what a memory budget costs. And FedFomo, whose server keeps a model of each client
and sends five of them to everybody asked; and APFL (Ni), whose clients keep own weights and an importance, 4.1 MB each.
One process each, peak memory and seconds a round.

python benchmarks/states.py                   # all, about six minutes and 9 GB of disk; prints three tables
python benchmarks/states.py --only fedfomo    # one of them
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.coordinator import History
from fedloom.coordinator.sampler import FixedList
from fedloom.data import Federation, by_lists
from fedloom.models import build

CLIENTS, COHORT, WIDTH = 1000, 50, 1100
FIRST, AGAIN = CLIENTS // COHORT, 4  # rounds until everybody has a state, and rounds that read them again


def network() -> nn.Module:
    """2.3 million parameters, 9.1 MB."""
    return nn.Sequential(nn.Linear(1000, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def measure(budget_mib: float | None) -> None:
    """One run in this process; prints its numbers as JSON."""
    y = torch.arange(4 * CLIENTS) % 4
    x = torch.randn(len(y), 1000, generator=torch.Generator().manual_seed(0)) + y[:, None]
    train = fl.Examples(x, y, 4)
    partition = by_lists([list(range(4 * k, 4 * k + 4)) for k in range(CLIENTS)])
    federation = fl.federate(train, partition, test_fraction=0.0)
    cohorts = [tuple(range(COHORT * t, COHORT * (t + 1))) for t in range(FIRST)]
    cohorts += [tuple(int(k) for k in np.random.RandomState(t).permutation(CLIENTS)[:COHORT]) for t in range(AGAIN)]
    settings = fl.RunSettings(
        rounds=FIRST + AGAIN, cohort_size=COHORT, engine="loop", threads=1, state_memory_mib=budget_mib
    )
    local = fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.01))
    measured(fl.PFedSD(local=local), federation, network, settings, cohorts, slice(FIRST))


def measured(
    algorithm: fl.Algorithm, federation: Federation, model: Callable[[], nn.Module], settings: fl.RunSettings,
    cohorts: Sequence[tuple[int, ...]], first: slice,
) -> None:  # fmt: skip
    """Print as JSON what a run takes: MiB before and at most, median seconds of its `first` rounds and later ones."""
    seconds: list[float] = []

    def note(history: History) -> None:
        seconds.append(sum(history.timing[-1]["seconds"].values()))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        fl.run(
            algorithm, federation, model, settings, sampler=FixedList(tuple(cohorts)),
            directory=folder if settings.state_memory_mib is not None else None, on_round=note,
        )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"first": np.median(seconds[first]), "again": np.median(seconds[first.stop :])}
    print(json.dumps({"before": before, "peak": peak, **found}))


FOMO_COHORT, FOMO_WIDTH, GUARD = 20, 300, 12 << 30  # GUARD: bytes of address space, beyond which a process dies


def small_network() -> nn.Module:
    """391,804 parameters, 1.57 MB: with its base and the server's row, a client is 4.7 MB."""
    first, last = nn.Linear(1000, FOMO_WIDTH), nn.Linear(FOMO_WIDTH, 4)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(FOMO_WIDTH, FOMO_WIDTH), nn.ReLU(), last)


def measure_fedfomo(engine: Literal["loop", "stacked"], budget_mib: float | None) -> None:
    """FedFomo with M = 5 until all clients have been asked once, and some rounds more; prints its numbers as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (GUARD, GUARD))
    y = torch.arange(6 * CLIENTS) % 4
    x = torch.randn(len(y), 1000, generator=torch.Generator().manual_seed(0)) + y[:, None]
    rows = [list(range(6 * k, 6 * k + 6)) for k in range(CLIENTS)]
    train, val = (by_lists([r[part] for r in rows]) for part in (slice(4), slice(4, 6)))
    first = CLIENTS // FOMO_COHORT
    cohorts = [tuple(range(FOMO_COHORT * t, FOMO_COHORT * (t + 1))) for t in range(first)]
    cohorts += [
        tuple(int(k) for k in np.random.RandomState(t).permutation(CLIENTS)[:FOMO_COHORT]) for t in range(2 * AGAIN)
    ]
    settings = fl.RunSettings(
        rounds=len(cohorts), cohort_size=FOMO_COHORT, panel=FOMO_COHORT, engine=engine, compilation="none", threads=1,
        state_memory_mib=budget_mib,
    )  # fmt: skip
    algorithm = fl.FedFomo(M=5, local=fl.Local(epochs=1, batch_size=4, optimiser=fl.SGD(lr=0.01)))
    federation = Federation(fl.Examples(x, y, 4), train, local_val=val)
    measured(algorithm, federation, small_network, settings, cohorts, slice(1, first))


def measure_apfl(budget_mib: float) -> None:
    """APFL's network on grey images of 32 x 32 until all clients have been asked once, and some rounds more."""
    y = torch.arange(10 * CLIENTS) % 10
    train = fl.Examples(torch.randn(len(y), 1, 32, 32, generator=torch.Generator().manual_seed(0)), y, 10)
    federation = Federation(train, by_lists([list(range(10 * k, 10 * k + 10)) for k in range(CLIENTS)]))
    cohorts = [tuple(range(COHORT * t, COHORT * (t + 1))) for t in range(FIRST)]
    cohorts += [tuple(int(k) for k in np.random.RandomState(t).permutation(CLIENTS)[:COHORT]) for t in range(AGAIN)]
    settings = fl.RunSettings(
        rounds=FIRST + AGAIN, cohort_size=COHORT, engine="loop", threads=1, state_memory_mib=budget_mib
    )
    # importance from round 0 on, own weights from round 1 on: from then everybody keeps both
    algorithm = fl.APFLNi(z=0, forced_rounds=(0,), local=fl.Local(epochs=1, batch_size=10, optimiser=fl.SGD(lr=0.01)))
    measured(algorithm, federation, lambda: build("apfl_cnn", (1, 32, 32), 10), settings, cohorts, slice(1, FIRST))


def own_process(*arguments: str, script: str = __file__) -> dict[str, float]:
    """The numbers that a script, this one, prints with some arguments."""
    out = subprocess.run([sys.executable, script, *arguments], check=True, capture_output=True, text=True)
    return dict(json.loads(out.stdout))


def fedfomo_table() -> None:
    print(f"FedFomo, M = 5, {CLIENTS} clients x 4.7 MB, cohort {FOMO_COHORT}\n")
    print(
        "engine    states in memory   peak RSS   before the run   s a round, first contact   s a round, known clients"
    )
    for engine, budget in (("loop", "none"), ("loop", "2048"), ("stacked", "2048")):
        r = own_process("--fedfomo", engine, "--one", budget)
        label = "all" if budget == "none" else f"{budget} MiB"
        print(
            f"{engine:8}  {label:16}   {r['peak']:5.0f} MiB   {r['before']:10.0f} MiB   {r['first']:24.2f}   "
            f"{r['again']:24.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["pfedsd", "fedfomo", "apfl"], help="one of the tables")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--fedfomo", choices=["loop", "stacked"], help=argparse.SUPPRESS)
    parser.add_argument("--apfl", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.apfl:
        measure_apfl(float(given.one))
    elif given.one is not None:
        budget = None if given.one == "none" else float(given.one)
        measure_fedfomo(given.fedfomo, budget) if given.fedfomo else measure(budget)
    else:
        for name, table in (("pfedsd", pfedsd_table), ("fedfomo", fedfomo_table), ("apfl", apfl_table)):
            if given.only in (None, name):
                table()


def apfl_table() -> None:
    print(f"\nAPFL (Ni), {CLIENTS} clients x 8.3 MB, cohort {COHORT}\n")
    print("states in memory   peak RSS   before the run   s a round, first contact   s a round, known clients")
    r = own_process("--apfl", "--one", "2048")
    print(
        f"2048 MiB           {r['peak']:5.0f} MiB   {r['before']:10.0f} MiB   {r['first']:24.2f}   {r['again']:24.2f}"
    )


def pfedsd_table() -> None:
    print(f"{CLIENTS} clients x 9.1 MB, cohort {COHORT}\n")
    print("states in memory   peak RSS   before the run   s a round, first contact   s a round, known clients")
    for budget in ("none", "1024"):
        r = own_process("--one", budget)
        label = "all" if budget == "none" else f"{budget} MiB"
        print(
            f"{label:16}   {r['peak']:5.0f} MiB   {r['before']:10.0f} MiB   {r['first']:24.2f}   {r['again']:24.2f}",
            flush=True,
        )
    print()


if __name__ == "__main__":
    main()
