"""The rows of every client, by loops."""

from __future__ import annotations

import numpy as np
import plain
import pytest
import torch

import fedloom as fl


def check() -> None:
    staircase = plain.imported("staircase", "staircase")
    rng = np.random.default_rng(3)
    for n, clients, seed in ((100, 5, 0), (37, 4, 11), (21, 6, 2)):
        labels = rng.integers(4, size=n)
        rows = sorted(range(n), key=lambda i, labels=labels: (labels[i], i))
        total, at, expected = clients * (clients + 1) // 2, 0, {}
        order = np.random.default_rng(seed).permutation(clients)
        for j in range(clients):
            size = n * (j + 1) // total
            end = n if j == clients - 1 else at + size
            expected[int(order[j])] = rows[at:end]
            at = end
        for given in (labels, labels.tolist(), torch.from_numpy(labels)):
            found = staircase(given, clients, seed)
            plain.need(isinstance(found, fl.Partition), f"staircase returns a {type(found).__name__}, no fl.Partition")
            plain.need(found.num_clients == clients, f"there are {found.num_clients} clients, not {clients}")
            for k in range(clients):
                got = found.rows(k).tolist()
                plain.need(
                    got == expected[k], f"client {k} of {clients} has the rows {got[:6]}..., not {expected[k][:6]}..."
                )
    with pytest.raises(fl.SettingError, match=r"(?s)(20.*21|21.*20)"):
        staircase(np.zeros(20, np.int64), 6, 0)
    train = fl.from_arrays(rng.normal(size=(100, 3)), np.arange(100) % 3)
    made = fl.federate(train, staircase(train.y, 4, 1), test_fraction=0.2)
    plain.need(made.num_clients == 4, "the partition makes no federation")
