"""FedPer: a base that is shared, and layers that stay with each client.

Arivazhagan, Aggarwal, Singh, Choudhary. *Federated Learning with Personalization Layers.* 2019.
https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

    client       (b_k, h_k): E epochs of SGD on F_k(b, h_k), both together, from the base received and the own layers
    server       b <- sum_k (n_k / n) b_k                                          over the clients that answered

A client that takes part late has untrained layers on a trained base, and is evaluated by that.

Down: the base. Up: the base. Kept by the client: its own layers, at first those of the common initial model, and never
replaced. `personal_layers = ""` is FedAvg, and FedAvg with `shared = "* !last:1"` is this method with one own layer.

Differences from the paper: BatchNorm statistics of the base are averaged; those of own layers stay.

Differences from PFLlib: none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class FedPer(fl.Averaging[fl.Weights]):
    """Share all layers but the personal ones."""

    personal_layers: str = "last:1"
    """Tensors that stay with each client: glob patterns of their names, or `last:N` for the last N layers, separated by
    spaces. This is `shared` of FedAvg by the paper's name; FedPer has no `shared`."""
    shared: str = field(init=False, default="*")

    neutral: ClassVar[Mapping[str, Any]] = {"personal_layers": ""}

    def __post_init__(self) -> None:
        words = ["*", *(f"!{word}" for word in self.personal_layers.split())]
        object.__setattr__(self, "shared", " ".join(words))
        super().__post_init__()

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], base: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        w_k = self.train(client, self.received(client, base), loss=client.loss)
        return self.answer(client, w_k)

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return w.merge(cohort.reduce(self.local_update, self.down(w)).mean)
