"""Centralised training: one client that holds everybody's examples. The upper reference; not federated.

Each round takes as many steps as a whole cohort would, by `local.epochs` or `local.steps` of each client, so that its
computation equals that of the other methods of a comparison. Each client's last batch may be short, so the steps of a
full cohort are somewhat more than its epochs of everybody's examples. The optimiser's momentum starts empty each round,
as that of clients does.

Down: nothing. Up: nothing. Kept by the client: nothing. It is FedAvg with one client, except that 0 bytes travel.
"""

from __future__ import annotations

from dataclasses import dataclass

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Centralised(fl.Algorithm[fl.Weights, tuple[()]]):
    """Training on all clients' data in one place."""

    requires = fl.Requires(one_place=True)

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    @fl.on_client
    def local_update(self, client: fl.Client[tuple[()]], w: fl.Weights) -> tuple[tuple[()], fl.Weighted[fl.Weights]]:
        return (), client.weigh(self.train(client, w, loss=client.loss), "samples")

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        trained: fl.Weights = cohort.reduce(self.local_update, w).mean  # of the one client
        return trained

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server
