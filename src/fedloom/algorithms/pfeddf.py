"""pFedDF: FedDF whose clients are judged by the copy of the fused model that they trained last.

A comparator of KT-pFL (Zhang, Guo, Ma, Wang, Xu, Wu, NeurIPS 2021, https://arxiv.org/abs/2111.02801), a footnote there
without code; of Lin, Kong, Stich, Jaggi. *Ensemble Distillation for Robust Model Fusion in Federated Learning.* NeurIPS
2020. How clients are personalised is not said; here: the copy of its architecture's fused model that a client has
trained on its own examples, its E local epochs, is what it uploads and what it is judged by.

Down: the model. Up: the model. Kept by the client: the model that it trained last. The server is FedDF's, in every bit.
A client that never took part is judged by the newest fused model. `student` of FedDF is refused: with it no client is
sent a model that was fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torch import Tensor

from fedloom.algorithms.feddf import FedDF
from fedloom.core.client import Client, on_client
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Maybe, Weighted, Weights

if TYPE_CHECKING:
    from fedloom.data import Federation


@dataclass(frozen=True, kw_only=True)
class PFedDF(FedDF):
    """See `FedDF` for the settings."""

    def suited(self, federation: Federation, models: Mapping[str, Model]) -> Self:
        if self.student is not None:
            raise SettingError(
                "pFedDF judges clients by their copies of the fused model of their architecture, and with student = "
                f"{self.student!r} none is fused but a student that clients are not sent: set student = None, or run "
                "FedDF"
            )
        return super().suited(federation, models)

    def init_client(self, initial: Weights, model: Model, key: int) -> Maybe[Weights]:
        return Maybe.none(initial)

    @on_client
    def local_update(self, client: Client[Maybe[Weights]], w: Weights) -> tuple[Maybe[Weights], Weighted[Weights]]:
        _, upload = super().local_update(client, w)
        return Maybe.some(upload.value), upload

    def personal(self, client: Client[Maybe[Weights]], sent: Weights) -> Weights:
        return client.state.otherwise(sent)

    def has_personal(self, state: Maybe[Weights]) -> Tensor:
        return state.present
