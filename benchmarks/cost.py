"""What each algorithm costs relative to FedAvg: seconds of training, peak memory, bytes down and up.

    python benchmarks/cost.py              # prints a table; about ten minutes
    python benchmarks/cost.py --repeat 1   # a first look

FedNTD's network on random images of CIFAR-10's shape, two clients of 200 images, five epochs of batches of 50, loop
engine, one thread. FedAlign needs another network: it stands beside FedAvg on that. Every algorithm runs in a process
of its own; all of them in turn, several times, and the median of the ratios to FedAvg of the same turn counts. The
first two rounds are not timed: everybody is asked every round, so all state exists after them.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from typing import Any

import numpy as np

import fedloom as fl
from fedloom.experiments.experiment import Experiment

CLIENTS, IMAGES, WARM, TIMED = 2, 200, 2, 3
NAMES = (
    "fedavg", "fedavgm", "fedprox", "fednova", "scaffold", "feddyn", "fedcurv", "moon", "fedntd", "kd_ntd",
    "fedntd_mse", "feddf", "fedbe", "pfedsd",
)  # fmt: skip
EXPECTED = {  # bytes (down, up) in models, as FedNTD's specification counts them
    "fedcurv": (3, 3), "scaffold": (2, 2),
}  # fmt: skip
PUBLIC = {"feddf": {"steps": 20}, "fedbe": {"steps": 20, "swa_start": 5, "swa_every": 5}}


def measure(name: str, model: str) -> dict[str, float]:
    """Seconds of training a round, peak MiB, bytes down and up a round."""
    rng = np.random.default_rng(0)
    n, images = CLIENTS * (IMAGES if model == "fedntd_cnn" else 64), rng.integers(0, 256, (1000, 3, 32, 32), np.uint8)
    train = fl.from_arrays(images[:n], rng.integers(0, 10, n), num_classes=10)
    public = fl.from_arrays(images[-128:], rng.integers(0, 10, 128), num_classes=10) if name in PUBLIC else None
    federation = fl.federate(train, fl.iid(train.y, CLIENTS, 0), test_fraction=0.0, public=public)
    settings: dict[str, Any] = {
        "algorithm": name, "model": model, name: PUBLIC.get(name, {}),
        "local": {"epochs": 5 if model == "fedntd_cnn" else 1},
        "run": {"rounds": WARM + TIMED, "cohort_size": CLIENTS, "engine": "loop", "threads": 1},
        "data": {"public": 128 if public else 0},
    }  # fmt: skip
    history = Experiment.of(settings).job(federation).run()
    last = history.metrics[-1]
    return {
        "seconds": statistics.median(t["seconds"]["train"] for t in history.timing[-TIMED:]),
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "down": last["bytes_down"],
        "up": last["bytes_up"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    cases = [(name, "fedntd_cnn") for name in NAMES] + [("fedavg", "resnet56"), ("fedalign", "resnet56")]
    found: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(args.repeat):
        for case in cases:
            command = [sys.executable, __file__, "--one", *case]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[case].append(json.loads(out.splitlines()[-1]))
    print(f"{'algorithm':12} {'network':11} {'time':>6} {'memory MiB':>11} {'down':>6} {'up':>6}   expected bytes")
    for (name, model), runs in found.items():
        base = found["fedavg", model]
        ratio = {
            key: statistics.median(r[key] / b[key] for r, b in zip(runs, base, strict=True))
            for key in ("seconds", "down", "up")
        }
        extra = statistics.median(r["mib"] - b["mib"] for r, b in zip(runs, base, strict=True))
        down, up = EXPECTED.get(name, (1, 1))
        print(
            f"{name:12} {model:11} {ratio['seconds']:6.2f} {extra:+11.0f} {ratio['down']:6.2f} {ratio['up']:6.2f}"
            f"   {down}, {up}"
        )
    print(f"\nFedAvg: {found['fedavg', 'fedntd_cnn'][0]['mib']:.0f} MiB in all, a model is 8.6 MB")


if __name__ == "__main__":
    main()
