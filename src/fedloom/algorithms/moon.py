"""MOON: model-contrastive learning, towards the global model's features and away from the client's own last ones.

Li, He, Song. *Model-Contrastive Federated Learning.* CVPR 2021. https://arxiv.org/abs/2103.16257, eq. 3 and Algorithm
1.

    L = CE + mu * -log( exp(s(z, z_glob) / tau) / (exp(s(z, z_glob) / tau) + exp(s(z, z_prev) / tau)) )
      = CE + mu * softplus( (s(z, z_prev) - s(z, z_glob)) / tau )     s: cosine similarity; mean over the batch

z, z_glob and z_prev are features of the same input by the model in training, the model received and the client's last
model. The last two are frozen and in evaluation mode. z comes from the pass that makes the logits.

Down: the model. Up: the model. Kept by the client: its last model. mu = 0 is FedAvg. That last model is the one with
which local training ended. The initial model is not counted as a download: the seed determines it.

Differences from the paper: no projection head is added; z is what the network's `feature` returns.

Differences from the authors' code: the first round has the term too.

Differences from the FedNTD authors' code: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class MOON(fl.Algorithm[fl.Weights, fl.Maybe[fl.Weights]]):
    """Contrast features with those of the global and of the previous local model."""

    mu: Annotated[fl.NonNegative, fl.Grid(0.1, 1.0, 5.0, 10.0)] = 1.0
    """Weight of the contrastive term. 1 is in Table 5 of FedNTD; its configuration file says 0.1; the paper has 5 for
    CIFAR-10, of a grid from 0.1 to 10."""
    tau: fl.Positive = 0.5
    """Temperature of the contrastive term; 0.5 in the paper, and in FedNTD's table and file."""
    feature: str = "features"
    """Origin of z: a method of the network, which `forward` must call, or the name of a layer, whose output is
    flattened; `input:NAME` is what a layer is given. The networks of fedloom have `features`, the input of the
    classifier: for `fedntd_cnn` the 512 units after ReLU, as in the FedNTD authors' code. It is `1` for
    `nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))`. A network that has a projection head names its
    output here."""
    previous: Literal["initial", "received", "random"] = "initial"
    """Last model of a client that never took part. `initial`: the initial global model, as in the FedNTD authors' code.
    `received`: the one received; the first time, the term is then the constant mu * log 2, without a gradient.
    `random`: a network drawn anew, as in the paper's code."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, or `uniform`."""

    neutral: ClassVar[Mapping[str, Any]] = {"mu": 0}

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        if not model.offers(self.feature):
            raise fl.SettingError(
                f"MOON compares features, and {model.name} has no method or layer {self.feature!r}: define "
                f"features(x), which forward calls, or set feature to one of its layers, {', '.join(model.layers)}"
            )
        if self.previous == "random" and not model.seeded:
            raise fl.SettingError(
                f"MOON cannot draw a random {model.name} from a module: give fl.Model a function, or its class"
            )
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Maybe[fl.Weights]:
        if self.previous == "received":
            return fl.Maybe.none(initial)
        return fl.Maybe.some(model.init(key) if self.previous == "random" else initial)

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Maybe[fl.Weights]], w: fl.Weights
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        model, task, features = client.model, client.task, Features(client.model, self.feature)
        batches = client.train.annotate("z_glob", features, w).annotate("z_prev", features, client.state.otherwise(w))

        def loss(w: fl.Weights, batch: fl.Batch) -> fl.BatchLoss:
            (logits, z), moved = model.train_features(w, batch, self.feature)
            term = batch.mean(contrast(z, batch.z_glob, batch.z_prev, self.tau))
            value = fl.objective(task, logits, batch, w.params) + self.mu * term  # (3)
            return fl.BatchLoss(value, logits, fl.Weights(w.params, moved))

        w_k = self.train(client, w, loss=loss, batches=batches)
        return fl.Maybe.some(w_k), client.weigh(w_k, self.aggregation)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


def contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """Return the contrastive term of each example, [B], from features [B, D]; stable for every tau (eq. 3)."""
    nearer = F.cosine_similarity(z, z_prev, -1) - F.cosine_similarity(z, z_glob, -1)
    return -F.logsigmoid(-nearer / tau)


@dataclass(frozen=True)
class Features:
    """A model's features as a function (weights, x) -> [B, D], as `Batches.annotate` wants it: equal ones are equal."""

    model: fl.Model
    name: str = "features"

    def __call__(self, weights: fl.Weights, x: Tensor) -> Tensor:
        return self.model.features(weights, x, self.name)

    @property
    def by_batch(self) -> bool:
        return self.model.by_batch
