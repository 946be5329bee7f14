"""Fed-ADI: one-shot learning without data or generator, by images that are turned over to the ensemble.

Yin, Molchanov, Alvarez, Li, Mallya, Hoiem, Jha, Kautz. *Dreaming to Distill: Data-free Knowledge Transfer via
DeepInversion.* CVPR 2020. https://arxiv.org/abs/1912.08795, eq. 2 to 7 (Adaptive DeepInversion), with an ensemble of
clients as its teacher, as a comparator of `dense` (Zhang et al., NeurIPS 2022) has it. D(x) is the mean of the clients'
logits, f_S the student.

    x   minimises   CE(D(x), y) + alpha_f R(x) + alpha_tv TV(x) + alpha_c (1 - JS(D(x), f_S(x)))
    R   = (1/m) sum_k sum_l ||mu_l(x) - mu_kl|| + ||sigma^2_l(x) - sigma^2_kl||      l: BatchNorm layers of client k
    TV  = sum of the 2-norms of the differences between neighbours to the right, below and on both diagonals
    JS  at temperature 3, probabilities within [0.01, 0.99], at most 1
    f_S minimises   T^2 KL(softmax(D(x) / T) || softmax(f_S(x) / T))

Its rounds and its pool are those of `dense`. An epoch of the server, which is a round, takes `steps` on a batch of
pixels that begins as noise, rolled by up to two pixels in each step; adds those of the least loss to the pool; and the
student passes over the pool.

Down: the initial models, which clients could make themselves. Up: the model. Kept by the client: nothing. No value
gives FedAvg.

Differences from the paper: one student, which adapts as it learns; no multi-resolution, no term of the pixels' norm (0
in the authors' script).

Differences from the authors' code, besides: it means to keep the batch of the least loss, and keeps the last one; its
list of classes is that of a batch of 256. Values are in [0, 1], where theirs are standardised, and begin with mean 1/2
and deviation 1/4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.one_shot import OneShot, Server, Teachers
from fedloom.algorithms.shared.student import like, rate
from fedloom.algorithms.shared.synthetic import as_bytes, labelled, least, lesser, needs_statistics, statistics_distance
from fedloom.core.random import uniform


@dataclass(frozen=True, kw_only=True)
class FedADI(OneShot):
    """Distil the ensemble of uploads with images that are inverted from it."""

    synthesis: fl.Distill = field(default_factory=lambda: fl.Distill(batch_size=256, optimiser=fl.Adam(lr=0.05)))
    """Batch size and optimiser of the pixels."""
    steps: fl.Count = 2000
    """Steps on the batch of an epoch."""
    alpha_f: fl.NonNegative = 10.0
    """Weight of R, the distance to the running statistics."""
    alpha_tv: fl.NonNegative = 2.5e-5
    """Weight of the total variation."""
    alpha_c: fl.NonNegative = 10.0
    """Weight of the competition with the student. 0 is DeepInversion, which does not adapt to the student; the authors'
    script for CIFAR has it."""

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        if self.alpha_f:
            needs_statistics(f"alpha_f = {self.alpha_f}", "alpha_f = 0", models)
        return super().bind(federation, models)

    def epoch(self, server: Server, teachers: Teachers, cohort: fl.Cohort) -> Server:
        y, rng = self.drawn(cohort, server)
        x = like(server.student, 0.5 + 0.25 * torch.randn((len(y), *self.about.shape), generator=rng))
        kept = self.inverted(x, y, teachers, server.student, cohort.key("synthesis"))
        cohort.note(**{name: kept.buffers[name] for name in ("ce", "bn", "tv", "js")})
        examples = torch.cat([*self.since(server, cohort), as_bytes(kept.buffers["x"])])
        self.keep(kept.buffers["x"], y, teachers, cohort)
        return self.distilled(server, teachers, examples, cohort.key("distil"))

    def inverted(self, x: Tensor, y: Tensor, teachers: Teachers, student: fl.Weights, key: int = 0) -> fl.Weights:
        """Pixels of the least loss within `steps` from x [b, ...] towards the classes y [b], and its terms."""
        about, (af, atv, ac) = self.about, (self.alpha_f, self.alpha_tv, self.alpha_c)

        def loss(
            carry: tuple[Tensor, fl.Weights], batch: fl.Batch, teachers: Teachers, student: fl.Weights
        ) -> tuple[Tensor, tuple[Tensor, fl.Weights]]:
            x, kept = carry
            seen = about.pixels(rolled(x, batch.key), x.dtype)
            ce, bn, tv, js = inversion_losses(teachers, about.student, student, seen, batch.y)
            value = ce + af * bn + atv * tv + ac * (1 - js)
            return value, (x, lesser(kept, x=x, loss=value, ce=ce, bn=bn, tv=tv, js=js))

        none = x.new_zeros(())
        start = x, least(x, ce=none, bn=none, tv=none, js=none)
        batches, lr = labelled(y, self.steps, key), rate(self.synthesis, y)
        return fl.minimise(loss, start, batches, self.synthesis.optimiser, teachers, student, lr=lr)[1]


def inversion_losses(
    teachers: Teachers, model: fl.Model, student: fl.Weights, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the terms of the loss of Adaptive DeepInversion, CE, R, TV and JS, [] each, of inputs x with labels y.

    `model`: that of the student.
    """
    each, r = teachers.each(lambda f, w: statistics_distance(f, w, x))  # [m, B, C], [m]
    logits = each.mean(0)
    return F.cross_entropy(logits, y), r.mean(), total_variation(x), jensen_shannon(logits, model(student, x))


def total_variation(x: Tensor) -> Tensor:
    """Return the 2-norms of differences of neighbours in images [B, C, H, W], in four directions, []; 0 of others."""
    if x.ndim != 4:
        return x.new_zeros(())
    right, below = x[..., 1:] - x[..., :-1], x[..., 1:, :] - x[..., :-1, :]
    falling, rising = x[..., 1:, 1:] - x[..., :-1, :-1], x[..., 1:, :-1] - x[..., :-1, 1:]
    return torch.stack([differences.norm() for differences in (right, below, falling, rising)]).sum()


def jensen_shannon(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the distance of two tables of logits [B, C], [], from 0 to 1: as the authors clip it, at temperature 3."""
    p, q = F.softmax(student / 3, -1), F.softmax(teacher / 3, -1)
    m = (0.5 * (p + q)).clamp(0.01, 0.99)
    of_p, of_q = ((m * (m.log() - s.clamp(0.01, 0.99).log())).sum(-1).mean() for s in (p, q))
    mean: Tensor = 0.5 * (of_p + of_q)
    return mean.clamp(0, 1)


def rolled(x: Tensor, key: Tensor) -> Tensor:
    """Images [B, C, H, W] moved by up to 2 pixels down and right or back, round the edges; others as they are."""
    if x.ndim != 4:
        return x
    down, right = (uniform(key, 0, torch.Size((2,))) * 5).long() - 2
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape[2:])
    return x[:, :, (rows - down) % x.shape[2]][..., (columns - right) % x.shape[3]]
