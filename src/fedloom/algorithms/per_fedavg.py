"""Per-FedAvg: personalised FedAvg; local steps on the loss after one step of adaptation, by MAML.

Fallah, Mokhtari, Ozdaglar. *Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach.* NeurIPS 2020. https://proceedings.neurips.cc/paper/2020/hash/24389bfe4fe2eba8bf9aa9203a44cdad-Abstract.html,
Algorithm 1 and section 5 (FO and HF).

    min_w  mean_k F_k(w - alpha grad F_k(w))
    client  again and again, on batches D, D' and, for HF, D'':
              u <- w - alpha g_D(w),   g = g_D'(u)                                          g_D: the gradient on a batch
              FO:  w <- w - beta g
              HF:  w <- w - beta (g - alpha (g_D''(w + delta g) - g_D''(w - delta g)) / (2 delta))
    server  w <- sum_k (n_k / n) w_k

The batches are those of the round, one after the other: so E epochs make a half (FO) or a third (HF) of the steps that
they make for FedAvg. Where the last step lacks one, it takes the first batches again. Of `local`, the batches alone are
used: learning rates are `alpha` and `beta`, steps are plain SGD. `train_loss` is not recorded. A client is evaluated by
w - alpha grad F_k(w) of the newest w, a step on all its training examples, never on those that evaluate it.

Down: the model. Up: the model. Kept by the client: nothing. There is no value that gives FedAvg: alpha = 0 would be a
FedAvg that skips batches.

Differences from the paper: the mean is weighted by n_k (`aggregation = "uniform"`: as there).

Differences from the code of pFedMe's authors: theirs adapts on the test batches that evaluate it. BatchNorm statistics
follow the batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.derivatives import objective_gradient


@fl.state
class Step:
    """State between two batches of a step."""

    w: fl.Params
    at: fl.Params  # where the next gradient is taken: w or u
    g: fl.Params  # g_D'(u) once it is known, else 0
    buffers: fl.Params
    turn: Tensor  # [] int64: the next batch is D (0), D' (1) or D'' (2)


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(fl.OwnSteps[fl.Weights, fl.Weights], fl.Averaging[fl.Weights]):
    """Learn a model that one step of a client adapts."""

    alpha: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.01
    """Learning rate of the adaptation; the grid is ours."""
    beta: Annotated[fl.Positive, fl.Grid(0.001, 0.01, 0.1)] = 0.01
    """Learning rate of w; the grid is ours."""
    form: Literal["fo", "hf"] = "fo"
    """`fo`, of first order, or `hf`, with Hessians as differences of gradients."""
    delta: fl.Positive = 1e-3
    """Step of these differences."""

    @property
    def evaluation_training(self) -> fl.Local:
        return self.local

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], sent: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def step(s: Step, batch: fl.Batch) -> Step:
            h, _, buffers = fl.batch_gradient(task_loss, fl.Weights(s.at + self.delta * s.g, s.buffers), batch)
            if self.form == "fo":
                w, last = s.w - self.beta * h, s.turn == 1
            else:  # for D and D', where g = 0, `below` is h and `w` is not taken
                below = fl.batch_gradient(task_loss, fl.Weights(s.at - self.delta * s.g, s.buffers), batch)[0]
                w = s.w - self.beta * (s.g - self.alpha / (2 * self.delta) * (h - below))
                last = s.turn == 2
            w = choose(last, w, s.w)
            return Step(
                w=w,
                at=choose(s.turn == 0, w - self.alpha * h, w),  # u, or w again
                g=choose((s.turn == 1) & ~last, h, fl.tree.zeros_like(h)),
                buffers=buffers,
                turn=torch.where(last, 0, s.turn + 1),
            )

        w, D = self.received(client, sent), torch.zeros_like(client.round)
        start = Step(w=w.params, at=w.params, g=fl.tree.zeros_like(w.params), buffers=w.buffers, turn=D)
        end = fl.fold(step, start, whole_steps(client.train, 2 if self.form == "fo" else 3))
        return self.answer(client, fl.Weights(end.w, end.buffers))

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        w = self.received(client, sent)
        slope = objective_gradient(client.model, client.task, w, client.train.whole())
        return fl.replace(w, params=w.params - self.alpha * slope)


def whole_steps(batches: fl.Batches, each: int) -> fl.Batches:
    """Return the same batches, `each` for every step; the last step is filled up with the first of them.

    Five batches with two for each step are 0 1, 2 3, 4 0.
    """
    count = batches.num_steps
    at = torch.arange(-(-len(batches.order) // each) * each, device=count.device) % count.clamp(min=1)
    steps = torch.div(count + each - 1, each, rounding_mode="floor")
    return fl.replace(batches, order=batches.order[at], mask=batches.mask[at], num_steps=each * steps)


def choose(first: Tensor, a: fl.Params, b: fl.Params) -> fl.Params:
    """Return a if `first`, [] bool, else b; no branch."""
    return fl.Maybe(present=first, value=a).otherwise(b)
