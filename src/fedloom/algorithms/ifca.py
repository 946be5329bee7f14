"""IFCA: several global models, of which each client trains the one that has the lowest loss on its data.

Ghosh, Chung, Yin, Ramchandran. *An Efficient Framework for Clustered Federated Learning.* NeurIPS 2020.
https://arxiv.org/abs/2006.04088, Algorithm 1 with model averaging.

    client  i     j_i = argmin_j F_i(theta_j)                        F_i: mean loss on all of its training examples
                  theta~_i: E epochs of SGD on F_i from theta_j, j = j_i
    server        theta_j <- mean of theta~_i over the clients that answered and chose j;  as it was where none did

The k models begin apart, each drawn by a key of its own. F_i is taken in evaluation mode, before training. A client is
evaluated by the newest model that has the lowest F_i. How many clients chose each model is in the record of a round, as
`server_chosen`.

Down: all k models. Up: one model, and its number. Kept by the client: nothing. k = 1 is FedAvg.

Differences from the paper: its gradient averaging, its weight sharing (layers that all clients average) and its random
restarts are not here; momentum is allowed locally.

Differences from the authors' code: local steps are on batches (theirs: all examples, as with a large `batch_size`); a
client chooses by its training examples to be evaluated, too (theirs: by the test examples).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

import fedloom as fl
from fedloom.core.random import derive

Models = tuple[fl.Weights, ...]


@dataclass(frozen=True, kw_only=True)
class IFCA(fl.Algorithm[Models, tuple[()]]):
    """Train several models, each by the clients on whose data it is the best."""

    k: Annotated[fl.Count, fl.Grid(2, 3, 4)] = 2
    """Models. The paper's clusters are known, 2 and 4; default and grid are ours."""
    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, the paper's, or its number of `samples`."""

    neutral = {"k": 1}

    @property
    def evaluation_training(self) -> fl.Local:
        return self.local  # a client chooses by its training examples

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Models:
        if self.k > 1 and not model.seeded:
            raise fl.SettingError(
                f"IFCA begins with k = {self.k} networks that differ, and {model.name} is a module, which is one: give "
                "fl.Model a function, or its class"
            )
        return model.init(key), *(model.init(derive(key, j)) for j in range(1, self.k))

    def choice(self, client: fl.Client[tuple[()]], models: Models) -> tuple[Tensor, fl.Weights]:
        """Return which model has the lowest loss on a client's training examples, [] int64, and the model."""
        batches = client.train.whole()
        F = torch.stack([fl.mean_loss(client.model, client.task, theta, batches) for theta in models])
        j = F.nan_to_num(float("inf")).argmin()  # NaN is the least to argmin
        return j, fl.tree.pick(models, j)

    @fl.on_client
    def local_update(
        self, client: fl.Client[tuple[()]], models: Models
    ) -> tuple[tuple[()], fl.Weighted[tuple[fl.Weights, Annotated[Tensor, "control"]]]]:
        j, theta = self.choice(client, models)
        return (), client.weigh((self.train(client, theta), j), self.aggregation)

    def round(self, models: Models, cohort: fl.Cohort) -> Models:
        replies = cohort.gather(self.local_update, models)
        _, j = replies.value.value
        cohort.note(chosen=torch.bincount(j, minlength=self.k))
        chose = [replies.only(replies.ids[j == n]) for n in range(self.k)]
        return tuple(there.mean[0] if there.values else theta for there, theta in zip(chose, models, strict=True))

    def evaluation_payload(self, models: Models, model: fl.Model) -> Models:
        return models

    def personal(self, client: fl.Client[tuple[()]], sent: Models) -> fl.Weights:
        return self.choice(client, sent)[1]

    def global_weights(self, models: Models) -> fl.Weights | None:
        return models[0] if self.k == 1 else None
