from dataclasses import dataclass

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Heads(fl.FedAvg):
    shared: str = "* !last:1"

    @property
    def training(self):
        return self.local.longer(self.local.epochs)

    @fl.on_client
    def local_update(self, client, sent: fl.Weights):
        w = self.received(client, sent)
        half = client.train.num_steps // 2
        w = self.train(client, w, batches=client.train.first(half), only="last:1")
        w = self.train(client, w, batches=client.train.after(half), only="* !last:1")
        return self.answer(client, w)

    def body(self, server):
        return self.down(server)
