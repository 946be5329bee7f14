"""SCAFFOLD with the learning rate and the steps of plain descent, half of the clients in a round."""

from __future__ import annotations

import plain

import fedloom as fl

ROUNDS = ((0, 1), (2, 3), (0, 2, 3), (1, 2))


def check() -> None:
    kind = plain.imported("variates", "Variates")
    algorithm = kind(local=plain.LOCAL)
    x = plain.start()
    c = {n: 0 * t for n, t in x.items()}
    own = [dict(c) for _ in range(plain.N)]
    for clients in ROUNDS:
        sent, changes = [], []
        for k in clients:
            plus = {n: c[n] - own[k][n] for n in c}
            y = plain.descend(x, lambda v, k=k: plain.cross_entropy(v, k), plus=plus)
            new = {n: own[k][n] - c[n] + (x[n] - y[n]) / (plain.EPOCHS * plain.LR) for n in c}
            changes.append({n: new[n] - own[k][n] for n in c})
            own[k] = new
            sent.append(y)
        x = plain.mean(sent, [1] * len(sent))
        c = {n: c[n] + sum(change[n] for change in changes) / plain.N for n in c}
    history = plain.run(algorithm, rounds=4, sampler=fl.FixedList(ROUNDS))
    plain.close(plain.global_model(algorithm, history), x, "x after four rounds")
    plain.close(dict(algorithm.variate(plain.state(history))), c, "c after four rounds")
    plain.keeps_promises(kind())
