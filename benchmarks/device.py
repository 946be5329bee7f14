"""The engines on one device: client-steps a second, beside a plain loop over clients on the same device.

    python benchmarks/device.py --device cuda                # the table, minutes
    python benchmarks/device.py --device cuda --rounds 200   # and a whole run of FedNTD, 100 clients, 10 a round
    python benchmarks/device.py --device cpu --clients 2 --quick

FedNTD's CNN on random images of CIFAR-10's shape, 500 a client, batches of 50, two epochs a round. The plain loop is
what a careful person writes: images and labels resident on the device, channels_last on a CPU, fused SGD, one client
after the other. Each engine is timed in turn with it, A B A B ..., and the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import fedloom as fl
from fedloom.core.algorithm import Algorithm
from fedloom.data import Normalise, iid
from fedloom.engines.engine_options import Options
from fedloom.engines.loop import Loop
from fedloom.engines.population import Population
from fedloom.engines.stacked import Stacked
from fedloom.models import build

SIZE, BATCH, EPOCHS = 500, 50, 2
LOCAL = fl.Local(epochs=EPOCHS, batch_size=BATCH)
ENGINES: dict[str, tuple[Any, dict[str, Any]]] = {
    "loop": (Loop, {}),
    "loop, bf16": (Loop, {"bf16": True}),
    "stacked": (Stacked, {}),
    "stacked, bf16": (Stacked, {"bf16": True}),
    "stacked, traced": (Stacked, {"compilation": "trace"}),
    "stacked, compiled": (Stacked, {"compilation": "compile"}),
}


def network() -> torch.nn.Module:
    return build("fedntd_cnn", (3, 32, 32), 10)


def images(count: int) -> fl.Examples:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return fl.from_arrays(x, rng.integers(0, 10, count), num_classes=10, normalise=Normalise(scale=1 / 255))


def plain(examples: fl.Examples, clients: int, device: torch.device) -> Callable[[], None]:
    """FedAvg's local training, client after client."""
    memory = torch.channels_last if device.type == "cpu" else torch.contiguous_format
    x = examples.normalise(examples.x.to(device), torch.float32).contiguous(memory_format=memory)
    y = examples.y.to(device)

    def train() -> None:
        for k in range(clients):
            module = network().to(device, memory_format=memory)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5, fused=True)
            for _ in range(EPOCHS):
                for rows in (SIZE * k + torch.randperm(SIZE, device=device)).split(BATCH):
                    optimiser.zero_grad()
                    F.cross_entropy(module(x[rows]), y[rows]).backward()
                    optimiser.step()

    return train


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, until the device has finished."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def table(algorithm: Algorithm[Any, Any], clients: int, device: torch.device, repeat: int) -> None:
    examples = images(SIZE * clients)
    federation = fl.Federation(train=examples, partition=iid(examples.y, clients, 0))
    population = Population(federation=federation, models={"cnn": fl.Model(network)}, device=device)
    by_hand, steps = plain(examples, clients, device), clients * EPOCHS * SIZE // BATCH
    seconds(by_hand, device)
    for name, (kind, settings) in ENGINES.items():
        run = kind(population, algorithm, Options(**settings))
        server = run.init()
        first = seconds(lambda run=run, server=server: run.round(server, range(clients), 0), device)
        seen = [
            (seconds(by_hand, device), seconds(lambda run=run, s=server: run.round(s, range(clients), 1), device))
            for _ in range(repeat)
        ]
        ours, ratio = statistics.median(b for _, b in seen), statistics.median(a / b for a, b in seen)
        print(
            f"{type(algorithm).__name__:7s} {clients:4d} clients  {name:18s} {steps / ours:10,.0f} client-steps/s   "
            f"{ratio:6.2f} x the plain loop of FedAvg   first round {first:.1f} s",
            flush=True,
        )


def whole_run(rounds: int, device: torch.device) -> None:
    """FedNTD as in FedNTD's study (E = 5, 10 of 100 clients, shards of two), tested on 10,000 images every round."""
    train = images(50_000)
    federation = fl.federate(train, fl.shards(train.y, 100, 2, 0), test=images(10_000), test_fraction=0.0)
    settings = fl.RunSettings(rounds=rounds, cohort_size=10, device=str(device))
    started = seconds(lambda: fl.run(fl.FedNTD(), federation, network, settings), device)
    print(f"FedNTD, {rounds} rounds of 10 of 100 clients, five epochs: {started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--clients", default="10,100", help="stacked at a time, with commas")
    parser.add_argument("--rounds", type=int, default=0, help="of a whole run of FedNTD")
    parser.add_argument("--quick", action="store_true", help="one repetition instead of five")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {name}")
    for clients in map(int, args.clients.split(",")):
        for algorithm in (fl.FedAvg(local=LOCAL), fl.FedNTD(local=LOCAL)):
            table(algorithm, clients, device, 1 if args.quick else 5)
    if args.rounds:
        whole_run(args.rounds, device)


if __name__ == "__main__":
    main()
