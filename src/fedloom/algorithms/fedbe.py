"""FedBE: a Bayesian ensemble around the average, distilled into one model on the server.

Chen, Chao. *FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning.* ICLR 2021.
https://arxiv.org/abs/2009.01974, Algorithm 1.

    teachers     the mean w, the clients' w_k, and `num_sampled` models drawn tensor by tensor:
                 u_k = (w_k - w_received) / ||w_k - w_received||,  m = mean u_k,  v = max(var u_k, 1e-5)
                 w_received + mean_k ||w_k - w_received|| (m + spread sqrt(v) eps),   eps ~ N(0, 1)
    p(x)         mean over teachers of softmax(z(x)), sharpened: p^(1/T) / sum p^(1/T)
    server       `steps` steps from w on KL(p(x) || softmax(z(x))) / C, x public examples; after `swa_start` steps,
                 every `swa_every`-th model enters a mean, which is the new w (Izmailov et al., UAI 2018)

Down: the model. Up: the model. Kept by the client: nothing. The server holds the round's models and unlabelled public
examples. steps = 0 is FedAvg.
Differences from the paper: the number of steps is fixed (800 are the authors' 20 epochs of 5,000 examples). From the
authors' code, whose description this follows (the code itself needs options that it does not define): no weight decay
on the server (theirs is 1e-5); the clients' models always teach (there an option); BatchNorm statistics are averaged,
not drawn, and with the mean over models they are those of the last one, not computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.averaging import Averaging
from fedloom.core.batches import Batch
from fedloom.core.cohort import Cohort
from fedloom.core.errors import SettingError
from fedloom.core.losses import soft_prediction, soft_target_loss
from fedloom.core.optimiser import SGD, Distill
from fedloom.core.swa import minimise_averaged
from fedloom.core.types import Params, Weights


@final
@dataclass(frozen=True, kw_only=True)
class FedBE(Averaging):
    """`num_sampled` >= 0, `spread` >= 0, `T` > 0, `steps` >= 0, `swa_start` >= 0, `swa_every` >= 1: see above.

    `distill`: batch size and optimiser of the server.
    """

    distill: Distill = field(default_factory=lambda: Distill(batch_size=128, optimiser=SGD(lr=1e-3, momentum=0.9)))
    steps: int = 800
    num_sampled: int = 10
    spread: float = 0.1
    T: float = 0.5
    swa_start: int = 500
    swa_every: int = 25

    needs_public: ClassVar[bool] = True
    neutral: ClassVar[Mapping[str, Any]] = {"steps": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        low = min(self.steps, self.num_sampled, self.spread, self.swa_start, self.swa_every - 1)
        if low < 0 or self.T <= 0:
            raise SettingError(
                f"FedBE needs T > 0, swa_every >= 1 and steps, num_sampled, spread, swa_start >= 0; got {self}"
            )
        if self.shared != "*" or self.buffers != "average":
            raise SettingError(
                "FedBE's teachers are whole models, and distillation moves the server's buffers: "
                f"shared = '*' and buffers = 'average', got {self.shared!r} and {self.buffers!r}"
            )

    def round(self, server: Weights, cohort: Cohort) -> Weights:
        replies = cohort.gather(self.local_update, server)
        mean = server.merge(replies.mean)
        if not self.steps:
            return mean
        model, clients = cohort.model, [mean.merge(upload.value) for upload in replies.values]
        drawn = draws(server.params, [w.params for w in clients], self.spread, self.num_sampled, cohort.key("draws"))
        teachers = [mean, *clients, *(Weights(params=p, buffers=mean.buffers) for p in drawn)]
        p = cohort.public.consensus([(soft_prediction(model, 1.0), w) for w in teachers])
        batches = cohort.public.shuffled(self.distill.batch_size, self.steps, cohort.key("public"))
        batches = batches.note("target", F.softmax(p.log() / self.T, -1))
        kl, optimiser = soft_target_loss(model, 1.0), self.distill.optimiser

        def loss(weights: Weights, batch: Batch) -> tuple[Tensor, Weights]:
            value, moved = kl(weights, batch)
            return value / batch.target.shape[-1], moved

        return minimise_averaged(loss, mean, batches, optimiser, since=self.swa_start, every=self.swa_every)


def draws(w: Params, clients: Sequence[Params], spread: float, count: int, key: int) -> Iterator[Params]:
    """Models drawn from the Gaussian of the clients' directions around the received w."""
    rng = torch.Generator().manual_seed(key)
    gaussian: dict[str, tuple[Tensor, Tensor]] = {}
    for n, received in w.items():
        change = torch.stack([c[n] - received for c in clients])
        norm = change.flatten(1).norm(dim=1).reshape(-1, *[1] * received.ndim)
        unit = change / norm.where(norm > 0, 1.0)  # a tensor that did not move has no direction
        v, m = torch.var_mean(unit, dim=0, correction=0)
        gaussian[n] = received + norm.mean() * m, norm.mean() * spread * v.clamp(min=1e-5).sqrt()
    for _ in range(count):
        yield {
            n: m + s * torch.randn(m.shape, generator=rng, dtype=torch.float64).to(m) for n, (m, s) in gaussian.items()
        }
