"""FedBE: a Bayesian ensemble around the average, distilled into one model on the server.

Chen, Chao. *FedBE: Making Bayesian Model Ensemble Applicable to Federated Learning.* ICLR 2021.
https://arxiv.org/abs/2009.01974, Algorithm 1.

    teachers     the mean w, the clients' w_k, and `num_sampled` models drawn tensor by tensor:
                 u_k = (w_k - w_received) / ||w_k - w_received||,  m = mean u_k,  v = max(var u_k, 1e-5)
                 w_received + mean_k ||w_k - w_received|| (m + spread sqrt(v) eps),   eps ~ N(0, 1)
    p(x)         mean over teachers of softmax(z(x)), sharpened: p^(1/T) / sum p^(1/T)
    server       `steps` steps from w on KL(p(x) || softmax(z(x))) / C, x public examples; after `swa_start` steps,
                 every `swa_every`-th model enters a mean, which is the new w (Izmailov et al., UAI 2018)

The divergence is divided by C, the number of classes, as in the authors' code. Labels of public examples are never read
(`--public 5000` on the command line). There is no `buffers` and no `shared`: teachers are whole models, and
distillation moves BatchNorm statistics on the server.

Down: the model. Up: the model. Kept by the client: nothing. steps = 0 is FedAvg. The server holds the round's models
and unlabelled public examples.

Differences from the paper: the number of steps is fixed.

Differences from the authors' code, whose description this follows (the code itself needs options that it does not
define): no weight decay on the server (theirs is 1e-5); the clients' models always teach (there an option); BatchNorm
statistics are averaged, not drawn, and with the mean over models they are those of the last one, not computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.core.losses import Loss, soft_prediction, soft_target_loss


@dataclass(frozen=True, kw_only=True)
class FedBE(fl.Algorithm[fl.Weights, tuple[()]]):
    """Distil an ensemble of models around the mean into one."""

    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""
    distill: fl.Distill = field(
        default_factory=lambda: fl.Distill(batch_size=128, optimiser=fl.SGD(lr=1e-3, momentum=0.9))
    )
    """Batch size and optimiser of the server."""
    steps: fl.WholeNumber = 800
    """Steps of the server in each round; 800 are the authors' 20 epochs of 5,000 examples."""
    num_sampled: fl.WholeNumber = 10
    """Models that are sampled for the ensemble."""
    spread: fl.NonNegative = 0.1
    """Factor of sqrt(v), the standard deviation of the sampled models."""
    T: fl.Positive = 0.5
    """Temperature that sharpens the ensemble's prediction."""
    swa_start: fl.WholeNumber = 500
    """Steps before models enter the mean."""
    swa_every: fl.Count = 25
    """Steps between models that enter the mean. If no multiple of it lies above `swa_start` and within `steps`, the
    last model is taken: by default, with fewer than 525 steps."""

    requires = fl.Requires(public=True, targets=("classes",), logits=2, server_training=True)
    neutral: ClassVar[Mapping[str, Any]] = {"steps": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    @fl.on_client
    def local_update(self, client: fl.Client[tuple[()]], w: fl.Weights) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        return (), client.weigh(self.train(client, w, loss=client.loss), self.aggregation)

    def round(self, server: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        replies = cohort.gather(self.local_update, server)
        mean: fl.Weights = replies.mean
        if not self.steps:
            return mean
        model, clients = cohort.model, [upload.value for upload in replies.values]
        drawn = draws(server.params, [w.params for w in clients], self.spread, self.num_sampled, cohort.key("draws"))
        teachers = [mean, *clients, *(fl.Weights(params, mean.buffers) for params in drawn)]
        p = cohort.public.consensus([(soft_prediction(model, 1.0), w) for w in teachers])
        batches = cohort.public.shuffled(self.distill.batch_size, self.steps, cohort.key("public"))
        batches = batches.note("target", F.softmax(p.log() / self.T, -1))
        kl, optimiser = soft_target_loss(model, 1.0), self.distill.optimiser

        def loss(w: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
            return kl(w, batch) / batch.target.shape[-1]

        return minimise_averaged(loss, mean, batches, optimiser, since=self.swa_start, every=self.swa_every)

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


def draws(w: fl.Params, clients: Sequence[fl.Params], spread: float, count: int, key: int) -> Iterator[fl.Params]:
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
        drawn = {n: torch.randn(m.shape, generator=rng, dtype=torch.float64) for n, (m, _) in gaussian.items()}
        yield fl.Params({n: m + s * drawn[n].to(m) for n, (m, s) in gaussian.items()})


def minimise_averaged(
    loss: Loss, start: fl.Weights, batches: fl.Batches, optimiser: fl.Optimiser, *, since: int, every: int
) -> fl.Weights:
    """Train as `fold.minimise` at the optimiser's own rate; return the mean of the models after some of the steps.

    Those are the steps whose number, from 1, is above `since` and a multiple of `every` (Izmailov et al., UAI 2018);
    without any it is the last model. Buffers are those of the last step.
    """

    def step(carry: Any, batch: fl.Batch) -> Any:
        w, moments, mean, t, count = carry
        leaves = fl.tree.map_tree(lambda p: p.detach().requires_grad_(), w.params)
        with torch.enable_grad():
            found = loss(fl.Weights(leaves, w.buffers), batch)
            slopes = torch.autograd.grad(found.value, list(leaves.values()), allow_unused=True)
        params, moments = optimiser.apply(w.params, dict(zip(leaves, slopes, strict=True)), moments)
        t = t + 1
        due = (t > since) & (t % every == 0)
        count = count + due
        mean = fl.tree.map_tree(lambda m, p: torch.where(due, m + (p - m) / count.clamp(min=1), m), mean, params)
        return fl.Weights(params, fl.tree.map_tree(Tensor.detach, found.weights.buffers)), moments, mean, t, count

    zero = torch.zeros((), dtype=torch.int64, device=batches.num_steps.device)
    moments = optimiser.init(fl.tree.leaves(start.params))
    w, _, mean, _, count = fl.fold(step, (start, moments, start.params, zero, zero), batches)
    return fl.Weights(fl.tree.map_tree(lambda m, p: torch.where(count > 0, m, p), mean, w.params), w.buffers)
