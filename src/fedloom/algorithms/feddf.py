"""FedDF: ensemble distillation on the server.

Lin, Kong, Stich, Jaggi. *Ensemble Distillation for Robust Model Fusion in Federated Learning.* NeurIPS 2020.
https://arxiv.org/abs/2006.07242, Algorithms 1 and 3.

    student      w = sum_k p_k w_k, one for each architecture, over its clients that answered
    target(x)    softmax(mean_k z_k(x) / T)             k: all clients that answered, whatever their architecture
    server       `steps` steps on KL(target(x) || softmax(z_w(x) / T)), x public examples

Clients may have several architectures: each that has a client in the round gets a student, and all clients teach.
Teachers are in evaluation mode and count equally. The server predicts by them once a round for all public examples. It
reads no labels of public examples, except for `validation`. `--public 5000` on the command line sets that number of
training examples aside as public ones.

The student becomes what its teachers are together, and that need not be better than the averaged model. With `mlp` on
the embedded data, 10 of 50 clients a round for 15 rounds, one seed, its accuracy was theirs within 0.02. It gained
under `dirichlet:0.3` about as often as it lost. Under `shards:2` the mean of the logits of clients that know two
classes each was mostly worse than the mean of their weights.

Down: the model. Up: the model. Kept by the client: nothing. steps = 0 is FedAvg. The server holds the round's models
and the public examples.

Differences from the paper: by default a fixed number of steps and no validation. Its validation examples are a tenth of
the training set; here they are public ones. An architecture that nobody in the cohort has is not distilled. There is no
factor T^2.

Differences from the authors' code: it averages models uniformly (`aggregation = "uniform"`). Teachers are averaged on
all examples once a round, which is the same unless a network normalises by the batch. Its default scheme is
`avg_losses`; its published command lines say `avg_logits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.student import student_among
from fedloom.core.client import Public
from fedloom.core.losses import soft_prediction, soft_target_loss
from fedloom.core.random import derive, generator

ALONE = ""  # where the server keeps the only student; architectures have names
Scheme = Literal["avg_logits", "avg_probs", "avg_losses"]


@dataclass(frozen=True, kw_only=True)
class FedDF(fl.Algorithm[dict[str, fl.Weights], Any]):
    """Distil the ensemble of the cohort's models into their mean, on public examples."""

    distill: fl.Distill = field(
        default_factory=lambda: fl.Distill(batch_size=128, optimiser=fl.Adam(lr=1e-3, clip=5.0))
    )
    """Batch size and optimiser of the server; unless it has a `schedule` the learning rate falls to 0 along
    half a cosine within each round."""
    steps: fl.WholeNumber = 200
    """Steps of the server in each round; with `validation` at most. 200 is about the work of ten clients with 500
    examples and five epochs. The paper takes at most 10,000, and stops when accuracy on labelled validation data has
    not risen for 1,000."""
    T: fl.Positive = 1.0
    """Temperature of the distillation."""
    scheme: Scheme = "avg_logits"
    """Target of the student. `avg_logits`: softmax(mean_k z_k / T). `avg_probs`: mean_k softmax(z_k), and the student
    alone is tempered. `avg_losses`: mean_k softmax(z_k / T), which has the gradient of the mean of the teachers' own
    divergences."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""
    student: str | None = None
    """Name of the architecture that alone is distilled and evaluated, from random weights in the first round and not
    from a mean; none: each that the cohort has, from its mean. With `rounds = 1` this is the FedDF that `dense` is
    compared with in its paper where architectures differ."""
    validation: fl.WholeNumber = 0
    """Number of public examples, with known labels (`data.public_labels`), that are not learnt from and choose the best
    student, the mean itself among them; 0: none."""
    every: fl.Count = 100
    """Steps between validations."""
    patience: fl.Count = 1000
    """Steps without a better student after which the round ends, with `validation`."""

    requires = fl.Requires(mixed=True, public=True, targets=("classes",), logits=2, server_training=True)
    neutral: ClassVar[Mapping[str, Any]] = {"steps": 0, "student": None}
    alone: ClassVar[fl.Model]  # the student's network, of an instance that is `bind`

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        there = 0 if federation.public is None else len(federation.public)
        if self.validation and not federation.public_labels:
            raise fl.SettingError(
                f"FedDF validates its students on labelled public examples, validation = {self.validation} of them, "
                "and those of this federation have no labels: set data.public_labels "
                "(Federation(public_labels=True)) where they are of the clients' classes, or validation = 0"
            )
        if 0 < there <= self.validation:
            raise fl.SettingError(
                f"FedDF learns from the public examples that are not for validation, and validation = "
                f"{self.validation} leaves none of {there}: lower it, or give more public examples"
            )
        bound = super().bind(federation, models)
        return bound if self.student is None else bound.with_context(alone=student_among(models, self.student))

    def init(self, model: Mapping[str, fl.Model], key: int, *, num_clients: int) -> dict[str, fl.Weights]:
        students = {m.name: m.init(key) for m in model.values()}
        if len(students) < len(model):
            raise fl.SettingError(
                f"FedDF tells architectures by name, got {[m.name for m in model.values()]}: name each"
            )
        if self.student is None:
            return students
        return {**students, ALONE: student_among(model, self.student).init(derive(key, "student"))}

    @fl.on_client
    def local_update(self, client: fl.Client[Any], w: fl.Weights) -> tuple[Any, fl.Weighted[fl.Weights]]:
        return (), client.weigh(self.train(client, w, loss=client.loss), self.aggregation)

    def round(self, server: dict[str, fl.Weights], cohort: fl.Cohort) -> dict[str, fl.Weights]:
        replies = {g.model: g.gather(self.local_update, server[g.model.name], at_least=0) for g in cohort.groups}
        means = {model: reply.mean for model, reply in replies.items() if reply.values}
        server = {**server, **{model.name: mean for model, mean in means.items()}}
        students = {model.name: (model, mean) for model, mean in means.items()}
        if means and self.student is not None:
            students = {ALONE: (self.alone, server[ALONE])}
        if students and self.steps:
            teachers = [(model, upload.value) for model, reply in replies.items() for upload in reply.values]
            public, held = self.divided(cohort.public)
            batches = public.shuffled(self.distill.batch_size, self.steps, cohort.key("public"))
            batches = batches.note("target", ensemble(teachers, public, self.T, self.scheme))
            for name, (model, student) in students.items():
                server[name] = self.distilled(model, student, batches, held)
        return server

    def divided(self, public: Public) -> tuple[Public, fl.Batches | None]:
        """Return the public examples to learn from, and those to validate on; the same ones in every round."""
        if not self.validation:
            return public, None
        n, device = public.batches.x.shape[0], public.batches.x.device
        order = torch.from_numpy(generator(n, "validation").permutation(n)).to(device)
        learnt, held = public.only(order[self.validation :]), public.only(order[: self.validation])
        return learnt, held.rows(torch.arange(self.validation, device=device), 200)

    def distilled(
        self, model: fl.Model, student: fl.Weights, batches: fl.Batches, held: fl.Batches | None
    ) -> fl.Weights:
        """Return the student after all batches, or the best of those that were validated on the way."""
        optimiser, loss = self.distill.optimiser, soft_target_loss(model, self.T)
        if optimiser.schedule == "constant":
            optimiser = fl.replace(optimiser, schedule=f"cosine:{self.steps}?by=step")
        rate = torch.tensor(optimiser.lr, dtype=torch.float64, device=batches.x.device)
        if held is None:
            return fl.minimise(loss, student, batches, optimiser, lr=rate)
        moments = tuple(optimiser.init(fl.tree.leaves(student.params)))
        best, highest, at = student, accuracy(model, student, held), 0
        for start in range(0, self.steps, self.every):
            student, moments = fl.minimise_from(
                loss, student, moments, batches.part(start, start + self.every), optimiser, lr=rate
            )
            reached = accuracy(model, student, held)
            if reached > highest:
                best, highest, at = student, reached, start + self.every
            elif start + self.every - at >= self.patience:
                break
        return best

    def global_models(
        self, server: Mapping[str, dict[str, fl.Weights]], models: Mapping[str, fl.Model]
    ) -> dict[str, fl.Weights]:
        if self.student is not None:
            return {name: server[""][ALONE] for name, model in models.items() if model.fits(server[""][ALONE])}
        return {name: server[""][model.name] for name, model in models.items()}


def ensemble(teachers: Sequence[tuple[fl.Model, fl.Weights]], public: Public, T: float, scheme: Scheme) -> Tensor:
    """Return what a student is to predict of each public example at temperature T, [P, C]."""
    if scheme == "avg_logits":
        return F.softmax(public.consensus(teachers) / T, -1)
    tau = T if scheme == "avg_losses" else 1.0
    return public.consensus([(soft_prediction(model, tau), weights) for model, weights in teachers])


def accuracy(model: fl.Model, weights: fl.Weights, held: fl.Batches) -> float:
    """Return the accuracy of a model on labelled examples; -1 of one that says nothing on one of them."""
    logits = held.predict(model, weights)
    if not bool(logits.amax(-1).isfinite().all()):
        return -1.0
    return float((logits.argmax(-1) == held.y[held.examples]).double().mean())
