"""Predictions by the exported tensors and a matrix product."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import plain
from safetensors.numpy import load_file

import fedloom as fl


def check() -> None:
    x = np.random.default_rng(9).normal(size=(40, 8)).astype(np.float32)
    np.savez("new.npz", x=x)
    plain.script("served.py")
    run = Path("runs/served")
    s = json.loads((run / "settings.json").read_text())
    expected = {"data.source": "clouds:examples", "data.clients": 6, "data.partition": "dirichlet:0.3",
                "local.epochs": 2, "local.batch_size": 10, "local.lr": 0.1, "run.rounds": 4, "run.cohort_size": 6,
                "algorithm": "pfedsd", "model": "logistic"}  # fmt: skip
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        got = (s[section] if section else s)[name]
        plain.need(got == value, f"{key} is {got!r}, not {value!r}")
    found = {name: load_file(f"{name}.safetensors") for name in ("global", "client2")}

    def said(tensors: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        (weight,) = (t for t in tensors.values() if t.ndim == 2)
        (bias,) = (t for t in tensors.values() if t.ndim == 1)
        logits = x.reshape(len(x), -1).astype(np.float64) @ weight.T.astype(np.float64) + bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    with Path("said.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    plain.need(len(rows) == 40, f"said.csv has {len(rows)} rows, not 40")
    names = [name for name in rows[0] if name.startswith("probability")]
    plain.need(len(names) == 3, f"said.csv has the columns {list(rows[0])}")
    p = np.array([[float(row[name]) for name in names] for row in rows])
    plain.close(p, said(found["client2"], x), "probabilities by client2.safetensors", 1e-5)
    plain.need(np.abs(said(found["global"], x) - p).max() > 1e-3, "the global model says the same as that of client 2")
    test = __import__("clouds").examples().test
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    right = float(np.mean(said(found["global"], test.x.numpy()).argmax(1) == test.y.numpy()))
    plain.close(right, last["global_accuracy"], "the accuracy of global.safetensors")
    plain.need(fl.verify("runs/served").root, "the run is not whole")
