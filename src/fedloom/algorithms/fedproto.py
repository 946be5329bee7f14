"""FedProto: clients of any architecture that share the mean features of each class, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang. *FedProto: Federated Prototype Learning across Heterogeneous Clients.* AAAI
2022. https://arxiv.org/abs/2105.00243, eq. 3, 6 and 7, Algorithm 1.

    client   w_k: E epochs on  L_k(w) + lam R(w),   R = mean over batch and features of (z - C_y)^2             (7)
             C_kj = mean z of the client's examples of class j,   n_kj their number                             (3)
    server   C_j <- sum_k n_kj C_kj / sum_k n_kj        over the clients that answered and have class j         (6)

z is the input of the network's last layer, which must be linear, and equally wide in all architectures. An example
whose class has no C_j yet counts 0 in R and stays in the divisor; so round 0 is local training. A class that nobody in
a round has keeps its C_j.

Down: C, and which classes have one. Up: C_k and n_k. Kept by the client: its model, from the start; the server has
none. There is no value that gives FedAvg (nothing is averaged but prototypes); lam = 0 is local-only.

Differences from the paper: eq. 6 as printed divides by the number of owners, too, and C_j shrinks (`eq6_literal`).

Differences from the authors' code: it weighs clients alike (`uniform`), collects features during the last epoch
(`last_epoch`), forgets a C_j that nobody in a round has, and leaves out the last, shorter batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

import fedloom as fl
from fedloom.algorithms.shared.linear_head import EndsLinear, class_sums


@fl.state
class Server:
    C: Tensor  # [classes, D], zeros where not `known`
    known: Tensor  # [classes] bool


@dataclass(frozen=True, kw_only=True)
class FedProto(EndsLinear[Server, fl.Weights]):
    """Pull the features of each class to a common prototype."""

    lam: Annotated[fl.NonNegative, fl.Grid(0.1, 1.0, 10.0)] = 1.0
    """Weight of R; 1 is the default of the authors' code, the grid is ours."""
    proto_from: Literal["after_training", "last_epoch"] = "after_training"
    """Features of which C_k is the mean. `after_training`: of all examples by the trained model, as in eq. 3.
    `last_epoch`: those seen in the last epoch, each before the step on its batch, as in the authors' code."""
    proto_weighting: Literal["samples", "uniform", "eq6_literal"] = "samples"
    """Weight of C_kj in C_j: its number of `samples`, or `uniform` over the clients that have class j, as in the
    authors' code. `eq6_literal`: `samples`, divided once more by the number of these clients."""
    inference: Literal["head", "prototypes"] = "head"
    """Answers by which clients are evaluated: of the model's `head`, or by the nearest of the server's `prototypes`."""

    @property
    def requires(self) -> fl.Requires:
        return super().requires | fl.Requires(mixed=True)

    @property
    def paced_by(self) -> str | None:
        """Setting that paces the loss: features are collected in the last of all epochs."""
        return "proto_from" if self.proto_from == "last_epoch" else None

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        if self.proto_from == "last_epoch" and self.local.steps is not None:
            raise fl.SettingError(
                f"last_epoch needs training by epochs, got local.steps = {self.local.steps}: set none"
            )
        bound = super().bind(federation, models)
        bound.check_alike(models, bias=self.inference == "prototypes")
        return bound

    def init(self, model: Mapping[str, fl.Model], key: int, *, num_clients: int) -> Server:
        head = next(iter(self.heads.values()))
        return Server(
            C=torch.zeros(head.num_classes, head.width), known=torch.zeros(head.num_classes, dtype=torch.bool)
        )

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], server: Annotated[Server, "predictions"]
    ) -> tuple[fl.Weights, Annotated[tuple[Tensor, Tensor], "predictions"]]:
        model, task, head = client.model, client.task, self.head(client.model)
        collects, late = self.proto_from == "last_epoch", (self.local.epochs - 1) / self.local.epochs

        def loss(w: fl.Weights, batch: fl.Batch, seen: fl.Weights, server: Server) -> fl.BatchLoss:
            logits, z, moved = head.train(model, w, batch)
            apart = server.known[batch.y] * (z - server.C[batch.y]).square().mean(-1)
            if collects:
                last = torch.where(batch.progress >= late, class_sums(z.detach(), batch, len(server.C)), 0)
                seen = fl.Weights({}, {"z": seen.buffers["z"] + last})
            value = fl.objective(task, logits, batch, w.params) + self.lam * batch.mean(apart)  # (7)
            return fl.BatchLoss(value, logits, moved, seen)

        def see(sums: Tensor, batch: fl.Batch, w: fl.Weights) -> Tensor:
            return sums + class_sums(model.features(w, batch.x, head.features), batch, sums.shape[0])

        zero = torch.cat([0 * server.C, 0 * server.C[:, :1]], 1)  # sums of z by class, and numbers of examples
        w_k, seen = self.train_beside(client, client.state, fl.Weights({}, {"z": zero}), server, loss=loss)
        sums = seen.buffers["z"] if collects else fl.fold(see, zero, client.train.whole(), w_k)
        return w_k, (sums[:, :-1] / sums[:, -1:].clamp(min=1), sums[:, -1])  # C_k and n_k (3)

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        C_k, n_k = cohort.gather(self.local_update, server).value  # [K, classes, D], [K, classes]
        there, C = n_k.sum(0) > 0, gathered(C_k, n_k, self.proto_weighting)
        return Server(C=torch.where(there[:, None], C, server.C), known=there | server.known)

    def evaluation_payload(self, server: Server, model: fl.Model) -> fl.Maybe[Server]:
        return fl.Maybe.some(server) if self.inference == "prototypes" else fl.Maybe.none(server)

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Maybe[Server]) -> fl.Weights:
        w, head, server = client.state, self.head(client.model), sent.value
        return w if self.inference == "head" else w.merge(head.nearest(server.C, server.known))


def gathered(C_k: Tensor, n_k: Tensor, weighting: str) -> Tensor:
    """Return C, [classes, D], of C_k [K, classes, D] and n_k [K, classes]; zeros for a class that nobody has (6)."""
    owns = (n_k > 0).double()
    weight = owns if weighting == "uniform" else n_k.double()
    mean = (weight[..., None] * C_k).sum(0) / weight.sum(0).clamp(min=1)[:, None]
    return (mean / owns.sum(0).clamp(min=1)[:, None] if weighting == "eq6_literal" else mean).to(C_k.dtype)
