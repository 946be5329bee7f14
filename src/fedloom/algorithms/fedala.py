"""FedALA: each client mixes its last model with the global one, weight by weight, before it trains.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. *FedALA: Adaptive Local Aggregation for Personalized Federated Learning.* AAAI
2023. https://arxiv.org/abs/2212.01197, Algorithm 1.

    mixture      v^ = v_k + (w - v_k) * W_k       in the last p layers;  w in the others
    learning     W_k <- clip( W_k - eta grad L_k(v^) * (w - v_k), 0, 1 )           on one batch; * entry by entry
    client       v_k: E epochs of SGD on F_k from v^
    server       w <- sum_k (n_k / n) v_k                                          over the clients that answered

W_k begins at 1 and stays with the client. It is learnt on s percent of the client's examples, which stand beside each
other and begin at a random place in each round, in stored order and in batches of the local size. The first time that w
is not v_k, passes go on until the standard deviation of the last 10 losses, each of a pass's last batch, is below
`threshold`, `max_passes` at most; in later rounds there is one pass. BatchNorm statistics are the received ones. A
client is evaluated by v_k.

Down: w. Up: v_k. Kept by the client: v_k, at first the common initial model, and W_k. No value gives FedAvg (with eta =
0 training begins at w, up to rounding).

Differences from the paper: passes have a bound.

Differences from the authors' code: p counts layers (theirs: tensors, so that its 2 is p = 1); clients are evaluated
after training (theirs: by v^ of the next round); clients that do not train in a round do not mix either (theirs: all
mix).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

import fedloom as fl

WINDOW = 10  # losses whose standard deviation says that W_k has converged


@fl.state
class Own:
    v: fl.Weights
    W: fl.Params
    begun: Tensor  # [] bool: W has been learnt


@dataclass(frozen=True, kw_only=True)
class FedALA(fl.Algorithm[fl.Weights, Own]):
    """Begin local training at a mixture of the client's model and the global one."""

    eta: Annotated[fl.NonNegative, fl.Grid(0.1, 1.0, 10.0)] = 1.0
    """Learning rate of W_k; 1 is the paper's, the grid is ours."""
    p: Annotated[fl.WholeNumber, fl.Grid(1, 2, 0)] = 1
    """Last layers that are mixed, as 1 in the authors' code; 0: all."""
    s: Annotated[float, fl.Gt(0), fl.Le(100)] = 80.0
    """Percentage of the client's examples on which W_k is learnt in a round; 80 in the authors' code."""
    threshold: fl.NonNegative = 0.1
    """Standard deviation of losses at which W_k has converged the first time; 0.1 in the authors' code."""
    max_passes: fl.Count = 30
    """Passes after which it counts as converged. The bound is ours: all clients of a stack need one."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean: its number of `samples`, the paper's, or `uniform`."""

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> fl.Weights:
        return model.init(key)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> Own:
        mixed = model.chosen(f"last:{self.p}" if self.p else "*")
        ones = fl.Params({name: torch.ones_like(initial.params[name]) for name in mixed})
        return Own(v=initial, W=ones, begun=torch.zeros((), dtype=torch.bool))

    @fl.on_client
    def local_update(self, client: fl.Client[Own], w: fl.Weights) -> tuple[Own, fl.Weighted[fl.Weights]]:
        W, begun = self.learnt(client, w)
        v = self.train(client, mixture(client.state.v, w, W))
        return Own(v=v, W=W, begun=begun), client.weigh(v, self.aggregation)

    def learnt(self, client: fl.Client[Own], w: fl.Weights) -> tuple[fl.Params, Tensor]:
        """Return W_k as this round leaves it, and whether it has been learnt, [] bool."""
        v, W, begun = client.state.v, client.state.W, client.state.begun
        task_loss, same = client.loss, (w.params - v.params).sq_norm() == 0  # as where all is initial

        def step(
            carry: tuple[fl.Params, Tensor], batch: fl.Batch, v: fl.Weights, w: fl.Weights
        ) -> tuple[fl.Params, Tensor]:
            W = carry[0]
            g, loss, _ = fl.batch_gradient(task_loss, mixture(v, w, W), batch)
            slope = (g * (w.params - v.params)).select(W.__contains__)
            return fl.tree.map_tree(lambda t: t.clamp(0, 1), W - self.eta * slope), loss.type_as(carry[1])

        batches = client.train.block(self.s / 100, client.key).in_order(self.local.batch_size)
        losses, done = [torch.zeros_like(same, dtype=torch.float32)], same
        for _ in range(self.max_passes):
            left = batches.first(torch.where(done, 0, batches.num_steps))
            W, loss = fl.fold(step, (W, losses[0]), left, v, w)
            losses.append(loss)
            done = done | begun
            if len(losses) > WINDOW + 1:
                done = done | (torch.stack(losses[-WINDOW:]).std(correction=0) < self.threshold)
        return W, begun | ~same

    def round(self, w: fl.Weights, cohort: fl.Cohort) -> fl.Weights:
        return cohort.reduce(self.local_update, w).mean  # type: ignore[no-any-return]

    def personal(self, client: fl.Client[Own], sent: fl.Weights) -> fl.Weights:
        return client.state.v

    def global_weights(self, server: fl.Weights) -> fl.Weights:
        return server


def mixture(v: fl.Weights, w: fl.Weights, W: fl.Params) -> fl.Weights:
    """Return v + (w - v) * W where there is a W, and w elsewhere."""
    old, new = v.params.select(W.__contains__), w.params.select(W.__contains__)
    return w.merge(fl.Weights(old + (new - old) * W))
