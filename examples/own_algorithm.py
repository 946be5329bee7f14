"""An algorithm of your own, outside the package: FedDyn, with state on the server and on the clients.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. *Federated Learning Based on Dynamic Regularization.*
ICLR 2021, Algorithm 1.

    client   w_k = argmin L_k(w) - <g_k, w> + alpha / 2 ||w - w_s||^2,    g_k <- g_k - alpha (w_k - w_s)
    server   h <- h - alpha / N sum_k (w_k - w_s),                        w_s <- mean w_k - h / alpha

Down: w_s. Up: w_k. Kept by the client: g_k, zero at first. The argmin is `local` steps of SGD.

python own_algorithm.py    holds it to the promises of every algorithm, then trains on the clients of own.py
"""

from __future__ import annotations

from dataclasses import dataclass

import own
import torch

import fedloom as fl
from fedloom.core import tree
from fedloom.testing import check

Params = dict[str, torch.Tensor]


@fl.state
class Server:
    w: fl.Weights
    h: Params  # like w.params


@dataclass(frozen=True, kw_only=True)
class FedDyn(fl.Algorithm[Server, Params]):
    """`alpha` > 0: how strongly clients are held to the global model."""

    alpha: float = 0.1

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        w = model.init(key)
        return Server(w=w, h=tree.zeros_like(w.params))

    def init_client(self, server: Server, model: fl.Model, key: int) -> Params:
        return tree.zeros_like(server.h)

    @fl.on_client
    def local_update(self, client: fl.Client[Params], sent: fl.Weights) -> tuple[Params, fl.Weighted[fl.Weights]]:
        model, task = client.model, client.task

        def loss(w: fl.Weights, batch: fl.Batch, start: Params, g: Params) -> tuple[torch.Tensor, fl.Weights]:
            logits, buffers = model.train(w, batch)
            pull = 0.5 * self.alpha * tree.sq_norm(tree.sub(w.params, start)) - tree.dot(g, w.params)
            return task.loss(logits, batch) + pull, fl.Weights(params=w.params, buffers=buffers)

        # Tensors are passed, not captured: in a stack every client has its own. Model and task are the same for all.
        start, g = sent.params, client.state
        w = fl.minimise(loss, sent, client.train, self.local.optimiser, start, g, lr=client.lr)
        g = tree.axpy(-self.alpha, tree.sub(w.params, start), g)
        return g, fl.Weighted(value=w, weight=torch.ones_like(client.num_examples))

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        replies = cohort.reduce(self.local_update, broadcast=(server.w,))
        if not replies:  # nobody answered
            return server
        mean, share = replies.mean, len(replies.cohort.ids) / cohort.num_clients
        h = tree.axpy(-self.alpha * share, tree.sub(mean.params, server.w.params), server.h)
        w = fl.Weights(params=tree.axpy(-1.0 / self.alpha, h, mean.params), buffers=mean.buffers)
        return Server(w=w, h=h)

    def personal(self, server: Server, client: fl.Client[Params]) -> fl.Weights:
        return server.w

    def global_weights(self, server: Server) -> fl.Weights:
        return server.w

    @property
    def personalises(self) -> bool:
        return False  # clients are judged by the global model


if __name__ == "__main__":
    print("checks that do not apply:", check(FedDyn()))
    job = own.job(rounds=10)
    local = fl.Local(epochs=3, batch_size=20, optimiser=fl.SGD(lr=0.05))
    for algorithm in (fl.FedAvg(local=local), FedDyn(local=local)):
        history = fl.run(algorithm, job.federation, own.network, job.settings)
        print(f"{history.algorithm:7s} global accuracy {history.last('global_accuracy'):.3f}")
