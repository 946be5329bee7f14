"""Values by hand, the battery of tasks, and a run whose records have both measures."""

from __future__ import annotations

import numpy as np
import plain
import pytest
import torch

import fedloom as fl
from fedloom.testing import check_task


def by_hand(q: float, p: np.ndarray, y: np.ndarray) -> float:
    return float(
        np.mean(
            [
                np.mean([max(q * (b - a), (q - 1) * (b - a)) for a, b in zip(r, s, strict=False)])
                for r, s in zip(p, y, strict=False)
            ]
        )
    )


def check() -> None:
    kind = plain.imported("pinball", "Pinball")
    for q in (0.0, 1.0):
        with pytest.raises(Exception, match="q"):
            kind(q=q)
    check_task(kind(), outputs=1)
    check_task(kind(q=0.9), outputs=2)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x @ np.array([[1.0, 0.0], [-0.5, 2.0], [0.3, 0.1]]) + 0.2 * rng.normal(size=(60, 2))
    train = fl.data.Examples(torch.from_numpy(x), torch.from_numpy(y), num_classes=2)
    clients = fl.federate(train, fl.data.by_lists(np.array_split(np.arange(60), 4)), test=train, test_fraction=0.0)
    make = lambda: plain.filled(torch.nn.Linear(3, 2))  # noqa: E731
    task = kind(q=0.8)
    method = fl.FedAvg(local=plain.LOCAL)
    history = plain.run(method, make, federation=clients, task=task, measures=("coverage",), rounds=2)
    w = {n: t.numpy() for n, t in plain.global_model(method, history).items()}
    said = x @ w["weight"].T + w["bias"]
    last = history.metrics[-1]
    plain.close(last["global_pinball"], by_hand(0.8, said, y), "global_pinball")
    plain.close(last["global_coverage"], float(np.mean(y <= said)), "global_coverage")
    plain.close(last["global_loss"], by_hand(0.8, said, y), "global_loss")
    plain.need(history.headline.name == "pinball" and history.headline.better == "low", "the headline is not pinball")
    other = plain.start(make)
    for _ in range(2):
        sent = []
        for k in range(4):
            rows = slice(15 * k, 15 * k + 15)

            def loss(v: plain.Plain, rows: slice = rows) -> plain.Tensor:
                gap = torch.from_numpy(y[rows]) - (torch.from_numpy(x[rows]) @ v["weight"].T + v["bias"])
                return torch.maximum(0.8 * gap, -0.2 * gap).mean()

            sent.append(plain.descend(other, loss))
        other = plain.mean(sent, [1] * 4)
    plain.close(w, other, "the model after two rounds")
