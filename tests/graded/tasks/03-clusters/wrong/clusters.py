from dataclasses import dataclass

import torch

import fedloom as fl


@dataclass(frozen=True, kw_only=True)
class Groups(fl.Algorithm[list[fl.Weights], torch.Tensor]):
    k: fl.Count = 2

    def init(self, model, key, *, num_clients):
        w = model.init(key)
        return [fl.Weights((-1.0) ** j * w.params, w.buffers) for j in range(self.k)]

    def init_client(self, initial, model, key):
        return torch.zeros((), dtype=torch.int64)

    @fl.on_client
    def local_update(self, client, models: list[fl.Weights]):
        every = client.train.whole()
        losses = torch.stack([fl.mean_loss(client.model, client.task, w, every) for w in models])
        group = losses.argmin()
        trained = self.train(client, fl.tree.take(fl.tree.stack(models), group))
        client.note(group=group.double())
        return group, client.weigh((trained, group), "uniform")

    def round(self, server, cohort):
        replies = cohort.gather(self.local_update, server)
        _, took = replies.value.value
        chose = [replies.only(replies.ids[took == j]) for j in range(self.k)]
        return [there.mean[0] if len(there.ids) else w for there, w in zip(chose, server, strict=False)]

    def models(self, server):
        return list(server)

    def evaluation_payload(self, server, model):
        return server

    def personal(self, client, models: list[fl.Weights]):
        return fl.tree.take(fl.tree.stack(models), client.state)
