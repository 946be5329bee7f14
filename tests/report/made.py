"""Run directories made by hand, as the coordinator writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.report.grouping import read_methods
from fedloom.report.methods import Method


def made_run(
    folder: Path,
    algorithm: str = "fedavg",
    seed: int = 0,
    *,
    rounds: int = 4,
    planned_rounds: int | None = None,
    level: float = 0.6,
    classes: int = 3,
    clients: int = 6,
    without: tuple[str, ...] = (),
    failed: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """A run whose accuracy rises to about `level`; `without`: measured numbers and files that are left out."""
    rng = np.random.default_rng([seed, *algorithm.encode("utf-8", "surrogatepass")])
    folder.mkdir(parents=True)
    metrics, timing = [], []
    for t in range(rounds + 1):
        accuracy = round(float(np.clip(level * t / rounds + 0.03 * rng.normal(), 0, 1)), 4)
        by_client = {str(k): round(float(rng.uniform(accuracy / 2, 1)), 4) for k in range(clients)}
        values = np.array(list(by_client.values()))
        record: dict[str, Any] = {"round": t}
        if t:
            record |= {"clients": [0, 1], "failed": failed or {}, "train_loss": 2.0 / t}
            record |= {"bytes_down": 4_000_000, "bytes_up": 1_000_000, "forgetting": 0.1 if t > 1 else None}
            record |= {"in_local_accuracy": accuracy, "out_local_accuracy": accuracy / 2}
        record |= {
            "global_accuracy": accuracy,
            "global_loss": 2.3 - accuracy,
            "class_accuracy": [*np.clip(accuracy + 0.1 * rng.normal(size=classes - 1), 0, 1).round(4).tolist(), None],
            "personal_accuracy": float(values.mean()),
            "personal_std": float(values.std()),
            "personal_worst_tenth": float(values.min()),
            "personal_by_client": by_client,
        }
        metrics.append({name: value for name, value in record.items() if name not in without})
        seconds = {"sample": 0.001, "train": 0.5, "evaluate": 0.25} if t else {"evaluate": 0.25}
        timing.append({"round": t, "seconds": seconds, "peak_rss_mib": 500.0 + t})
    asked: dict[str, Any] = {
        "algorithm": algorithm,
        "model": "mlp",
        "data": {"source": "made_up", "partition": "shards:2", "clients": clients},
        "local": {"epochs": 5, "lr": 0.1},
        "run": {"rounds": planned_rounds or rounds, "cohort_size": 2, "seed": seed, "threads": 1},
        algorithm: {"shared": "*"},
        **(settings or {}),
    }
    manifest = {
        "algorithm": algorithm.title(),
        "engine": "loop",
        "engine_reason": "it was asked for",
        "models": {"mlp": 1234},
        "federation": {"clients": clients, "classes": classes, "partition": "shards s=2"},
        "versions": {"fedloom": "0.1.0", "torch": "2.8"},
    }
    held = np.random.default_rng(seed).integers(0, 50, size=(min(clients, 100), classes))  # of all methods of a seed
    counts = held + np.eye(min(clients, 100), classes, dtype=int)
    federation = {
        "clients": clients,
        "classes": classes,
        "shown": list(range(len(counts))),
        "train": counts.tolist(),
        "test": None,
        "sizes": {"min": 1, "median": 70.5, "max": 140, "mean": 72.0},
    }
    for name, lines in {"metrics.jsonl": metrics, "timing.jsonl": timing}.items():
        if name not in without:
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    documents = {"settings.json": asked, "manifest.json": manifest, "federation.json": federation}
    for name, content in documents.items():
        if name not in without:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def methods(*directories: Path) -> list[Method]:
    """The methods that the runs below some directories are of."""
    return read_methods(directories)[0]
