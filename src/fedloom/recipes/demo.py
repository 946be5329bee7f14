"""The demonstration: four algorithms on 100 clients that hold two shards each of Fashion-MNIST's embedded subset.

Expected ranges are the least and largest values that seeds 0 to 4 gave with this code (docs/results/demo.md), widened
by 0.03 on either side for other processors and versions of PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.coordinator import RunSettings
from fedloom.core.optimiser import SGD, Local

CLIENTS = 100
PARTITION = "shards:2"
PARTITION_SEED = 0  # as the FedNTD authors: every repetition shares one partition
MODEL = "lenet"
ALGORITHMS = ("fedavg", "scaffold", "fedntd", "pfedsd")
LOCAL = Local(epochs=5, batch_size=20, optimiser=SGD(lr=0.01, momentum=0.9, weight_decay=1e-5), decay=0.99)


def settings(seed: int) -> RunSettings:
    """30 rounds of 10 clients, personal models judged every 5 rounds."""
    return RunSettings(rounds=30, cohort_size=10, seed=seed, eval_every=5)


@dataclass(frozen=True)
class Expected:
    """The range over seeds of a metric, averaged over the last `rounds` evaluations."""

    algorithm: str
    metric: str
    low: float
    high: float
    rounds: int = 10  # one round alone swings with the classes that its cohort happens to hold


EXPECTED: tuple[Expected, ...] = ()
