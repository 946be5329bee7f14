"""Steps by hand, several clients side by side, and by words."""

from __future__ import annotations

import json
from pathlib import Path

import plain
import pytest
import torch

import fedloom as fl


def check() -> None:
    kind = plain.imported("lion", "Lion")
    plain.need((kind().lr, tuple(kind().betas), kind().weight_decay) == (1e-3, (0.9, 0.99), 0.0), "defaults are others")
    for wrong in ({"lr": 0.0}, {"betas": (1.0, 0.5)}, {"weight_decay": -1.0}):
        with pytest.raises(Exception, match=next(iter(wrong))):
            kind(**wrong)
    w = plain.start()
    for _ in range(3):
        trained = []
        for k in range(plain.N):
            p, m = dict(w), {n: 0 * t for n, t in w.items()}
            for _ in range(4):
                g = plain.gradient(lambda v, k=k: plain.cross_entropy(v, k), p)
                p = {n: t - 0.05 * (torch.sign(0.8 * m[n] + 0.2 * g[n]) + 0.3 * t) for n, t in p.items()}
                m = {n: 0.95 * m[n] + 0.05 * g[n] for n in m}
            trained.append(p)
        w = plain.mean(trained, plain.SIZES)
    local = fl.Local(epochs=4, batch_size=64, optimiser=kind(lr=0.05, betas=(0.8, 0.95), weight_decay=0.3))
    for engine in ("loop", "stacked"):
        method = fl.FedAvg(local=local)
        history = plain.run(method, engine=engine, compilation="none")
        plain.close(plain.global_model(method, history), w, f"the model after three rounds, engine {engine}")
    words = "run fedavg --model logistic --clients 5 --cohort 2 --rounds 1 --epochs 1 --optimiser lion:Lion"
    plain.fedloom(*words.split(), "--set", "local.weight_decay=0.1", "--set", "local.betas=0.5,0.5", "--out", "run")
    said = json.loads(Path("run/settings.json").read_text())["local"]
    text = json.dumps(said)
    plain.need("lion:Lion" in text and "[0.5, 0.5]" in text and "0.1" in text, f"the run has other settings: {text}")
