"""Local-only training: every client on its own data alone, from the common initial model. The lower reference.

With few classes per client it is a strong one.

Down: nothing (the initial model once, as the client's own). Up: nothing. Kept by the client: its model. With one client
it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class LocalOnly(fl.Algorithm[tuple[()], fl.Weights]):
    """Train each client alone, without federation."""

    schedule: Literal["cohort", "every_round"] = "cohort"
    """Clients that train in a round. `cohort`: those that are in the cohort, so that computation equals that of the
    other methods of a comparison. `every_round`: all, whatever sampler and cohort size say."""

    @property
    def requires(self) -> fl.Requires:
        return fl.Requires(everyone=self.schedule == "every_round")

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> tuple[()]:
        return ()

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights]) -> tuple[fl.Weights, tuple[()]]:
        return self.train(client, client.state, loss=client.loss), ()

    def round(self, server: tuple[()], cohort: fl.Cohort) -> tuple[()]:
        cohort.gather(self.local_update)
        return server

    def personal(self, client: fl.Client[fl.Weights], sent: tuple[()]) -> fl.Weights:
        return client.state
