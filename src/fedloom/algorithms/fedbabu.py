"""FedBABU: only the body is trained and shared, under a head that stays as it began; each client then fine-tunes.

Oh, Kim, Yun. *FedBABU: Toward Enhanced Representation for Federated Image Classification.* ICLR 2022.
https://arxiv.org/abs/2106.06042, Algorithm 1.

    client          b_k: E epochs of SGD on F_k(b, h_0) from the body received, the initial head h_0 fixed
    server          b <- sum_k (n_k / n) b_k                                       over the clients that answered
    evaluated by    u_k: `finetune_epochs` of SGD on F_k from (b, h_0), of all layers or of a part; then discarded

What is fixed has no step, no weight decay and no momentum. The server's model, (b, h_0), is that before fine-tuning:
`accuracy`. Clients fine-tune whenever they are evaluated, with the rate of the round and batches of their own. An
evaluation then costs as much as a round of all clients that are evaluated: `eval_every` says how often, `panel` how
many.

Down: the body. Up: b_k. Kept by the client: h_0, the common initial head. `personal_layers = ""` is FedAvg.

Differences from the paper: BatchNorm statistics of the body are averaged; fine-tuning is evaluated during training,
too, where the paper has it after the last round.

Differences from the authors' code: the mean is weighted by samples, as the paper has it (theirs: a plain mean).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import fedloom as fl
from fedloom.algorithms.fedper import FedPer


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedPer):
    """Train and share the body under the initial head, and evaluate each client after fine-tuning."""

    personal_layers: str = "last:1"
    """The head, which no round trains: glob patterns of its tensors' names, or `last:N` for the last N layers,
    separated by spaces."""
    finetune: Literal["full", "head", "body"] = "full"
    """Layers that fine-tuning trains: `full`, all of them, as is the paper's default; the `head`; or the `body`."""
    finetune_epochs: fl.Count = 5
    """Passes over the client's examples in fine-tuning, also where rounds have `local.steps`."""

    neutral = fl.GlobalOnly(personal_layers="", finetune="full")  # clients are fine-tuned before they are evaluated

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finetune == "head" and not self.personal_layers.split():
            raise fl.SettingError(
                f"FedBABU fine-tunes the head, got finetune = 'head' and personal_layers = {self.personal_layers!r}, "
                "which names none: name some, or set finetune = 'full'"
            )

    @property
    def evaluation_training(self) -> fl.Local:
        return dataclasses.replace(self.local, epochs=self.finetune_epochs, steps=None)

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Weights], base: fl.Weights
    ) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        return self.answer(client, self.train(client, self.received(client, base), only=self.shared))

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        parts = {"full": "*", "head": self.personal_layers, "body": self.shared}
        return self.train(client, self.received(client, sent), only=parts[self.finetune])

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
