"""A method with two models of your own: twins that learn from each other on each client.

Two networks begin apart and travel together. On each client each learns the labels and what the other predicts, in the
same steps, as Zhang, Xiang, Hospedales, Lu. *Deep Mutual Learning.* CVPR 2018 has it on one machine.

    client k   a_k minimises L_k(a) + mu KL( p(b) || p(a) ),   b_k the same with a and b exchanged
    server     a <- sum_k (n_k / n) a_k,   b <- sum_k (n_k / n) b_k          over the clients that answered

Down: a and b. Up: a_k and b_k. Kept by the client: that of the two with the lower loss on its training examples, by
which it is evaluated. mu = 0 trains two models by FedAvg, side by side.

python own_twins.py    holds it to the promises of every algorithm, then trains on the clients of own.py
"""

from __future__ import annotations

from dataclasses import dataclass

import own
import torch

import fedloom as fl
from fedloom.testing import check


@fl.state
class Pair:
    a: fl.Weights
    b: fl.Weights


@dataclass(frozen=True, kw_only=True)
class Twins(fl.Algorithm[Pair, fl.Weights]):
    """`mu` >= 0: how much the twins learn from each other."""

    mu: fl.NonNegative = 0.5

    requires = fl.Requires(targets=("classes",), logits=2)  # it compares answers by a softmax

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Pair:
        return Pair(a=model.init(key), b=model.init(key ^ 1))

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Weights:
        return initial  # the weights of one network, as model.init makes them: not the Pair that `init` returned

    @fl.on_client
    def local_update(self, client: fl.Client[fl.Weights], sent: Pair) -> tuple[fl.Weights, fl.Weighted[Pair]]:
        task_loss = client.loss

        def loss(a: fl.Weights, batch: fl.Batch, b: fl.Weights) -> fl.BatchLoss:
            one, other = task_loss(a, batch), task_loss(b, batch)
            to_one = batch.mean(fl.distillation(other.logits.detach(), one.logits, 1))
            to_other = batch.mean(fl.distillation(one.logits.detach(), other.logits, 1))
            both = one + (other.value + self.mu * (to_one + to_other))
            return fl.replace(both, beside=other.weights)  # where the buffers of b have moved to

        a, b = self.train_beside(client, sent.a, sent.b, loss=loss)
        each = [fl.mean_loss(client.model, client.task, w, client.train.whole()) for w in (a, b)]
        better = fl.tree.pick((a, b), torch.stack(each).argmin())  # no Python branch on a tensor
        return better, client.weigh(Pair(a=a, b=b), "samples")

    def round(self, server: Pair, cohort: fl.Cohort) -> Pair:
        mean: Pair = cohort.reduce(self.local_update, server).mean
        return mean

    def personal(self, client: fl.Client[fl.Weights], sent: fl.Weights) -> fl.Weights:
        return client.state

    def global_weights(self, server: Pair) -> fl.Weights:
        return server.a


if __name__ == "__main__":
    print("checks that do not apply:", check(Twins()))
    job = own.job(rounds=10)
    local = fl.Local(epochs=3, batch_size=20, optimiser=fl.SGD(lr=0.05))
    for algorithm in (fl.FedAvg(local=local), Twins(local=local)):
        history = fl.run(algorithm, job.federation, own.network, job.settings)
        reached = (history.last("global_accuracy"), history.last("personal_accuracy"))
        print(f"{history.algorithm:6s} global accuracy {reached[0]:.3f}, personal {reached[1]:.3f}")
