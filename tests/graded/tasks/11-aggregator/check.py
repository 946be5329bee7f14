"""The trimmed mean by sorting, and a client that lies."""

from __future__ import annotations

import plain
import torch

import fedloom as fl


def middle(models: list[plain.Plain]) -> plain.Plain:
    out = {}
    for name in models[0]:
        values = torch.stack([m[name] for m in models]).sort(0).values
        out[name] = (values[1:-1] if len(models) >= 3 else values).mean(0)
    return out


def check() -> None:
    kind = plain.imported("cautious", "Cautious")
    rounds = ((0, 1, 2, 3), (1, 3), (0, 2, 3))
    w = plain.start()
    for clients in rounds:
        w = middle([plain.descend(w, lambda v, k=k: plain.cross_entropy(v, k)) for k in clients])
    method = fl.FedAvg(local=plain.LOCAL)
    for more in ({}, {"engine": "stacked", "chunk": 2, "compilation": "none"}):
        history = plain.run(method, parts=[kind()], sampler=fl.FixedList(rounds), **more)
        plain.close(plain.global_model(method, history), w, f"the model after three rounds {more or ''}")
    scaffold = fl.Scaffold(local=plain.LOCAL)
    x, c = plain.start(), {n: 0 * t for n, t in plain.start().items()}
    own = [dict(c) for _ in range(plain.N)]
    for _ in range(2):
        sent, changes = [], []
        for k in range(plain.N):
            plus = {n: c[n] - own[k][n] for n in c}
            y = plain.descend(x, lambda v, k=k: plain.cross_entropy(v, k), plus=plus)
            new = {n: own[k][n] - c[n] + (x[n] - y[n]) / (plain.EPOCHS * plain.LR) for n in c}
            changes.append({n: new[n] - own[k][n] for n in c})
            own[k] = new
            sent.append(y)
        x, change = middle(sent), middle(changes)
        c = {n: c[n] + change[n] for n in c}
    history = plain.run(scaffold, parts=[kind()], rounds=2)
    plain.close(plain.global_model(scaffold, history), x, "SCAFFOLD's model after two rounds")
    lying = plain.run(method, parts=[kind()], attack=fl.Scale(-1000.0, clients=(2,)), rounds=5)
    plain.need(lying.last("global_accuracy") > 0.5, "one client that lies ruins the model")
