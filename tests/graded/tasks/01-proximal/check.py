"""FedProx on softmax regression, step by step."""

from __future__ import annotations

import plain
import pytest


def check() -> None:
    kind = plain.imported("proximal", "Pull")
    plain.need(kind().mu == 0.1, f"mu is {kind().mu} where it is not given, not 0.1")
    algorithm = kind(mu=0.7, local=plain.LOCAL)
    w = plain.start()
    for _ in range(3):
        trained = []
        for k in range(plain.N):

            def loss(v: plain.Plain, k: int = k, w: plain.Plain = w) -> plain.Tensor:
                return plain.cross_entropy(v, k) + 0.35 * sum((v[n] - w[n]).square().sum() for n in v)

            trained.append(plain.descend(w, loss))
        w = plain.mean(trained, plain.SIZES)
    plain.close(plain.global_model(algorithm, plain.run(algorithm)), w, "the global model after three rounds")
    with pytest.raises(Exception, match="mu"):
        kind(mu=-1.0)
    plain.keeps_promises(kind(), neutral=True)
