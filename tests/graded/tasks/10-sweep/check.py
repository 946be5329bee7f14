"""Scores are computed again from the records of the trials."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import plain


def check() -> None:
    plain.script("choose.py")
    sweep = Path("runs/mu")
    plain.need((sweep / "sweep.csv").exists(), "there is no runs/mu/sweep.csv")
    with (sweep / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    plain.need(len(rows) == 4, f"there are {len(rows)} trials, not 4")
    found = {}
    for trial in sorted(sweep.glob("trial-*")):
        runs = sorted(trial.glob("seed-*"))
        plain.need(
            [r.name for r in runs] == ["seed-0", "seed-1"], f"{trial.name} has the runs {[r.name for r in runs]}"
        )
        scores, tests = [], []
        for run in runs:
            s = json.loads((run / "settings.json").read_text())
            expected = {"data": {"source": "fashion_mnist_small", "examples": 1000, "clients": 10, "val_fraction": 0.2,
                                 "partition": "dirichlet:0.5", "partition_seed": 3},
                        "local": {"epochs": 1, "batch_size": 10}, "run": {"rounds": 4, "cohort_size": 4}}  # fmt: skip
            for section, keys in expected.items():
                for key, value in keys.items():
                    plain.need(s[section][key] == value, f"{section}.{key} is {s[section][key]!r}, not {value!r}")
            plain.need((s["algorithm"], s["model"]) == ("fedprox", "logistic"), "it is not fedprox with logistic")
            records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
            scores.append(np.mean([r["val_accuracy"] for r in records[-3:]]))
            tests.append(np.mean([r["global_accuracy"] for r in records[-3:]]))
        found[s["fedprox"]["mu"], s["local"]["lr"]] = float(np.mean(scores)), float(np.mean(tests))
    plain.need(set(found) == {(a, b) for a in (0.01, 1.0) for b in (0.01, 0.1)}, f"the trials are {sorted(found)}")
    said = json.loads(Path("chosen.json").read_text())
    best = max(score for score, _ in found.values())
    key = (said["mu"], said["lr"])
    plain.need(key in found and found[key][0] == best, f"{key} is chosen, of { ({k: v[0] for k, v in found.items()}) }")
    plain.close(said["score"], found[key][0], "score", 1e-6)
    plain.close(said["test"], found[key][1], "test", 1e-6)
