"""DENSE: one-shot federated learning without data, of models of any architecture.

Zhang, Chen, Li, Lyu, Wu, Ding, Shen, Wu. *DENSE: Data-Free One-Shot Federated Learning.* NeurIPS 2022.
https://arxiv.org/abs/2112.12371, Algorithm 1. f_k: the model of client k, f_S: the student, G: the generator, x = G(z).

    D(x)    = (1/m) sum_k f_k(x)                                                      (1)
    L_CE    = CE(D(x), y)                                  y uniform over the classes  (2)
    L_BN    = (1/m) sum_k sum_l ||mu_l(x) - mu_kl|| + ||sigma^2_l(x) - sigma^2_kl||    (3)
    L_div   = -omega KL(D(x) || f_S(x))      omega = 1 where D and f_S disagree, else 0 (4)
    L_gen   = L_CE + lambda1 L_BN + lambda2 L_div           minimised by G             (5)
    L_dis   = T^2 KL(softmax(D(x) / T) || softmax(f_S(x) / T))   minimised by f_S      (6)

l are the BatchNorm layers of client k: mean and biased variance of their inputs, f_k in evaluation mode, against their
running statistics (the paper says those of the generator's layers, which have other widths). A model without any adds
0, which is warned of where none has it. G always normalises by the batch.

Round 1 selects all clients, whatever cohort size and sampler say. Each round after it is an epoch of the server, which
selects none: `rounds = 201` is one round of uploads and 200 epochs. The global model is the student. The ensemble is
the models of the clients that answered: `failed` names the others, `server_teachers` counts those that teach. Where no
client answers, all are selected again in the next round.

The record of the upload has the accuracy on the test set of each model alone (`upload_accuracy`), of the mean of their
logits (`ensemble_accuracy`) and, of one architecture, of the uniform mean of their weights (`mean_accuracy`), which is
what one-shot FedAvg of the same seed ends with.

Images go through the augmentation of the clients' training examples, if there is one, and through their normalisation.
`job.restore(run).engine.pool("images")` has those of each epoch: `x` [b, ...] as bytes, `y` the classes that they were
made for, `said` those that the ensemble takes them for. Teachers of one architecture are one stack on a GPU;
convolutions on a CPU are computed one after another. Experiments: papers/docs/dense.md.

Down: the initial models, which clients could make themselves. Up: the model. Kept by the client: nothing. No value
gives FedAvg. The model is uploaded once.

Differences from the paper: `T`.

Differences from the authors' code: L_BN is that of the clients' models (theirs finds no layer, so that it is 0) and a
mean over clients; the student is in evaluation mode as the opponent in (4), theirs in training mode in the first epoch;
images are augmented as the clients augment theirs, where there crops and flips go to all data, digits too; lambda1,
lambda2 and the student's learning rate are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.one_shot import Generates, Server, Teachers
from fedloom.algorithms.shared.student import like, rate
from fedloom.algorithms.shared.synthetic import as_bytes, labelled, least, lesser, needs_statistics, statistics_distance
from fedloom.core.losses import divergence_of_logits


@fl.state
class Synthesis:
    """A generator and its noise while they learn."""

    g: fl.Weights
    z: fl.Weights  # "z" [b, nz]: a parameter where it is trained, a buffer where it is not
    kept: fl.Weights  # the images of the least loss, "x" [b, ...], with that "loss" and its terms


@dataclass(frozen=True, kw_only=True)
class DENSE(Generates):
    """Distil the ensemble of uploads with the images of a generator, which is trained against the student."""

    synthesis: fl.Distill = field(
        default_factory=lambda: fl.Distill(batch_size=256, optimiser=fl.Adam(lr=1e-3, betas=(0.5, 0.999)))
    )
    """Batch size and optimiser of the generator."""
    schedule: Literal["pool", "paper"] = "pool"
    """Order of an epoch of the server. `pool`, as the authors' code: it starts G and z anew, takes `T_G` steps on both,
    adds the batch of least L_gen to the pool as bytes, and the student passes once over the whole pool. `paper`, as
    Algorithm 1: it goes on with G, takes `T_G` steps on one batch of noise, and the student takes one step on what G
    then makes of it; nothing is augmented."""
    T_G: fl.Count = 30
    """Steps of the generator in each epoch."""
    lambda1: fl.NonNegative = 1.0
    """Weight of L_BN. 0 leaves the term out, as in the paper's ablation; the record has `server_bn` all the same, of
    the images that are kept."""
    lambda2: fl.NonNegative = 0.5
    """Weight of L_div. 0 leaves the term out, as in the paper's ablation."""

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        if self.lambda1:
            needs_statistics(f"lambda1 = {self.lambda1}", "lambda1 = 0", models)
        return super().bind(federation, models)

    def begin(self, key: int) -> Any:
        return () if self.schedule == "pool" else super().begin(key)

    def epoch(self, server: Server, teachers: Teachers, cohort: fl.Cohort) -> Server:
        y, rng = self.drawn(cohort, server)
        z, key = like(server.student, torch.randn((len(y), self.nz), generator=rng)), cohort.key("synthesis")
        if self.schedule == "pool":
            g = like(server.student, self.network.init(cohort.key("generator")))
            start = Synthesis(g=g, z=fl.Weights({"z": z}), kept=self.nothing(g, y))
            at_rest = self.synthesis.optimiser.init([*g.params.values(), z])
            made, _ = self.synthesise(start, at_rest, y, teachers, server.student, key)
            x = made.kept.buffers["x"]
            examples = torch.cat([*self.since(server, cohort), as_bytes(x)])
        else:
            g, moments = server.own
            start = Synthesis(g=g, z=fl.Weights({}, {"z": z}), kept=self.nothing(g, y))
            made, moments = self.synthesise(start, moments, y, teachers, server.student, key)
            server = fl.replace(server, own=(made.g, moments))
            x = examples = self.images(made.g, z)
        terms = {name: made.kept.buffers[name] for name in ("ce", "bn", "div")}
        cohort.note(**terms if self.lambda1 else {**terms, "bn": self.distance(teachers, made.kept.buffers["x"])})
        self.keep(x, y, teachers, cohort)
        return self.distilled(server, teachers, examples, cohort.key("distil"), augmented=self.schedule == "pool")

    @torch.no_grad()
    def distance(self, teachers: Teachers, x: Tensor) -> Tensor:
        """L_BN of images x [b, ...], values in [0, 1], where no step has asked for it, []."""
        seen = self.inputs(x, x.dtype)
        return teachers.each(lambda f, w: statistics_distance(f, w, seen))[1].mean()

    def nothing(self, g: fl.Weights, y: Tensor) -> fl.Weights:
        """Return what is kept before there is a loss."""
        none = next(iter(g.params.values())).new_zeros(())
        return least(none.new_zeros((len(y), *self.about.shape)), ce=none, bn=none, div=none)

    def synthesise(
        self,
        start: Synthesis,
        moments: Sequence[Tensor],
        y: Tensor,
        teachers: Teachers,
        student: fl.Weights,
        key: int = 0,
    ) -> tuple[Synthesis, tuple[Tensor, ...]]:
        """`T_G` steps on L_gen, for images of the classes y [b]; what they lead to, and the optimiser's state.

        A loss counts before its step, and of the batch of the least what is kept is not augmented.
        """
        network, about, lambda1, lambda2 = self.network, self.about, self.lambda1, self.lambda2
        augment = about.augment if self.schedule == "pool" else None

        def loss(made: Synthesis, batch: fl.Batch, teachers: Teachers, student: fl.Weights) -> tuple[Tensor, Synthesis]:
            z = {**made.z.params, **made.z.buffers}["z"]
            x, buffers = network.train(made.g, fl.replace(batch, x=z))
            seen = about.pixels(x, x.dtype)
            seen = seen if augment is None else augment(seen, batch.key)
            ce, bn, div = generator_losses(teachers, about.student, student, seen, batch.y, lambda1, lambda2)
            value = ce + lambda1 * bn + lambda2 * div  # (5)
            kept = lesser(made.kept, x=x, loss=value, ce=ce, bn=bn, div=div)
            return value, fl.replace(made, g=fl.replace(made.g, buffers=buffers), kept=kept)

        batches = labelled(y, self.T_G, key)
        lr = rate(self.synthesis, y)
        return fl.minimise_from(loss, start, moments, batches, self.synthesis.optimiser, teachers, student, lr=lr)


def generator_losses(
    teachers: Teachers,
    model: fl.Model,
    student: fl.Weights,
    x: Tensor,
    y: Tensor,
    lambda1: float = 1.0,
    lambda2: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the terms of DENSE's generator loss, L_CE, L_BN and L_div, [] each, of inputs x [B, ...] with labels y.

    `model`: that of the student. A term whose factor is 0 is not computed, and 0.
    """
    if lambda1:
        each, r = teachers.each(lambda f, w: statistics_distance(f, w, x))  # [m, B, C], [m]
        logits, bn = each.mean(0), r.mean()  # (1), (3)
    else:
        logits = teachers.logits(x)
        bn = logits.new_zeros(())
    ce = F.cross_entropy(logits, y)  # (2)
    if not lambda2:
        return ce, bn, logits.new_zeros(())
    answer = model(student, x)
    apart = logits.argmax(-1) != answer.argmax(-1)  # omega: no gradient
    return ce, bn, -torch.where(apart, divergence_of_logits(logits, answer), 0.0).mean()  # (4)
