"""Your own arrays, network and loss; a run that is interrupted, continued, looked into and exported. Takes seconds.

python own.py [FOLDER]     FOLDER: where the run goes (default: a temporary one)
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl


def arrays() -> tuple[fl.Examples, fl.Examples]:
    """Ten clouds in 20 dimensions: 3,000 examples to train on and 600 to test with."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=3600)
    x = (rng.normal(size=(10, 20))[y] + 1.5 * rng.normal(size=(3600, 20))).astype(np.float32)
    return fl.from_arrays(x[:3000], y[:3000]), fl.from_arrays(x[3000:], y[3000:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy with smoothed labels. `batch.mean` leaves out rows of padding."""

    smoothing: float = 0.1

    def loss(self, logits: Tensor, batch: fl.Batch) -> Tensor:
        return batch.mean(F.cross_entropy(logits, batch.y, reduction="none", label_smoothing=self.smoothing))

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        return logits.argmax(-1) == y


def job(rounds: int) -> fl.Job:
    """Everything that determines a run."""
    train, test = arrays()
    federation = fl.federate(train, fl.shards(train.y, 30, shards_per_client=2, seed=0), test=test, test_fraction=0.2)
    local = fl.Local(epochs=3, batch_size=20, optimiser=fl.SGD(lr=0.05))
    settings = fl.RunSettings(rounds=rounds, cohort_size=10, seed=0, threads=1)
    return fl.Job(
        algorithm=fl.PFedSD(lam=0.5, local=local),
        federation=federation,
        model=network,
        settings=settings,
        task=Smoothed(),
    )


def main(folder: str) -> None:
    job(rounds=5).run(folder)  # stands for a run that was killed after five rounds
    history = job(rounds=10).run(folder, resume=True)
    print(f"global {history.last('global_accuracy'):.3f}, personal {history.last('personal_accuracy'):.3f}")
    assert history.metrics == job(rounds=10).run().metrics  # the same numbers as without the interruption

    past = job(rounds=10).replay(folder, 7)
    start = past.before["Sequential"]  # what the server held before, by architecture
    for client, weights in past.trained().items():
        moved = (weights.params - start.params).sq_norm().sqrt()
        print(f"round 7, client {client:2d}: its model moved by {moved:.3f}")

    restored = job(rounds=10).restore(folder)  # from the newest checkpoint
    print(fl.export(fl.Model(network), restored.personal_weights(client=3), f"{folder}/client-3.pt", overwrite=True))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
