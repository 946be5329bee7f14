"""Cosines of a small run, from its replayed models."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import plain

import fedloom as fl
from fedloom.analyses import AnalysedRun, analyse


def check() -> None:
    measure = plain.imported("agree", "measure")
    described = {
        "algorithm": "fedavg", "model": "logistic", "data": {"examples": 400, "clients": 10},
        "clients": {"sampler": "list:0,1,2;3;1,4,5"}, "local": {"epochs": 1, "batch_size": 20}, "run": {"rounds": 3},
    }  # fmt: skip
    job = fl.Experiment.of(described).job()
    job.run("run")
    files = analyse(AnalysedRun.of("run", []), "agree", "figures", {"agree": measure})
    plain.need(files, "analyse returns nothing")
    there = Path("figures/agree.csv")
    plain.need(there.exists(), f"there is no agree.csv, but {sorted(p.name for p in Path('figures').iterdir())}")
    with there.open(newline="") as file:
        rows = list(csv.DictReader(file))
    plain.need(list(rows[0]) == ["round", "clients", "mean", "lowest"], f"the columns are {list(rows[0])}")
    plain.need([int(r["round"]) for r in rows] == [1, 2, 3], f"the rounds are {[r['round'] for r in rows]}")
    plain.need([int(r["clients"]) for r in rows] == [3, 1, 3], f"the clients are {[r['clients'] for r in rows]}")
    plain.need(
        rows[1]["mean"] in ("", "None") and rows[1]["lowest"] in ("", "None"), "a round of one client has numbers"
    )
    past = fl.coordinator.RoundReplay(job, "run")
    for row, number in zip(rows, (1, 2, 3), strict=True):
        replay = past.replay(number)
        (sent,) = replay.before.values()
        moved = [
            np.concatenate([(w.params[n] - sent.params[n]).double().numpy().ravel() for n in sent.params])
            for w in replay.trained().values()
        ]
        cosines = [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in itertools.combinations(moved, 2)]
        if cosines:
            plain.close(float(row["mean"]), np.mean(cosines), f"mean of round {number}", 1e-5)
            plain.close(float(row["lowest"]), min(cosines), f"lowest of round {number}", 1e-5)
