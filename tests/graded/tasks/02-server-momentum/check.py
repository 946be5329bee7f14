"""Heavy-ball momentum of the server, with a network that has buffers in the battery."""

from __future__ import annotations

import plain
import pytest


def check() -> None:
    kind = plain.imported("heavy", "Heavy")
    plain.need(kind().beta == 0.9, f"beta is {kind().beta} where it is not given, not 0.9")
    algorithm = kind(beta=0.6, local=plain.LOCAL)
    w = plain.start()
    v = {n: 0 * t for n, t in w.items()}
    for _ in range(4):
        trained = [plain.descend(w, lambda u, k=k: plain.cross_entropy(u, k)) for k in range(plain.N)]
        m = plain.mean(trained, plain.SIZES)
        v = {n: 0.6 * v[n] + w[n] - m[n] for n in w}
        w = {n: w[n] - v[n] for n in w}
    plain.close(plain.global_model(algorithm, plain.run(algorithm, rounds=4)), w, "the global model after four rounds")
    for beta in (-0.1, 1.0):
        with pytest.raises(Exception, match="beta"):
            kind(beta=beta)
    plain.keeps_promises(kind())
