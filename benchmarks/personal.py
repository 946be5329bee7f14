"""What personal models cost: pFedSD beside FedAvg (the paper: one teacher pass and one stored model more), and what it
costs to log every client's numbers (`per_client`). Whole runs with default settings, in turn A B A B, one process each.

python benchmarks/personal.py                 # some minutes on two quiet cores; prints three tables
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics

import torch
from states import own_process

import fedloom as fl
from fedloom.models import build

ROUNDS, PAIRS = 3, 3
CASES = {  # clients, examples of each, cohort, network
    "20 clients, LeNet": (20, 600, 12, "lenet"),
    "1,000 clients, LeNet": (1000, 60, 10, "lenet"),
}


def measure(case: str, algorithm: str, per_client: bool) -> None:
    """One run in this process; prints its numbers as JSON: median seconds and bytes of a round, peak MiB."""
    clients, each, cohort, network = CASES[case]
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(clients * each) % 10
    train = fl.Examples(torch.randn(len(y), 3, 32, 32, generator=rng), y, 10)
    federation = fl.federate(train, fl.data.dirichlet(train.y, clients, 0.5, seed=0, min_size=10), test_fraction=0.2)
    local = fl.Local(epochs=5, batch_size=64, optimiser=fl.SGD(lr=0.01, momentum=0.9, weight_decay=1e-5))
    settings = fl.RunSettings(rounds=ROUNDS, cohort_size=cohort, per_client=per_client)
    made = fl.PFedSD(local=local) if algorithm == "pfedsd" else fl.FedAvg(local=local, aggregation="uniform")
    history = fl.run(made, federation, lambda: build(network, (3, 32, 32), 10), settings)
    later = history.timing[2:]  # the first round forks, traces and meets every client for the first time
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    found = {
        "train": statistics.median(t["seconds"]["train"] for t in later),
        "judge": statistics.median(t["seconds"]["evaluate"] for t in later),
        "peak": peak,
        "down": history.metrics[-1]["bytes_down"],
        "up": history.metrics[-1]["bytes_up"],
    }
    print(json.dumps(found))


def beside(case: str, a: tuple[str, bool], b: tuple[str, bool]) -> None:
    """Print A beside B: each pair of runs gives a ratio of rounds, the median of which is printed."""
    runs: dict[tuple[str, bool], list[dict[str, float]]] = {a: [], b: []}
    for _ in range(PAIRS):
        for of, found in runs.items():
            found.append(own_process("--case", case, "--one", of[0], *["--per-client"] * of[1], script=__file__))
    middle = {of: {n: statistics.median(r[n] for r in found) for n in found[0]} for of, found in runs.items()}
    ratio = statistics.median(
        (x["train"] + x["judge"]) / (y["train"] + y["judge"]) for x, y in zip(runs[a], runs[b], strict=True)
    )
    print(f"\n{case}: {ratio:.3f} times the seconds of a round")
    print("                        train s    eval s   peak MiB   MB down   MB up")
    for (algorithm, per_client), m in middle.items():
        label = algorithm + ", per_client" * per_client
        print(
            f"{label:22} {m['train']:8.2f}  {m['judge']:8.2f}  {m['peak']:9.0f}  {m['down'] / 1e6:8.3f}  "
            f"{m['up'] / 1e6:6.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=["pfedsd", "fedavg"], help=argparse.SUPPRESS)
    parser.add_argument("--per-client", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        return measure(given.case, given.one, given.per_client)
    beside("20 clients, LeNet", ("pfedsd", False), ("fedavg", False))
    for case in CASES:
        beside(case, ("pfedsd", True), ("pfedsd", False))
    return None


if __name__ == "__main__":
    main()
