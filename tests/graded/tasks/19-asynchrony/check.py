"""The settings as the run keeps them, and what stands in its records."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import plain


def check() -> None:
    plain.fedloom("run", "--settings", "slow.toml", "--out", "runs/slow")
    run = Path("runs/slow")
    s = json.loads((run / "settings.json").read_text())
    expected = {"data.source": "fashion_mnist_small", "data.clients": 20, "data.examples": 1500,
                "data.partition": "dirichlet:0.3", "local.epochs": 1, "local.batch_size": 10, "local.lr": 0.05,
                "run.rounds": 12, "run.cohort_size": 8, "run.seed": 4, "run.eval_every": 4, "run.global_every": 2,
                "run.compression": "bits:4", "algorithm": "fedavg", "model": "logistic",
                "fedavg.aggregation": "uniform"}  # fmt: skip
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        got = (s[section] if section else s)[name]
        plain.need(got == value, f"{key} is {got!r}, not {value!r}")
    kind, _, words = s["run"]["clock"].partition(":")
    clock = dict(word.split("=") for word in words.split(",") if word)
    plain.need(kind == "lognormal", f"the clock is {s['run']['clock']!r}")
    for name, value in {"example": 0.01, "spread": 1, "down": 20, "up": 5}.items():
        plain.need(float(clock.get(name, "nan")) == value, f"{name} of the clock is {clock.get(name)}, not {value}")
    plain.need(set(clock) == {"example", "spread", "down", "up"}, f"the clock has other words: {sorted(clock)}")
    said = s["run"]["asynchrony"]
    plain.need(re.match(r"fedbuff:", said) and "size=3" in said, f"the asynchrony is {said!r}")
    plain.need("staleness=polynomial" in said and "polynomial:1" not in said, f"staleness is {said!r}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain.need(len(records) == 13, f"there are {len(records) - 1} versions, not 12")
    seconds = [r["virtual_seconds"] for r in records[1:]]
    plain.need(all(a < b for a, b in itertools.pairwise(seconds)), "virtual seconds do not rise")
    plain.need(all(r["under_way"] <= 8 for r in records[1:]), "more than 8 clients are at work")
    plain.need(all(r["bytes_up"] == 3 * ((7840 + 10) // 2 + 8) for r in records[1:]), "uploads are not three of 4 bits")
    judged = [r["round"] for r in records if "personal_accuracy" in r]
    plain.need(judged == [0, 4, 8, 12], f"personal models are evaluated after {judged}")
    measured = [r["round"] for r in records if "global_accuracy" in r]
    plain.need(measured == [0, 2, 4, 6, 8, 10, 12], f"the global model is evaluated after {measured}")
