"""Local-only training: every client on its own data alone, from the common initial model. The lower reference.

Down: nothing (the initial model once, as the client's own). Up: nothing. Kept by the client: its model.
A client trains when it is in the cohort, so that computation equals that of the other methods of a comparison; with
`schedule = "every_round"` everybody trains in every round. With one client it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedloom.core.algorithm import Algorithm
from fedloom.core.client import Client, on_client
from fedloom.core.cohort import Cohort
from fedloom.core.model import Model
from fedloom.core.types import Weights


@dataclass(frozen=True, kw_only=True)
class LocalOnly(Algorithm[tuple[()], Weights]):
    """Train each client alone, without federation."""

    schedule: Literal["cohort", "every_round"] = "cohort"
    """Clients that train in a round: its `cohort`, or everybody (`every_round`)."""

    @property
    def asks_everyone(self) -> bool:
        return self.schedule == "every_round"

    def init(self, model: Model, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: Weights, model: Model, key: int) -> Weights:
        return initial

    @on_client
    def local_update(self, client: Client[Weights]) -> tuple[Weights, tuple[()]]:
        return self.train(client, client.state, loss=client.loss), ()

    def round(self, server: tuple[()], cohort: Cohort) -> tuple[()]:
        cohort.gather(self.local_update)
        return server

    def personal(self, client: Client[Weights], sent: tuple[()]) -> Weights:
        return client.state
