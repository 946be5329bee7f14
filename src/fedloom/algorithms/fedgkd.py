"""FedGKD: local training that also learns from the mean of the last global models.

Yao, Pan, Dai, Wan, Ding, Yu, Jin, Xu, Sun. *FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge
Distillation.* IEEE Transactions on Computers 2024. https://arxiv.org/abs/2107.00051

    teacher      w~ = mean of the last M global models
    client       w_k: E epochs on  L_k(w) + gamma T^2 KL( softmax(z(w~) / T) || softmax(z(w) / T) )
    server       w <- sum_k (n_k / n) w_k                                          over the clients that answered

z are logits; the teacher is frozen and in evaluation mode. It is a mean of parameters (and of BatchNorm statistics),
not of answers. In the first rounds it is the mean of the models that there are: of the first round, the one received.
The initial model is in no later mean.

Down: w, and w~ where it is another. Up: w_k. Kept by the client: nothing. The server keeps M models. gamma = 0 is
FedAvg.

Differences from the paper: the form is that of public code, read when this was written, and not the paper's text;
FedGKD-VOTE, whose teachers are M models weighted by their loss on validation data, is not here.

Differences from that code, which names no authors and has not been found again: the first round has the term too; the
mean is weighted by samples (there: a plain mean, `aggregation = "uniform"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

import fedloom as fl


@fl.state
class Server:
    last: tuple[fl.Weights, ...]  # M models, the newest last
    made: Tensor  # [] int64: how many of them rounds have made


@dataclass(frozen=True, kw_only=True)
class FedGKD(fl.Algorithm[Server, tuple[()]]):
    """Distil the mean of the last global models in local training."""

    gamma: Annotated[fl.NonNegative, fl.Grid(0.01, 0.1, 1.0)] = 0.1
    """Weight of the distillation; 0.1 is in the commands of public code, the grid is ours."""
    M: fl.Count = 5
    """Models of which the teacher is the mean; 5 is in the commands of public code. 1: the model received."""
    T: fl.Positive = 1.0
    """Temperature of the distillation; the default is ours."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    requires = fl.Requires(targets=("classes",), logits=2)
    neutral = {"gamma": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        return Server(last=(model.init(key),) * self.M, made=torch.zeros((), dtype=torch.int64))

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], w: fl.Weights, teacher: fl.Maybe[fl.Weights]
    ) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        task_loss = client.loss

        def loss(w: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
            found = task_loss(w, batch)
            return found + self.gamma * batch.mean(fl.distillation(found.logits, batch.teacher, self.T))

        batches = client.train.annotate("teacher", client.model, teacher.otherwise(w)) if self.gamma else client.train
        w_k = self.train(client, w, loss=loss if self.gamma else task_loss, batches=batches)
        return (), client.weigh(w_k, self.aggregation)

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        w, others = server.last[-1], server.last[-int(server.made) :]
        mean = sum(others[1:], start=others[0]) / len(others)
        teacher = fl.Maybe.some(mean) if server.made > 1 else fl.Maybe.none(w)
        new = cohort.reduce(self.local_update, w, teacher).mean
        return Server(last=(*server.last[1:], new), made=(server.made + 1).clamp(max=self.M))

    def global_weights(self, server: Server) -> fl.Weights:
        return server.last[-1]
