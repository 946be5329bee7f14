"""Kinds of attack: what simulated clients that lie upload, or train on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.errors import SettingError
from fedloom.data import Examples, Federation
from fedloom.engines.accounting import PayloadSize
from fedloom.engines.attacks import Attack, Draw
from fedloom.engines.links import Asked
from fedloom.engines.message import Call
from fedloom.engines.population import Population

_AT_ONCE = 1000  # test images


@dataclass(frozen=True)
class Scale(Attack):
    """Upload `factor` times the difference to what was sent; an upload that is no model that was sent, so many times.

    -1 flips the sign.
    """

    factor: float

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return sent + self.factor * (honest - sent)


@dataclass(frozen=True)
class StandStill(Attack):
    """Upload what was sent; of an upload that is no model that was sent, zeros."""

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return sent.expand_as(honest).clone()


@dataclass(frozen=True)
class Constant(Attack):
    """Upload one `value` in the place of every number."""

    value: float

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return torch.full_like(honest, self.value)


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Upload what was sent less `factor` times the attackers' mean difference to it.

    Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019,
    arXiv:1903.03936, whose attackers know the mean of the honest; these know the mean of what they would have uploaded.
    """

    factor: float

    together = True

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return (sent - self.factor * (honest - sent).mean(0)).expand_as(honest).clone()


@dataclass(frozen=True)
class Noise(Attack):
    """Add Gaussian noise of the standard deviation `std` to every number of an upload."""

    std: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.std > 0:
            raise SettingError(f"the standard deviation of noise is above 0, got {self.std:g}: set 1")

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return honest + self.std * draw.normal(honest.shape[1:], honest.device)


@dataclass(frozen=True)
class LittleIsEnough(Attack):
    """Upload, of every number, the attackers' own mean less `z` of their standard deviations.

    Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019,
    arXiv:1902.06156. `z`: None, the largest by which the lies of m attackers among n clients are closer to
    the mean than s honest ones: the quantile of (n - m - s) / (n - m) of the normal distribution, s = n // 2 + 1 - m,
    and 0 where that is below 0. The mean and the deviation (of M, not of M - 1) are those of what the attackers would
    have uploaded.
    """

    z: float | None = None

    least = 2
    together = True

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        z = _z(draw.asked, len(honest)) if self.z is None else self.z
        return (honest.mean(0) - z * honest.std(0, correction=0)).expand_as(honest)


@dataclass(frozen=True)
class FlippedLabels(Attack):
    """Train on class C - 1 - c in the place of class c, of C classes. What is uploaded is what was learnt."""

    def labels(self, y: Tensor, num_classes: int) -> Tensor:
        return num_classes - 1 - y

    def check(self, federation: Federation) -> None:
        super().check(federation)
        y = federation.train.y
        if y.is_floating_point() or y.ndim != 1:
            raise SettingError("labels that are flipped are classes, and these targets are not: use another attack")
        if federation.drift is not None:
            raise SettingError(
                "labels that are flipped and data that drift would mix, so leave out one of attack = 'labels' and "
                "data.drift"
            )

    def in_round(
        self, answers: Iterable[Asked], call: Call, asked: int, payload: PayloadSize, population: Population
    ) -> Iterator[Asked]:
        yield from answers


@dataclass(frozen=True)
class Backdoor(Attack):
    """Train on images of which every other one has a patch and the `wanted` class; upload `boost` times the difference.

    Gu, Dolan-Gavitt, Garg, "BadNets", arXiv:1708.06733; boosted as in Bagdasaryan et al., "How To Backdoor Federated
    Learning", AISTATS 2020, arXiv:1807.00459. The patch is the lower right corner of `size` x `size` pixels, as bright
    as the brightest pixel of the attackers.
    """

    wanted: int
    boost: float = 1.0
    size: int = 4

    def labels(self, y: Tensor, num_classes: int) -> Tensor:
        y = y.clone()
        y[::2] = self.wanted
        return y

    def inputs(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[::2] = self.patched(x[::2])
        return x

    def patched(self, x: Tensor) -> Tensor:
        """Return images with the patch."""
        x = x.clone()
        x[..., -self.size :, -self.size :] = x.max()
        return x

    def success(self, predict: Callable[[Tensor], Tensor], test: Examples) -> float:
        """Return the share of patched test images of other classes that a model takes for the wanted one.

        Args:
            predict: inputs of the network to logits.
            test: the test examples.
        """
        rows = (test.y != self.wanted).nonzero().flatten()
        patched, found = self.patched(test.x[rows]), 0
        for x in torch.split(patched, _AT_ONCE):
            found += int((predict(test.normalise(x, torch.float32)).argmax(-1) == self.wanted).sum())
        return found / max(1, len(rows))

    def check(self, federation: Federation) -> None:
        super().check(federation)
        train = federation.train
        if not train.has_classes or not 0 <= self.wanted < train.num_classes:
            raise SettingError(
                f"a backdoor has a wanted class, one of 0..{train.num_classes - 1} of a classification, got "
                f"{self.wanted}: name another, or use another attack"
            )
        if len(train.shape) != 3 or not 0 < self.size <= min(train.shape[-2:]):
            raise SettingError(
                f"a backdoor patches {self.size} x {self.size} pixels of images, got inputs of shape {train.shape}: "
                "use images, or another attack"
            )
        if federation.drift is not None:
            raise SettingError(
                "examples that are patched and data that drift would mix, so leave out one of attack = 'backdoor' and "
                "data.drift"
            )

    def values(self, honest: Tensor, sent: Tensor, draw: Draw) -> Tensor:
        return sent + self.boost * (honest - sent)


def _z(n: int, m: int) -> float:
    p = (n - m - (n // 2 + 1 - m)) / (n - m) if n > m else 0.5
    return statistics.NormalDist().inv_cdf(p) if 0.5 < p < 1 else 0.0
