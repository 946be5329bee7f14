"""Quantisation with error feedback, its bytes, and clients that come back later."""

from __future__ import annotations

import plain
import torch

import fedloom as fl

ROUNDS = ((0, 1, 2, 3), (1, 3), (0, 1, 2), (0, 1, 2, 3))


def check() -> None:
    kind = plain.imported("coarse", "Coarse")
    w = plain.start()
    left = [{n: 0 * t for n, t in w.items()} for _ in range(plain.N)]
    for clients in ROUNDS:
        read = []
        for k in clients:
            trained = plain.descend(w, lambda v, k=k: plain.cross_entropy(v, k))
            sent = {}
            for n in w:
                v = trained[n] - w[n] + left[k][n]
                s = v.abs().max() / 127
                whole = torch.round(v / s)
                sent[n] = s * whole
                left[k][n] = v - sent[n]
            read.append({n: w[n] + sent[n] for n in w})
        w = plain.mean(read, [plain.SIZES[k] for k in clients])
    method = fl.FedAvg(local=plain.LOCAL)
    history = plain.run(method, parts=[kind()], sampler=fl.FixedList(ROUNDS), rounds=4)
    plain.close(plain.global_model(method, history), w, "the model after four rounds")
    expected = 4 * (9 + 3 + 2 * 8)  # of each client 12 numbers in a byte each, and two of 8 bytes
    found = history.metrics[-1]["bytes_up"]
    plain.need(found == expected, f"four clients upload {found} bytes, not {expected}")
    still = plain.run(fl.FedAvg(local=fl.Local(epochs=1, optimiser=fl.SGD(lr=1e-300))), parts=[kind()], rounds=1)
    plain.need(still.metrics[-1]["global_loss"] > 0, "an upload of zeros is not read")
