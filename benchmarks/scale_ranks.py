"""What many registered clients cost over ranks: memory of each rank, and bytes of a round, beside what formulas say.

    torchrun --master-port=29500 --nproc-per-node=3 benchmarks/scale_ranks.py --clients 100000

Rank 0 is the server, two ranks compute, one thread each. FedAvg of an MLP on 2 to 20 examples a client, each of 64
bytes. Nobody is evaluated. Formulas, with N clients, n examples of F bytes, a cohort of C, a model of M bytes, R ranks
that compute (docs/ranks.md):

    memory of a rank    n (F + 8) + 8 n + 24 N          examples with labels; rows of the partition; its ends, sizes and
                                                        the name of each client's network
      rank 0 besides    up to C M                       uploads that wait for an earlier client
    bytes down          R (M + b) + C q                 the model once a rank, then a request for each client
    bytes up            C (M + a)

The words around tensors, b, q and a, are measured in a first run with fewer clients, and taken for the second.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.data import Partition
from fedloom.ranks.launched import communication

FEATURES, CLASSES, LEAST, MOST = 64, 10, 2, 20


def mib(bytes_: float) -> float:
    return bytes_ / 2**20


def rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


class Counted:
    """Bytes and number of the messages that rank 0 takes, and of those that it posts with the model and without."""

    def __init__(self, weights: int) -> None:
        self.weights, self.seen = weights, dict.fromkeys(("down", "up", "bare", "requests", "models"), 0)
        wires = communication("gloo")
        self._post, self._take = wires.post, wires.take
        wires.post, wires.take = self.post, self.take  # type: ignore[method-assign]

    def post(self, rank: int, message: bytes) -> None:
        has_model = len(message) >= self.weights
        self._count(down=len(message), bare=0 if has_model else len(message), requests=1, models=has_model)
        self._post(rank, message)

    def take(self, rank: int) -> memoryview:
        message = self._take(rank)
        self._count(up=len(message))
        return message

    def _count(self, **more: int) -> None:
        for name, count in more.items():
            self.seen[name] += count

    def reset(self) -> dict[str, int]:
        found, self.seen = self.seen, dict.fromkeys(self.seen, 0)
        return found


def measure(clients: int, cohort: int, hidden: int, rounds: int, counted: Counted | None) -> dict[str, float]:
    """Bytes above those before the data, and bytes of a round at rank 0."""
    before, rng = rss(), np.random.default_rng(0)
    sizes = rng.integers(LEAST, MOST + 1, clients)
    total = int(sizes.sum())
    federation = fl.federate(
        fl.from_arrays(
            rng.integers(0, 256, (total, FEATURES), dtype=np.uint8), rng.integers(0, CLASSES, total),
            num_classes=CLASSES,
        ),
        Partition(np.concatenate([[0], np.cumsum(sizes)]), rng.permutation(total), "ragged", 0),
    )  # fmt: skip
    model: Callable[[], nn.Module] = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )
    settings = fl.RunSettings(rounds=rounds, cohort_size=cohort, engine="gloo", eval_every=rounds, threads=1)
    algorithm = fl.FedAvg(local=fl.Local(epochs=1, batch_size=10, optimiser=fl.SGD(lr=0.1)))
    seen: list[dict[str, int]] = []

    def on_round(history: fl.History) -> None:
        if counted is not None:
            seen.append(counted.reset())

    history = fl.run(algorithm, federation, model, settings, on_round=on_round)
    found: dict[str, float] = {"examples": total, "memory": rss() - before}
    if counted is not None:
        found |= {name: statistics.median(one[name] for one in seen[1:]) for name in seen[0]}  # 0 is before training
        found["seconds"] = statistics.median(record["seconds"]["train"] for record in history.timing[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, ranks = communication("gloo").rank, communication("gloo").size - 1
    weights = 4 * (FEATURES * args.hidden + args.hidden + args.hidden * CLASSES + CLASSES)
    counted = None if rank else Counted(weights)
    small: dict[str, Any] = measure(1000, 50, args.hidden, args.rounds, counted)
    large: dict[str, Any] = measure(args.clients, args.cohort, args.hidden, args.rounds, counted)
    data = large["examples"] * (FEATURES + 16) + 24 * args.clients
    peak = mib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    lines = [
        f"rank {rank}: {mib(data):7.1f} MiB by formula, {mib(large['memory']):7.1f} measured"
        + f" (and up to {mib(args.cohort * weights):.1f} of uploads that wait)" * (not rank)
        + f"; {peak:.0f} at most with all else"
    ]
    if counted is not None:
        q = small["bare"] / (small["requests"] - small["models"])
        b = (small["down"] - small["bare"]) / small["models"] - q - weights
        a = small["up"] / small["requests"] - weights
        down, up = ranks * (weights + b) + args.cohort * q, args.cohort * (weights + a)
        for name, formula in (("down", down), ("up", up)):
            lines.append(f"bytes {name} of a round: {formula:12,.0f} by formula, {large[name]:12,.0f} measured")
        lines.append(f"words: {q:.0f} bytes a request, {b:.0f} a model, {a:.0f} an answer; tensors {weights:,} bytes")
        lines.append(f"a round: {large['seconds']:.2f} s of {args.cohort} clients; torch {torch.__version__}")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
