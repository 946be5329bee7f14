"""Fed-DAFL: one-shot learning without data, by a generator that asks for no class.

Chen, Wang, Xu, Yang, Liu, Shi, Xu, Xu, Tian. *Data-Free Learning of Student Networks.* ICCV 2019.
https://arxiv.org/abs/1904.01186, eq. 2 to 6, with an ensemble of clients as its teacher, as a comparator of `dense`
(Zhang et al., NeurIPS 2022) has it. D(x) is the mean of the clients' logits, f_S the student, G the generator, x =
G(z), h_k(x) the features of client k (the input of its last layer, which the network's `features` returns).

    L_oh = CE(D(x), argmax D(x))        L_ie = sum_k p_k log10 p_k,  p: mean over the batch of softmax(D(x))
    L_a  = -(1/m) sum_k mean |h_k(x)|
    G    minimises   oh L_oh + ie L_ie + a L_a
    f_S  minimises   T^2 KL(softmax(D(x) / T) || softmax(f_S(x) / T)), in the same steps; x is constant

Its rounds are those of `dense`. An epoch of the server, which is a round, takes `steps` steps on fresh noise; there is
no pool to learn from. Up to 256 images that G makes at the end of an epoch are saved, to be looked at.

The defaults are the authors' values for CIFAR-10. For MNIST they have `oh=1`, `ie=5`, `a=0.1`, batches of 512,
`nz=100`, Adam at 0.2 for the generator and Adam at 0.002 for the student.

Down: the initial models, which clients could make themselves. Up: the model. Kept by the client: nothing. No value
gives FedAvg.

Differences from the paper: several teachers, of which L_a is the mean.

Differences from the authors' code: the generator is DENSE's, which makes pixels in [0, 1], where theirs ends in a
normalisation and makes standardised images; the student's learning rate does not fall after 800 and 1,600 epochs, which
there are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.one_shot import Generates, Server, Teachers
from fedloom.algorithms.shared.student import like
from fedloom.core.batches import noise


@fl.state
class Pair:
    """The generator and the student."""

    g: fl.Weights
    student: fl.Weights


@dataclass(frozen=True, kw_only=True)
class FedDAFL(Generates):
    """Distil the ensemble of uploads with the images of a generator that chooses no class."""

    synthesis: fl.Distill = field(default_factory=lambda: fl.Distill(batch_size=1024, optimiser=fl.Adam(lr=0.02)))
    """Batch size, of both networks, and optimiser of the generator."""
    distill: fl.Distill = field(
        default_factory=lambda: fl.Distill(batch_size=1024, optimiser=fl.SGD(lr=0.1, momentum=0.9, weight_decay=5e-4))
    )
    """Optimiser of the student; its batch size is not used."""
    T: fl.Positive = 1.0
    """Temperature of the distillation."""
    nz: fl.Count = 1000
    """Values of a noise vector."""
    steps: fl.Count = 120
    """Steps in each epoch, each on fresh noise."""
    oh: fl.NonNegative = 0.05
    """Weight of L_oh."""
    ie: fl.NonNegative = 5.0
    """Weight of L_ie."""
    a: fl.NonNegative = 0.01
    """Weight of L_a."""

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        bare = [name for name, model in models.items() if not model.offers("features")]
        if bare:
            raise fl.SettingError(
                f"Fed-DAFL looks at the features of a network, and {', '.join(bare)} has no method features(x): "
                "define it to return the input of the last layer"
            )
        return super().bind(federation, models)

    def init_pools(self, server: Server) -> Mapping[str, Any]:
        return {"images": self.entry(min(SHOWN, self.synthesis.batch_size))}

    def epoch(self, server: Server, teachers: Teachers, cohort: fl.Cohort) -> Server:
        network, about, T, (oh, ie, a) = self.network, self.about, self.T, (self.oh, self.ie, self.a)

        def loss(both: Pair, batch: fl.Batch, teachers: Teachers) -> tuple[Tensor, Pair]:
            x, g_buffers = network.train(both.g, batch)
            x = about.pixels(x, x.dtype)
            logits, activity = seen(teachers, x)
            answer, buffers = about.student.train(both.student, fl.replace(batch, x=x.detach()))
            taught = batch.mean(fl.distillation(answer, logits.detach(), T))
            one_hot, entropy, activation = generator_losses(logits, activity)
            value = oh * one_hot + ie * entropy + a * activation + taught
            return value, Pair(fl.replace(both.g, buffers=g_buffers), fl.replace(both.student, buffers=buffers))

        g, moments = server.own
        weight = fl.tree.leaves(server.student.params)[0]
        z = noise((self.nz,), self.synthesis.batch_size, self.steps, cohort.key("noise"), weight)
        optimiser = Both(first=self.synthesis.optimiser, second=self.distill.optimiser, count=len(g.params))
        both, after = fl.minimise_from(
            loss,
            Pair(g, server.student),
            [*moments, *server.moments],
            z,
            optimiser,
            teachers,
            lr=torch.ones((), dtype=torch.float64, device=weight.device),
        )
        own = both.g, after[: len(moments)]
        rng = torch.Generator().manual_seed(cohort.key("shown"))
        shown = torch.randn((min(SHOWN, self.synthesis.batch_size), self.nz), generator=rng)
        x = self.images(both.g, like(both.g, shown))
        logits, activity = seen(teachers, self.inputs(x, x.dtype))
        cohort.note(**dict(zip(("oh", "ie", "a"), generator_losses(logits, activity), strict=True)))
        self.keep(x, logits.argmax(-1), teachers, cohort)
        return fl.replace(server, student=both.student, moments=after[len(moments) :], own=own)


SHOWN = 256  # images of an epoch that are kept


def seen(teachers: Teachers, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ensemble's logits [B, C] of inputs x, and the mean absolute feature of each of its models, [m]."""

    def one(model: fl.Model, w: fl.Weights) -> tuple[Tensor, Tensor]:
        logits, h = model.with_features(w, x)
        return logits, h.abs().mean()

    each, activity = teachers.each(one)
    return each.mean(0), activity


def generator_losses(logits: Tensor, activity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms of the generator loss of DAFL, L_oh, L_ie and L_a, [] each.

    `logits`: of the ensemble, [B, C]. `activity`: mean |h_k(x)| of each client, [m].
    """
    p = F.softmax(logits, -1).mean(0)
    return F.cross_entropy(logits, logits.argmax(-1)), (p * p.clamp(min=1e-12).log10()).sum(), -activity.mean()


@dataclass(frozen=True, kw_only=True)
class Both(fl.Optimiser):
    """Two optimisers at once, at their own rates: one for the first `count` tensors, the other for all that follow."""

    lr: float = field(init=False, default=1.0)
    clip: None = field(init=False, default=None)  # they clip
    first: fl.Optimiser
    second: fl.Optimiser
    count: int

    def init(self, params: Sequence[Tensor], lead: int = 0) -> list[Tensor]:
        return [*self.first.init(params[: self.count], lead), *self.second.init(params[self.count :], lead)]

    def _step_(
        self, params: Sequence[Tensor], grads: Sequence[Tensor | None], state: Sequence[Tensor], lr: Tensor
    ) -> None:
        n, own = self.count, self._own
        self.first.step_(params[:n], grads[:n], state[:own], lr * self.first.lr)
        self.second.step_(params[n:], grads[n:], state[own:], lr * self.second.lr)

    def part_of(self, state: Sequence[Tensor], i: int, count: int) -> list[Tensor]:
        n, own = self.count, self._own
        if i < n:
            return self.first.part_of(state[:own], i, n)
        return self.second.part_of(state[own:], i - n, count - n)

    @property
    def _own(self) -> int:
        """Return how much of the state is the first one's."""
        return len(self.first.init([torch.empty(0)] * self.count))
