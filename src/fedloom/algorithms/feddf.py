"""FedDF: ensemble distillation on the server.

Lin, Kong, Stich, Jaggi. *Ensemble Distillation for Robust Model Fusion in Federated Learning.* NeurIPS 2020.
https://arxiv.org/abs/2006.07242, Algorithms 1 and 3.

    student      w = sum_k p_k w_k, one for each architecture, over its clients that answered
    target(x)    softmax(mean_k z_k(x) / T)             k: all clients that answered, whatever their architecture
    server       `steps` steps on KL(target(x) || softmax(z_w(x) / T)), x public examples, rate falling as a cosine

`scheme` says how teachers are combined: `avg_logits` as above; `avg_probs` mean_k softmax(z_k), of which the student
alone is tempered; `avg_losses`, the mean of the teachers' own KL, has the gradient of the target mean_k
softmax(z_k / T), which is used.

`student` names an architecture: it alone is distilled, from random weights in the first round and not from a mean, and
judged. So, in a run of one round, DENSE (Zhang et al., NeurIPS 2022) compares with FedDF where architectures differ.

Down: the model. Up: the model. Kept by the client: nothing. The server holds the round's models and unlabelled public
examples. steps = 0 is FedAvg.
Differences from the paper: a fixed number of steps, no early stopping on labelled validation data; 200 by default,
about the work of ten clients with 500 examples (the paper: at most 10,000, stopped 1,000 after the best). An
architecture that nobody in the cohort has is not distilled. From the authors' code: teachers are averaged on all
examples once a round, which is the same unless a network normalises by the batch; its default scheme is avg_losses,
its published command lines say avg_logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.algorithm import Algorithm
from fedloom.core.choices import Positive, WholeNumber
from fedloom.core.client import Aggregation, Client, Public, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.fold import minimise
from fedloom.core.losses import soft_prediction, soft_target_loss
from fedloom.core.model import Model, student_among
from fedloom.core.optimiser import Adam, Cosine, Distill
from fedloom.core.random import derive
from fedloom.core.types import Weighted, Weights

ALONE = ""  # where the server keeps the only student; architectures have names
Scheme = Literal["avg_logits", "avg_probs", "avg_losses"]


@dataclass(frozen=True, kw_only=True)
class FedDF(Algorithm[dict[str, Weights], tuple[()]]):
    """`steps` >= 0: of the server, each round. `T` > 0: temperature. `scheme`, `student`: see above.

    `distill`: batch size and optimiser of the server.
    """

    distill: Distill = field(default_factory=lambda: Distill(batch_size=128, optimiser=Adam(lr=1e-3, clip=5.0)))
    steps: WholeNumber = 200
    T: Positive = 1.0
    scheme: Scheme = "avg_logits"
    aggregation: Aggregation = "samples"
    student: str | None = None

    mixed: ClassVar[bool] = True
    needs_public: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, Any]] = {"steps": 0, "student": None}

    def init(self, model: Mapping[str, Model], key: int, *, num_clients: int) -> dict[str, Weights]:
        students = {m.name: m.init(key) for m in model.values()}
        if len(students) < len(model):
            raise SettingError(f"FedDF tells architectures by name, got {[m.name for m in model.values()]}: name each")
        if self.student is None:
            return students
        return {**students, ALONE: student_among(model, self.student).init(derive(key, "student"))}

    @on_client
    def local_update(self, client: Client[tuple[()]], w: Weights) -> tuple[tuple[()], Weighted[Weights]]:
        return (), client.weigh(self.train(client, w, loss=client.loss), self.aggregation)

    def round(self, server: dict[str, Weights], cohort: Cohort) -> dict[str, Weights]:
        replies = {g.model: g.gather(self.local_update, server[g.model.name], at_least=0) for g in cohort.groups}
        means = {model: reply.mean for model, reply in replies.items() if reply.values}
        server = {**server, **{model.name: mean for model, mean in means.items()}}
        students = {model.name: (model, mean) for model, mean in means.items()}
        if means and self.student is not None:
            model = next(g.model for g in cohort.everyone.groups if g.model.fits(server[ALONE]))
            students = {ALONE: (model, server[ALONE])}
        if students and self.steps:
            teachers = [(model, upload.value) for model, reply in replies.items() for upload in reply.values]
            batches = cohort.public.shuffled(self.distill.batch_size, self.steps, cohort.key("public"))
            batches = batches.note("target", ensemble(teachers, cohort.public, self.T, self.scheme))
            optimiser = Cosine(of=self.distill.optimiser, steps=self.steps)
            rate = torch.tensor(optimiser.lr, dtype=torch.float64, device=batches.x.device)
            for name, (model, student) in students.items():
                server[name] = minimise(soft_target_loss(model, self.T), student, batches, optimiser, lr=rate)
        return server

    def global_models(
        self, server: Mapping[str, dict[str, Weights]], models: Mapping[str, Model]
    ) -> dict[str, Weights]:
        if self.student is not None:
            return {name: server[""][ALONE] for name, model in models.items() if model.fits(server[""][ALONE])}
        return {name: server[""][model.name] for name, model in models.items()}


def ensemble(teachers: Sequence[tuple[Model, Weights]], public: Public, T: float, scheme: Scheme) -> Tensor:
    """What a student is to predict of each public example at temperature T, [P, C]."""
    if scheme == "avg_logits":
        return F.softmax(public.consensus(teachers) / T, -1)
    tau = T if scheme == "avg_losses" else 1.0
    return public.consensus([(soft_prediction(model, tau), weights) for model, weights in teachers])
