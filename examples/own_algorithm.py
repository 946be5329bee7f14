"""An algorithm of your own, outside the package: Ditto, where every client keeps a personal model near the global one.

Li, Hu, Beirami, Smith. *Ditto: Fair and Robust Federated Learning Through Personalization.* ICML 2021, Algorithm 1.

    client   w_k = local training from w                                (uploaded)
             v_k <- local training from v_k on L_k(v) + lam / 2 ||v - w||^2     (kept)
    server   w <- sum_k (n_k / n) w_k

Down: w. Up: w_k. Kept by the client: v_k, the global model at first. Both trainings take `local` steps, on the same
batches; in fedloom's own file, `ditto`, each has batches of its own.

python own_algorithm.py    holds it to the promises of every algorithm, then trains on the clients of own.py
"""

from __future__ import annotations

from dataclasses import dataclass

import own

import fedloom as fl
from fedloom.testing import check

Upload = fl.Weighted[fl.Weights]


@dataclass(frozen=True, kw_only=True)
class Ditto(fl.Algorithm[fl.Weights, fl.Weights]):
    """`lam` >= 0: how strongly a personal model is held to the global one."""

    lam: fl.NonNegative = 0.1

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], w: fl.Weights) -> tuple[fl.Weights, Upload]:
        task_loss = client.loss

        def held(v: fl.Weights, batch: fl.Batch, w: fl.Weights) -> fl.BatchLoss:
            return task_loss(v, batch) + self.lam / 2 * (v.params - w.params).sq_norm()

        # The second w is passed on to `held`, not captured by it: in a stack of clients, each may have its own.
        v_k = self.train(client, client.state, w, loss=held)
        w_k = self.train(client, w, loss=task_loss)
        return v_k, client.weigh(w_k, "samples")

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
