"""A file is written, read, and trained on by the settings file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import plain


def written() -> list[tuple[str, float, float, str]]:
    rng = np.random.default_rng(1)
    rows = []
    for n in range(220):
        station = ("Kiel", "Aachen", "Test", "Bremen")[int(rng.integers(4))]
        numbers = [round(float(v), 2) for v in rng.normal(5, 8, size=2)]
        weather = ("dry", "rain", "snow")[int(rng.integers(3))]
        rows.append((station, *numbers, weather))
        if n % 17 == 0:
            rows[-1] = (station, -999.0, numbers[1], weather)
    return rows


def check() -> None:
    rows = written()
    lines = ["# station;temperature;wind;weather"]
    for n, (station, a, b, weather) in enumerate(rows):
        left = "-999" if a == -999 else str(a).replace(".", ",")
        lines += ["# checked"] * (n % 50 == 3)
        lines.append(f"{station};{left};{str(b).replace('.', ',')};{weather}")
    Path("stations.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = [row for row in rows if row[1] != -999]
    found = plain.imported("stations", "examples")()
    train = [row for row in whole if row[0] != "Test"]
    test = [row for row in whole if row[0] == "Test"]
    for part, expected, name in ((found.train, train, "train"), (found.test, test, "test")):
        plain.need(part is not None and len(part) == len(expected), f"{name} has not the {len(expected)} whole rows")
        plain.close(part.x, np.array([row[1:3] for row in expected], np.float32), f"features of {name}", 1e-6)
        classes = [("dry", "rain", "snow").index(row[3]) for row in expected]
        plain.need(part.y.tolist() == classes, f"classes of {name} are not dry, rain, snow from 0")
    plain.need(str(found.train.x.dtype) == "torch.float32", f"features are {found.train.x.dtype}, not float32")
    plain.need(tuple(found.train.classes) == ("dry", "rain", "snow"), "the classes have no names")
    names = sorted({row[0] for row in train})
    plain.need(found.owners is not None, "the data set has no owners")
    plain.need([int(k) for k in found.owners] == [names.index(row[0]) for row in train], "owners are wrong")

    plain.fedloom("run", "--settings", "settings.toml", "--out", "runs/stations")
    run = Path("runs/stations")
    settings = json.loads((run / "settings.json").read_text())
    expected = {"data.test_fraction": 0.25, "local.epochs": 2, "local.batch_size": 10, "local.lr": 0.05,
                "local.momentum": 0.0, "local.weight_decay": 0.0, "run.seed": 5, "algorithm": "fedavg",
                "model": "logistic"}  # fmt: skip
    for key, value in expected.items():
        section, _, name = key.rpartition(".")
        got = (settings[section] if section else settings)[name]
        plain.need(got == value, f"{key} is {got!r}, not {value!r}")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain.need(len(records) == 5, f"there are {len(records) - 1} rounds, not 4")
    plain.need(
        all(sorted(r["clients"]) == [0, 1, 2] for r in records[1:]), "not all 3 stations are asked in each round"
    )
    sizes = [sum(k) for k in json.loads((run / "federation.json").read_text())["train"]]
    held = [int(np.sum([row[0] == name for row in train])) for name in names]
    plain.need(
        len(sizes) == 3 and all(0.7 * n <= s <= 0.8 * n for s, n in zip(sizes, held, strict=True)),
        f"clients train on {sizes} rows of {held}",
    )
