"""pFedDF: FedDF whose clients are evaluated by the copy of the fused model that they trained last.

A comparator of KT-pFL (Zhang, Guo, Ma, Wang, Xu, Wu, NeurIPS 2021, https://arxiv.org/abs/2111.02801), a footnote there
without code; of Lin, Kong, Stich, Jaggi. *Ensemble Distillation for Robust Model Fusion in Federated Learning.* NeurIPS
2020. How clients are personalised is not said. Here, the copy of its architecture's fused model that a client has
trained on its own examples, its E local epochs, is what it uploads and what evaluates it.

Down: the model. Up: the model. Kept by the client: the model that it trained last. The server is that of `feddf`, in
every bit. A client that never took part is evaluated by the newest fused model. `student` is refused: with it no client
is sent a model that was fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

import fedloom as fl
from fedloom.algorithms.feddf import FedDF


@dataclass(frozen=True, kw_only=True)
class PFedDF(FedDF):
    """See `FedDF` for the settings."""

    neutral = fl.GlobalOnly(FedDF.neutral)  # the copy that a client has trained evaluates it

    def bind(self, federation: fl.Federation, models: Mapping[str, fl.Model]) -> Self:
        if self.student is not None:
            raise fl.SettingError(
                "pFedDF evaluates clients by their copies of the fused model of their architecture, and with student = "
                f"{self.student!r} none is fused but a student that clients are not sent: set student = None, or run "
                "FedDF"
            )
        return super().bind(federation, models)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Maybe[fl.Weights]:
        return fl.Maybe.none(initial)

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Maybe[fl.Weights]], w: fl.Weights
    ) -> tuple[fl.Maybe[fl.Weights], fl.Weighted[fl.Weights]]:
        _, upload = super().local_update(client, w)
        return fl.Maybe.some(upload.value), upload

    def personal(self, client: fl.Client[fl.Maybe[fl.Weights]], sent: fl.Weights) -> fl.Weights:
        return client.state.otherwise(sent)

    def has_personal(self, state: fl.Maybe[fl.Weights]) -> Tensor:
        return state.present
