"""1,000 clients that keep 9 MB each: what a memory budget costs. One process each, peak memory and seconds a round.

python benchmarks/states.py            # both, about two minutes and 9 GB of disk; prints a table
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.coordinator import History
from fedloom.coordinator.sampler import FixedList
from fedloom.data import by_lists

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
    seconds: list[float] = []

    def note(history: History) -> None:
        seconds.append(sum(history.timing[-1]["seconds"].values()))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        fl.run(
            fl.PFedSD(local=local), federation, network, settings, sampler=FixedList(tuple(cohorts)),
            directory=folder if budget_mib is not None else None, on_round=note,
        )  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    first, again = np.median(seconds[:FIRST]), np.median(seconds[FIRST:])
    print(json.dumps({"before": before, "peak": peak, "first": first, "again": again}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    one = parser.parse_args().one
    if one is not None:
        measure(None if one == "none" else float(one))
        return
    print(f"{CLIENTS} clients x 9.1 MB, cohort {COHORT}\n")
    print("states in memory   peak RSS   before the run   s a round, first contact   s a round, known clients")
    for budget in ("none", "1024"):
        out = subprocess.run([sys.executable, __file__, "--one", budget], check=True, capture_output=True, text=True)
        r = json.loads(out.stdout)
        label = "all" if budget == "none" else f"{budget} MiB"
        print(
            f"{label:16}   {r['peak']:5.0f} MiB   {r['before']:10.0f} MiB   {r['first']:24.2f}   {r['again']:24.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
