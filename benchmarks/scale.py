"""What a million registered clients cost: time of a round against a thousand clients, and memory above the data.

Logistic regression on 2 to 20 examples a client, cohorts of 50. Every case runs in a process of its own, which reports
the median time of a round, the time that it took to get there, and its peak memory less what it held when the arrays of
examples were made. Of a million clients nearly all are new when asked, and a new client's state is made; of a thousand,
all are known after a while. So the thousand are measured twice: as they are, and forgetting all clients every round.
Personal models are evaluated at the end only: what a panel of 1,000 costs does not depend on the number of clients.
`--repeat` runs all cases several times in turn; the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.data import Partition

FEATURES, CLASSES, COHORT, SMALL = 16, 10, 50, 1000
TARGET_RATIO, TARGET_MIB = 1.2, 1024


def measure(clients: int, engine: Any, rounds: int, epochs: int, forget: bool) -> dict[str, float]:
    """Seconds of a round and of what comes before, and MiB above the data."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 21, clients)
    x = rng.integers(0, 256, (int(sizes.sum()), FEATURES), dtype=np.uint8)
    y = rng.integers(0, CLASSES, len(x))
    found = {"data": _rss_mib()}

    def timed(name: str, step: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = step()
        found[name] = time.perf_counter() - start
        return made

    rows, starts = rng.permutation(len(x)), np.concatenate([[0], np.cumsum(sizes)])
    partition = timed("partition", lambda: Partition(starts, rows, "ragged", 0))
    train, test = (fl.from_arrays(x[:n], y[:n], num_classes=CLASSES) for n in (len(x), 1000))
    federation = timed("federate", lambda: fl.federate(train, partition, test=test, test_fraction=0.2))
    settings = fl.RunSettings(rounds=rounds, cohort_size=COHORT, engine=engine, eval_every=rounds, threads=1)
    algorithm = fl.FedAvg(local=fl.Local(epochs=epochs, batch_size=10, optimiser=fl.SGD(lr=0.1)))
    model, marks = lambda: nn.Linear(FEATURES, CLASSES), [time.perf_counter()]

    def on_round(history: fl.History) -> None:
        if forget:
            history.clients.clear()
        marks.append(time.perf_counter())

    history = fl.run(algorithm, federation, model, settings, on_round=on_round)
    timing = [record["seconds"] for record in history.timing[1:-1]]  # the last round evaluates personal models
    found |= {phase: statistics.median(t[phase] for t in timing) for phase in ("sample", "train", "evaluate")}
    found["round"] = statistics.median(sum(t.values()) for t in timing)
    found["start"] = marks[1] - marks[0] - statistics.median(b - a for a, b in itertools.pairwise(marks[1:]))
    found["above"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - found["data"]
    return found


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=fl.Local().epochs)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(**args.measure)))
        return

    def alone(clients: int, engine: str, forget: bool) -> dict[str, float]:
        case = {"clients": clients, "engine": engine, "rounds": args.rounds, "epochs": args.epochs, "forget": forget}
        command = [sys.executable, __file__, "--measure", json.dumps(case)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    cases = {f"{SMALL}": (SMALL, False), f"{SMALL}, all new": (SMALL, True), f"{args.clients}": (args.clients, False)}
    known, new, large = cases
    print(f"torch {torch.__version__}, one thread; cohort {COHORT}, {args.epochs} epochs in batches of 10")
    print(f"{'':24s}{'median ms of a round (sample + train + evaluate)':>50s}  seconds to partition, federate, start")
    for engine in ("loop", "stacked"):
        seen = [{name: alone(n, engine, forget) for name, (n, forget) in cases.items()} for _ in range(args.repeat)]
        for name in cases:
            m = {key: statistics.median(s[name][key] for s in seen) for key in seen[0][name]}
            phases = " + ".join(f"{1000 * m[phase]:.2f}" for phase in ("sample", "train", "evaluate"))
            before = ", ".join(f"{m[step]:.1f}" for step in ("partition", "federate", "start"))
            print(f"{engine:8s}{name:16s}{1000 * m['round']:20.2f}  ({phases:26s})  {before}")
        for other in (known, new):
            ratio = statistics.median(s[large]["round"] / s[other]["round"] for s in seen)
            verdict = "ok" if ratio <= TARGET_RATIO else "MISSED"
            print(f"{engine:8s}{large} / {other:16s} {ratio:.3f}   target <= {TARGET_RATIO}   {verdict}")
        above = max(s[large]["above"] for s in seen)
        verdict = "ok" if above <= TARGET_MIB else "MISSED"
        print(
            f"{engine:8s}{above:.0f} MiB above {seen[0][large]['data']:.0f} with PyTorch and the data   "
            f"target <= {TARGET_MIB}   {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
