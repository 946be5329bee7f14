"""The promise in the records, used up at the end and not before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import plain


def check() -> None:
    plain.fedloom("run", "--settings", "private.toml", "--out", "runs/private")
    run = Path("runs/private")
    s = json.loads((run / "settings.json").read_text())
    expected = {"data.source": "fashion_mnist_small", "data.clients": 300, "data.partition": "iid",
                "data.test_fraction": 0.0, "local.epochs": 1, "local.batch_size": 10, "local.lr": 0.05,
                "run.rounds": 8, "run.cohort_size": 60, "algorithm": "fedavgm", "model": "logistic",
                "fedavgm.momentum": 0.5}  # fmt: skip
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        got = (s[section] if section else s)[name]
        plain.need(got == value, f"{key} is {got!r}, not {value!r}")
    kind, _, words = s["run"]["privacy"].partition(":")
    said = dict(word.split("=") for word in words.split(",") if word)
    plain.need(kind == "central", f"privacy is {s['run']['privacy']!r}, not of clients by the server")
    plain.need(said.get("clip") == "adaptive:0.5", f"the clip norm is {said.get('clip')}, not adaptive:0.5")
    plain.need(float(said["delta"]) == 1e-4, f"delta is {said['delta']}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain.need(len(records) == 9, f"there are {len(records) - 1} rounds, not 8")
    spent = [r["epsilon"] for r in records[1:]]
    plain.need(all(a < b for a, b in itertools.pairwise(spent)), f"epsilon does not rise: {spent}")
    plain.need(2.9 < spent[-1] <= 3.0, f"epsilon is {spent[-1]:.3f} at the end, not 3")
    sizes = {len(r["clients"]) for r in records[1:]}
    plain.need(len(sizes) > 1 and all(20 < n < 120 for n in sizes), f"cohorts have the sizes {sorted(sizes)}")
