from dataclasses import dataclass

import fedloom as fl


@fl.state
class Server:
    x: fl.Weights
    c: fl.Params


@dataclass(frozen=True, kw_only=True)
class Variates(fl.Algorithm[Server, fl.Params]):
    def init(self, model, key, *, num_clients):
        x = model.init(key)
        return Server(x=x, c=0.0 * x.params)

    def init_client(self, initial, model, key):
        return 0.0 * initial.params

    @fl.on_client
    def local_update(self, client, x: fl.Weights, c: fl.Params):
        task_loss, shift = client.loss, c - client.state
        y = self.train(
            client, x, shift, loss=lambda w, batch, shift: task_loss(w, batch), correct=lambda g, shift: g + shift
        )
        steps = client.train.num_steps * client.lr
        new = client.state - c + (x.params - y.params) / steps.to(next(iter(c.values())).dtype)
        return new, (client.weigh(y, "uniform"), client.weigh(new - client.state, "uniform"))

    def round(self, server, cohort):
        replies = cohort.reduce(self.local_update, server.x, server.c)
        x, change = replies.mean
        return Server(x=x, c=server.c + replies.share * change)

    def global_weights(self, server):
        return server.x

    def variate(self, server):
        return server.c
