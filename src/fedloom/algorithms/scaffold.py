"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning.* ICML
2020. https://arxiv.org/abs/1910.06378, Algorithm 1, option II.

    local step   y <- y - lr (g(y) - c_i + c)
    client       c_i+ = c_i - c + (x - y) / (A lr)
    server       x <- x + server_lr * (mean y - x),   c <- c + (|S| / N) mean(c_i+ - c_i)

N counts all clients (with this architecture), |S| those that answered. The correction enters the gradient before weight
decay and momentum, as in the FedNTD authors' code. With momentum and strong Dirichlet skew the method is known to
diverge in their protocol. The change of c_i is uploaded, as the paper has it; with option II the server could compute
it from y. Buffers are averaged, whatever `server_lr`.

Down: x and c. Up: y and c_i+ - c_i. Kept by the client: c_i (zero at first). With c and all c_i zero (the first round)
and server_lr = 1 it is FedAvg.

Differences from the paper: the default mean of y is weighted by samples; the default `divisor` counts momentum; Adam,
whose steps are no sum of gradients, is refused.

Differences from the authors' code: |S| / N is formed from the clients that answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import fedloom as fl
from fedloom.algorithms.shared.gradient_sums import SumsGradients


@fl.state
class Server:
    x: fl.Weights
    c: fl.Params  # like x.params


@dataclass(frozen=True, kw_only=True)
class Scaffold(SumsGradients[Server, fl.Params]):
    """Correct local steps by control variates."""

    server_lr: fl.Positive = 1.0
    """Step of the server; 1 is the paper's global step size in its experiments."""
    aggregation: fl.Aggregation = "samples"
    """Weight of a client in the mean of y: its number of `samples`, as in the FedNTD authors' code, or `uniform`, the
    paper's."""
    divisor: Literal["adaptive", "steps"] = "adaptive"
    """A, by which control variates are divided. `adaptive`, as in the FedNTD authors' code: the number of plain SGD
    steps to which n steps with momentum m amount, (n - m (1 - m^n) / (1 - m)) / (1 - m); Nesterov's momentum counts
    like heavy-ball momentum. `steps`, the textbook: n. With momentum 0.9 and 50 steps, `steps` makes c_i about 8 times
    too large. Without momentum both agree."""

    def init(self, model: fl.Model, key: int, *, num_clients: int) -> Server:
        x = model.init(key)
        return Server(x=x, c=0.0 * x.params)

    def init_client(self, initial: fl.Weights, model: fl.Model, key: int) -> fl.Params:
        return 0.0 * initial.params

    @fl.on_client
    def local_update(
        self, client: fl.Client[fl.Params], x: fl.Weights, c: Annotated[fl.Params, "control"]
    ) -> tuple[fl.Params, tuple[fl.Weighted[fl.Weights], Annotated[fl.Weighted[fl.Params], "control"]]]:
        c_i, A = client.state, self.plain_steps(client, self.divisor)
        y = self.train(client, x, c - c_i, correct=lambda g, drift: g + drift)  # Alg. 1, l. 10
        dc = 1 / (A * client.lr) * (x.params - y.params) - c  # l. 12: c_i+ - c_i
        return c_i + dc, (client.weigh(y, self.aggregation), client.weigh(dc, "uniform"))

    def round(self, server: Server, cohort: fl.Cohort) -> Server:
        replies = cohort.reduce(self.local_update, server.x, server.c)
        y, dc = replies.mean
        return Server(x=server.x.towards(y, self.server_lr), c=server.c + replies.share * dc)  # l. 16, 17

    def global_weights(self, server: Server) -> fl.Weights:
        return server.x
