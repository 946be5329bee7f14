"""FedAvg with fine-tuning: FedAvg's rounds, each client evaluated by the global model after training on its examples.

The strong simple baseline of personalised learning: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage. *Federated
Evaluation of On-device Personalization.* 2019. https://arxiv.org/abs/1910.10252.

    evaluated by    u_k: `ft_epochs` epochs of SGD on F_k from the newest w, with the rate `ft_lr`; then discarded

Clients fine-tune whenever they are evaluated. An evaluation then costs as much as a round of all clients that are
evaluated: `eval_every` says how often, `panel` how many.

Down: the model. Up: the model. Kept by the client: nothing. The server's weights are those of FedAvg: fine-tuning draws
its own batches, and changes no state.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

import fedloom as fl
from fedloom.algorithms.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgFT(FedAvg):
    """Average models, and evaluate each client by the mean after fine-tuning."""

    ft_epochs: fl.Count | None = None
    """Passes over the client's examples; none: as in a round."""
    ft_lr: fl.Positive | None = None
    """Learning rate; none: that of the round."""
    ft_part: Literal["all", "head"] = "all"
    """Trained layers: `all`, or the `head`, which is the last one."""

    @property
    def evaluation_training(self) -> fl.Local:
        return (
            self.local if self.ft_epochs is None else dataclasses.replace(self.local, epochs=self.ft_epochs, steps=None)
        )

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        rate = client.lr if self.ft_lr is None else torch.full_like(client.lr, self.ft_lr)
        part = "*" if self.ft_part == "all" else "last:1"
        return self.train(fl.replace(client, lr=rate), self.received(client, sent), only=part)
