from dataclasses import dataclass
from typing import ClassVar

import torch

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Recall(fl.Algorithm[fl.Weights, fl.Maybe[fl.Weights]]):
    lam: fl.NonNegative = 1.0
    T: fl.Positive = 2.0
    neutral: ClassVar[dict] = {"lam": 0.0}

    @property
    def requires(self):
        return fl.Requires(targets=("classes",), logits=2)

    def init(self, model, key, *, num_clients):
        return model.init(key)

    def init_client(self, initial, model, key):
        return fl.Maybe.none(initial)

    @fl.on_client
    def local_update(self, client, w: fl.Weights):
        present = client.state.present
        task_loss = client.loss
        batches = client.train.annotate("teacher", client.model, client.state.otherwise(w))

        def loss(v, batch, weight):
            found = task_loss(v, batch)
            return found + weight * batch.mean(fl.distillation(found.logits, batch.teacher, self.T))

        weight = torch.where(present, self.lam, 0.0)
        trained = self.train(client, w, weight, loss=loss, batches=batches)
        return fl.Maybe.some(trained), client.weigh(trained, "samples")

    def round(self, server, cohort):
        return cohort.reduce(self.local_update, server).mean

    def global_weights(self, server):
        return server
