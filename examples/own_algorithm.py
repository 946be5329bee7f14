"""An algorithm of your own, outside the package: Ditto, where every client keeps a personal model near the global one.

Li, Hu, Beirami, Smith. *Ditto: Fair and Robust Federated Learning Through Personalization.* ICML 2021, Algorithm 1.

    client   w_k = local training from w                                (uploaded)
             v_k <- local training from v_k on L_k(v) + lam / 2 ||v - w||^2     (kept)
    server   w <- sum_k (n_k / n) w_k

Down: w. Up: w_k. Kept by the client: v_k, the global model at first. Both trainings take `local` steps.

python own_algorithm.py    holds it to the promises of every algorithm, then trains on the clients of own.py
"""

from __future__ import annotations

from dataclasses import dataclass

import own
import torch

import fedloom as fl
from fedloom import task_loss, tree
from fedloom.testing import check

Upload = fl.Weighted[fl.Weights]


@dataclass(frozen=True, kw_only=True)
class Ditto(fl.Algorithm[fl.Weights, fl.Weights]):
    """`lam` >= 0: how strongly a personal model is held to the global one."""

    lam: float = 0.1

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], w: fl.Weights) -> tuple[fl.Weights, Upload]:
        plain, optimiser = task_loss(client.model, client.task), self.local.optimiser

        def held(v: fl.Weights, batch: fl.Batch, w: fl.Weights) -> tuple[torch.Tensor, fl.Weights]:
            loss, trained = plain(v, batch)
            return loss + 0.5 * self.lam * tree.sq_norm(tree.sub(v.params, w.params)), trained

        # w is passed behind the optimiser, not captured by `held`: in a stack of clients, each has its own.
        personal = fl.minimise(held, client.state, client.train, optimiser, w, lr=client.lr)
        trained = fl.minimise(plain, w, client.train, optimiser, lr=client.lr)
        return personal, fl.Weighted(value=trained, weight=client.num_examples)

    def round(self, server: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, server).mean  # where nobody answers, the round ends here

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        return client.state

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


if __name__ == "__main__":
    print("checks that do not apply:", check(Ditto()))
    job = own.job(rounds=10)
    local = fl.Local(epochs=3, batch_size=20, optimiser=fl.SGD(lr=0.05))
    for algorithm in (fl.FedAvg(local=local), Ditto(local=local)):
        history = fl.run(algorithm, job.federation, own.network, job.settings)
        print(f"{history.algorithm:6s} personal accuracy {history.last('personal_accuracy'):.3f}")
