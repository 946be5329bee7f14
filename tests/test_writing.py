"""Networks and tasks that write on all that they are given: their runs are those of their pure twins, bit for bit.

In PyTorch `x.mul_(0.5)` as the first line of a forward is harmless, since a DataLoader makes each batch anew.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedloom as fl
from fedloom import (
    DENSE,
    Adam,
    Classification,
    Examples,
    FedAvg,
    FedDF,
    Federation,
    FedMD,
    FedNTD,
    History,
    KTpFL,
    LocalOnly,
    Model,
    PFedSD,
    RunSettings,
    Weights,
    export,
)
from fedloom.analysis import class_activations, features, gradient, hessian_product, logits
from fedloom.coordinator import Job, verify
from fedloom.coordinator.past import Past
from fedloom.core import tree
from fedloom.core.batches import Batch
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import Digest, Distill
from fedloom.core.plausible import check_plausible
from fedloom.core.task import check_padding, loss_of, right_of
from fedloom.engines.loop import Loop
from fedloom.engines.stacked import Stacked
from fedloom.evaluate import classify, rate_right
from fedloom.testing import Subject
from fedloom.testing.subject import CLASSES, FEATURES
from small import Painter
from test_battery import ALGORITHMS
from tiny import LOCAL, examples, federation

pytestmark = pytest.mark.filterwarnings("ignore:.* weighs a distance to the running statistics")


class Net(nn.Module):
    """Half of the input through two layers; one that `writes` leaves nothing of its input and counts its passes."""

    def __init__(self, writes: bool, inputs: int = FEATURES, width: int = 8) -> None:
        super().__init__()
        self.writes = writes
        self.hidden, self.head = nn.Linear(inputs, width), nn.Linear(width, CLASSES)
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("seen", torch.zeros(()))

    def taken(self, x: Tensor) -> Tensor:
        half = x * 0.5
        if self.writes:
            x.fill_(9.0)
        if self.writes and not self.training:
            self.seen.add_(1)  # evaluation must leave no trace either
        return half

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.hidden(self.taken(x))))

    def stages(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = self.taken(x)
        z = torch.tanh(self.norm(self.hidden(half)))
        return half, z, self.head(z)

    def slim(self, before: Tensor, width: float) -> tuple[Tensor, Tensor]:
        x, n = before[:, : int(width * FEATURES)], int(width * len(self.hidden.bias))
        return x, torch.tanh(F.linear(x, self.hidden.weight[:n, : x.shape[1]], self.hidden.bias[:n]))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Judge(Classification):
    """Cross-entropy of which a part depends on the inputs; one that `writes` leaves nothing of what it is given."""

    writes: bool

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        each = F.cross_entropy(logits + 0.0, batch.y + 0, reduction="none") + 0.1 * batch.x.flatten(1).mean(1)
        value = batch.mean(each * (1.0 + 0.1 * batch.x.flatten(1).amax(1)))
        if self.writes:
            for given in (logits, batch.x, batch.y, batch.key):
                given.fill_(1)
        return value

    def correct(self, logits: Tensor, y: Tensor) -> Tensor:
        right = logits.argmax(-1) == y
        if self.writes:
            logits.fill_(1.0), y.fill_(1)
        return right


class Writer(Painter):
    """A generator that leaves nothing of the noise it is given."""

    def forward(self, z: Tensor) -> Tensor:
        made = super().forward(z * 1.0)
        z.fill_(9.0)
        return made


def twin(writes: bool, **settings: Any) -> Model:
    return Model(lambda: Net(writes, **settings), name="net")


def stored(f: Federation) -> list[Tensor]:
    """All that belongs to the data."""
    return [t for e in (f.train, f.test, f.public) if e is not None for t in (e.x, e.y)]


class Untouched:
    """While it is open, nothing that is stored changes."""

    def __init__(self, *kept: Any) -> None:
        self.kept = kept
        self.before = copy.deepcopy(kept)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            assert same(self.kept, self.before)


def same(a: Any, b: Any) -> bool:
    """Whether two trees of tensors are the same, bit for bit."""
    (mine, spec), (theirs, other) = tree.flatten(a), tree.flatten(b)
    return spec == other and all(
        torch.equal(u.nan_to_num(), v.nan_to_num()) if isinstance(u, Tensor) else u == v
        for u, v in zip(mine, theirs, strict=True)
    )


# --- each algorithm, on clients

FAST = {"fedntd", "pfedsd_soft_predictions", "moon", "fedalign", "per_fedavg_hf", "fedcurv", "apfl_ni", "kt_pfl"}
FAST |= {"fedmd", "feddf_validated", "dense", "fed_dafl"}


def ended(name: str, kind: Any, writes: bool, **how: Any) -> tuple[Any, ...]:
    """What a battery's run of twins leaves behind."""
    algorithm = ALGORITHMS[name]
    if writes and hasattr(algorithm, "generator"):
        algorithm = dataclasses.replace(algorithm, generator=f"{__name__}:Writer")
    subject = Subject.of(algorithm, {"net": twin(writes)})
    population = subject.population(task=Judge(writes))
    with Untouched(*stored(population.federation)):
        trail = subject.run(kind, population, judged=True, **how)
    return trail.servers, trail.states, trail.personal, trail.right


@pytest.mark.parametrize(("kind", "how"), [(Loop, "none"), (Stacked, "none"), (Stacked, "trace")])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in ALGORITHMS])
def test_each_algorithm_is_that_of_the_pure_twins(name: str, kind: Any, how: Any) -> None:
    mine, pure = (ended(name, kind, writes, compilation=how) for writes in (True, False))
    assert same(mine, pure)
