"""Hard clusters, with clients that are asked in some rounds alone."""

from __future__ import annotations

import numpy as np
import plain
import torch

import fedloom as fl

ROUNDS = ((0, 1, 2), (3,), (0, 3), (1, 2, 3))


def check() -> None:
    plain.X[:] = [(-1) ** k * x for k, x in enumerate(plain.X)]  # two populations
    kind = plain.imported("clusters", "Groups")
    algorithm = kind(k=2, local=plain.LOCAL)
    parted = plain.federation(test_fraction=0.25, seed=3)
    history = plain.run(algorithm, federation=parted, rounds=4, sampler=fl.FixedList(ROUNDS))
    w = plain.start()
    models, last = [w, {n: -t for n, t in w.items()}], dict[int, int]()
    x, y = (np.concatenate(parts) for parts in (plain.X, plain.Y))

    def loss(v: plain.Plain, rows: object) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(plain.logits(v, x[rows]), torch.from_numpy(y[rows]))

    for t, clients in enumerate(ROUNDS):
        sent: dict[int, list[tuple[plain.Plain, float]]] = {}
        for k in clients:
            rows = parted.partition.rows(k)
            last[k] = int(np.argmin([float(loss(m, rows)) for m in models]))
            trained = plain.descend(models[last[k]], lambda v, rows=rows: loss(v, rows))
            sent.setdefault(last[k], []).append((trained, len(rows)))
        models = [plain.mean(*zip(*sent[j], strict=True)) if j in sent else models[j] for j in range(2)]
        noted = history.metrics[t + 1].get("client_group_by_client")
        plain.need(noted is not None, "the record has no client_group_by_client: note the group of each client")
        right = [last[k] for k in history.metrics[t + 1]["clients"]]
        plain.need(noted == right, f"in round {t + 1} the groups are {noted}, not {right}")
    plain.need(len(set(last.values())) == 2, "the check is of no use: all clients are in one group")
    found = algorithm.models(plain.state(history))
    plain.need(len(found) == 2, f"models returns {len(found)} models, not 2")
    for j in range(2):
        plain.close(dict(found[j].params), models[j], f"model {j} after four rounds")
    by_rows = {}
    for k in range(plain.N):
        rows = parted.local_test.rows(k)
        said = plain.logits(models[last[k]], x[rows]).argmax(1).numpy()
        by_rows[k] = float(np.mean(said == y[rows]))
    by_client = {int(k): a for k, a in history.metrics[-1]["personal_by_client"].items()}
    plain.need(by_client == by_rows, f"personal accuracies are {by_client}, not {by_rows}")
    plain.need("global_accuracy" not in history.metrics[-1], "there is a global model, and there should be none")
    plain.keeps_promises(kind())
