"""Alternating training of head and body on a network of two layers."""

from __future__ import annotations

import numpy as np
import plain

import fedloom as fl

ROUNDS = ((0, 1, 2), (1, 3), (0, 2, 3))
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


def check() -> None:
    kind = plain.imported("heads", "Heads")
    algorithm = kind(local=plain.LOCAL)
    parted = plain.federation(test_fraction=0.25, seed=3)
    history = plain.run(algorithm, plain.deep, federation=parted, sampler=fl.FixedList(ROUNDS))
    x, y = (np.concatenate(parts) for parts in (plain.X, plain.Y))
    w = plain.start(plain.deep)
    heads = {k: {n: w[n] for n in HEAD} for k in range(plain.N)}
    body = {n: w[n] for n in BODY}
    for clients in ROUNDS:
        sent = []
        for k in clients:
            rows = parted.partition.rows(k)

            def loss(v: plain.Plain, rows: object = rows) -> plain.Tensor:
                return plain.F.cross_entropy(plain.logits(v, x[rows]), plain.torch.from_numpy(y[rows]))

            v = plain.descend({**body, **heads[k]}, loss, only=HEAD)
            v = plain.descend(v, loss, only=BODY)
            heads[k] = {n: v[n] for n in HEAD}
            sent.append({n: v[n] for n in BODY})
        body = plain.mean(sent, [len(parted.partition.rows(k)) for k in clients])
    plain.close(dict(algorithm.body(plain.state(history)).params), body, "the body after three rounds")
    right = {}
    for k in range(plain.N):
        rows = parted.local_test.rows(k)
        said = plain.logits({**body, **heads[k]}, x[rows]).argmax(1).numpy()
        right[k] = float(np.mean(said == y[rows]))
    by_client = {int(k): a for k, a in history.metrics[-1]["personal_by_client"].items()}
    plain.need(by_client == right, f"personal accuracies are {by_client}, not {right}")
    numbers = sum(body[n].numel() for n in BODY)
    for way in ("bytes_down", "bytes_up"):
        expected = 8 * numbers * len(ROUNDS[-1])
        found = history.metrics[-1][way]
        plain.need(found == expected, f"{way} of the last round is {found}, not {expected}, those of the bodies alone")
    plain.keeps_promises(kind())
