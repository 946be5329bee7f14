from dataclasses import dataclass
from typing import Annotated

import fedloom as fl


@fl.state
class Server:
    w: fl.Weights
    v: fl.Params


@dataclass(frozen=True, kw_only=True)
class Heavy(fl.Algorithm[Server, tuple[()]]):
    beta: Annotated[float, fl.Ge(0), fl.Lt(1)] = 0.9

    def init(self, model, key, *, num_clients):
        w = model.init(key)
        return Server(w=w, v=0.0 * w.params)

    @fl.on_client
    def local_update(self, client, w: fl.Weights):
        return (), client.weigh(self.train(client, w), "samples")

    def round(self, server, cohort):
        mean = cohort.reduce(self.local_update, server.w).mean
        v = self.beta * server.v + (1 - self.beta) * (server.w.params - mean.params)
        return Server(w=fl.Weights(server.w.params - v, mean.buffers), v=v)

    def global_weights(self, server):
        return server.w
