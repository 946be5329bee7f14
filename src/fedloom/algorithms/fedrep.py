"""FedRep: a representation that is shared, and heads of the clients' own, which are trained first.

Collins, Hassani, Mokhtari, Shakkottai. *Exploiting Shared Representations for Personalized Federated Learning.* ICML
2021. https://arxiv.org/abs/2102.07078, Algorithm 1.

    client       h_k: `head_epochs` of SGD on F_k(b, h_k), b fixed as received
                 b_k: `local.epochs` of SGD on F_k(b, h_k) from b, h_k fixed as it now is
    server       b <- mean_k b_k                                                   over the clients that answered

What is fixed has no step, no weight decay and no momentum; each of the two trainings has momentum and batches of its
own, of which a round plans those of the head first. BatchNorm statistics move in both. Where `local.steps` is given,
the head takes the share of steps that its epochs are of `local.epochs`.

Down: the representation b. Up: b_k. Kept by the client: its head, at first that of the common initial model, and never
replaced. `personal_layers = ""` with `head_epochs = 0` is FedAvg with `aggregation = "uniform"`.

Differences from the paper: none in the steps; BatchNorm statistics of the representation are averaged.

Differences from the authors' code: a client's first head is the initial one (theirs is the live tensor of the global
network, which follows the others' heads until the client's first round).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import fedloom as fl
from fedloom.algorithms.fedper import FedPer


@dataclass(frozen=True, kw_only=True)
class FedRep(FedPer):
    """Train the personal layers, then the shared ones under them."""

    aggregation: fl.Aggregation = "uniform"
    """Weight of a client in the mean: `uniform`, as in the paper, or its number of `samples`."""
    head_epochs: fl.WholeNumber = 10
    """Passes over the client's examples that train its personal layers, before the `local.epochs` of the shared ones;
    0: personal layers are never trained. The default is ours."""

    neutral: ClassVar[Mapping[str, Any]] = {"personal_layers": "", "head_epochs": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_epochs and not self.personal_layers.split():
            raise fl.SettingError(
                f"FedRep trains personal layers for {self.head_epochs} epochs, and personal_layers = "
                f"{self.personal_layers!r} names none: name some, or set head_epochs = 0, which is FedAvg"
            )

    @property
    def training(self) -> fl.Local:
        return self.local.longer(self.head_epochs)

    @property
    def paced_by(self) -> str | None:
        """Setting that paces the loss: the head trains before the shared layers', and as long as a round's is."""
        return "head_epochs" if self.head_epochs else None

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], base: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        w_k, steps, all_epochs = self.received(client, base), client.train.num_steps, self.training.epochs
        head_steps = steps - steps * self.local.epochs // all_epochs
        if self.head_epochs:
            w_k = self.train(client, w_k, batches=client.train.first(head_steps), only=self.personal_layers)
        w_k = self.train(client, w_k, batches=client.train.after(head_steps), only=self.shared)
        return self.answer(client, w_k)
