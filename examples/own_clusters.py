"""A clustering method of your own: what the server keeps of each client, and what each client is sent of its own.

Clients train one model together, and the server keeps the direction in which the first training of each went. Then it
cuts the clients in two by these directions, and each half goes on with a model of its own: one cut of Sattler, Müller,
Samek. *Clustered Federated Learning.* IEEE TNNLS 2021.

    client k    w_k = local training from w_s;   s = s(k), its half: 0 before the cut
    server      w_s <- sum_k (n_k / n) w_k       over the clients of half s that answered
    d_k         the direction of w_k - w_s in the client's first round, of length 1
    the cut     before round `together`: a and b are the d of the two clients least alike;  s(k) = [d_k b > d_k a]

Down: the model of the client's half. Up: w_k. Kept by the client: w_k, by which it is evaluated. Kept by the server:
two models, a and b; d_k of each client. A client that is asked for the first time after the cut is in half 0 once.

python own_clusters.py    holds it to the promises of every algorithm, then trains on clients of two kinds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import own
import torch
import torch.nn.functional as F
from torch import Tensor

import fedloom as fl
from fedloom.testing import check


@fl.state
class Halves:
    models: tuple[fl.Weights, fl.Weights]
    a: Tensor  # [d], 0 before the cut
    b: Tensor


@dataclass(frozen=True, kw_only=True)
class Halved(fl.Algorithm[Halves, fl.Weights]):
    """`together`: rounds before the cut."""

    together: fl.Count = 3

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Halves:
        w, none = model.init(key), torch.zeros(model.num_params)
        return Halves(models=(w, w), a=none, b=none)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial  # the weights of one network, as model.init makes them: not the Halves that `init` returned

    def init_rows(self, initial: fl.Weights, model: fl.Model, *, num_clients: int) -> dict[str, Any]:
        return {"direction": torch.zeros(model.num_params)}  # the row of a client that was never asked

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], w: fl.Weights) -> tuple[fl.Weights, fl.Weighted[fl.Weights]]:
        w_k = self.train(client, w)
        return w_k, client.weigh(w_k, "samples")

    def round(self, server: Halves, cohort: fl.Cohort) -> Halves:
        models, a, b = server.models, server.a, server.b
        if cohort.round == self.together:
            known = cohort.everyone.rows("direction")  # of all clients, asked in this round or not
            a, b = least_alike(known[known.any(1)])

        def half(clients: Tensor) -> Tensor:
            """Numbers of clients, [k] -> [k], 0 or 1."""
            d = cohort.rows("direction", clients)
            return (d @ b > d @ a).long()

        def model(clients: Tensor) -> tuple[fl.Weights]:
            return (fl.tree.stack([models[s] for s in half(clients).tolist()]),)  # [k, ...] in every tensor

        replies = cohort.gather(self.local_update, scatter=model)
        s = half(replies.ids)
        cohort.note(second_half=s.sum())
        new = replies.only(replies.ids[~cohort.rows("direction", replies.ids).any(1)])
        if new.values:
            moved = new.value.value.params - model(new.ids)[0].params
            new.cohort.keep("direction", F.normalize(torch.cat([t.flatten(1) for t in moved.values()], 1)))
        chose = [replies.only(replies.ids[s == n]) for n in (0, 1)]
        first, second = (there.mean if there.values else w for there, w in zip(chose, models, strict=True))
        return Halves(models=(first, second if cohort.round >= self.together else first), a=a, b=b)

    def personal(self, client: fl.Client[fl.Weights], sent: tuple[()]) -> fl.Weights:
        return client.state


def least_alike(directions: Tensor) -> tuple[Tensor, Tensor]:
    """Of directions [n, d], the two with the smallest product, [d] each; of none 0, so that nothing is cut."""
    if not len(directions):
        return directions.new_zeros(2, directions.shape[1]).unbind()
    n = len(directions)
    once = torch.ones(n, n, dtype=torch.bool).triu(1)  # each pair, whose two products may differ in the last digit
    a, b = divmod(int((directions @ directions.T).masked_fill(~once, torch.inf).argmin()), n)
    return directions[a], directions[b]


def two_kinds() -> fl.Federation:
    """20 clients, of whom each second one calls every class by the name of the next."""
    train, _ = own.arrays()
    partition, y = fl.iid(train.y, 20, seed=0), train.y.clone()
    for k in range(1, 20, 2):
        rows = partition.rows(k)
        y[rows] = (y[rows] + 1) % 10
    return fl.federate(fl.from_arrays(train.x, y), partition, test_fraction=0.2)


if __name__ == "__main__":
    print("checks that do not apply:", check(Halved(together=1)))
    local = fl.Local(epochs=3, batch_size=20, optimiser=fl.SGD(lr=0.05))
    settings = fl.RunSettings(rounds=10, cohort_size=20, seed=0, threads=1)
    for algorithm in (fl.FedAvg(local=local), Halved(local=local)):
        history = fl.run(algorithm, two_kinds(), own.network, settings)
        print(f"{history.algorithm:6s} personal accuracy {history.last('personal_accuracy'):.3f}")
