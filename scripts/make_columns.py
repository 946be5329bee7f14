"""Make the table of docs/tables.md on sites that lack columns: union against shared, measured on Vehicle.

    python scripts/make_columns.py FOLDER     # with vehicle_ditto_train.npz; about half an hour on one core
    python scripts/make_columns.py            # the table alone, from the numbers that are kept

A vehicle is told by 50 acoustic and 50 seismic features of 23 sensors, each a site. Columns are left out of sites at
random, by the seed that also draws the test rows. `filled` is the union without its masks, which no word asks for.
"""

from __future__ import annotations

import csv
import statistics
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fedloom as fl

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tables.md"
KEPT = ROOT / "docs" / "results" / "columns.csv"
BEGIN, END = "<!-- made by scripts/make_columns.py: from here -->\n", "<!-- to here -->\n"
LACKS = {  # what is left out, and the words of the page
    "seismic:6": "6 of 23 sites lack all 50 seismic columns",
    "seismic:12": "12 of 23",
    "seismic:17": "17 of 23",
    "seismic:22": "22 of 23",
    "each:0.1": "each site lacks each of 100 columns with probability 0.1; 4 to 10 are shared",
    "each:0.3": "the same with 0.3; none is shared",
}
MODELS, WAYS, SEEDS, ROUNDS = ("logistic", "mlp"), ("shared", "union", "filled"), range(5), 30
COLUMNS = ("model", "lacks", "seed", "columns", "features", "accuracy")
Row = dict[str, str]


def has(lacks: str, seed: int) -> npt.NDArray[np.bool_]:
    """Return which sites have which columns, [23, 100]."""
    rng, there = np.random.default_rng(seed), np.ones((23, 100), np.bool_)
    kind, _, how_many = lacks.partition(":")
    if kind == "each":
        return rng.random(there.shape) >= float(how_many)
    there[rng.permutation(23)[: int(how_many)], 50:] = False
    return there


def write(vehicle: Path, folder: Path, there: npt.NDArray[np.bool_]) -> None:
    """Write a table of each site."""
    found = np.load(vehicle, allow_pickle=False)
    names = [f"{kind}{i:02}" for kind in ("acoustic", "seismic") for i in range(50)]
    for k, site in enumerate(found["users"]):
        rows, kept = found["client"] == k, np.flatnonzero(there[k])
        with (folder / f"{site}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*(names[i] for i in kept), "kind"])
            for x, y in zip(found["x"][rows][:, kept], found["y"][rows], strict=True):
                writer.writerow([*(f"{value:.6g}" for value in x), int(y)])


def measured(folder: Path, way: str, seed: int, model: str) -> tuple[int, float]:
    """Return the number of features and the accuracy of the global model on the test rows of all sites."""
    columns = "shared" if way == "shared" else "union"
    data = fl.read_sites(f"{folder}/*.csv", label="kind", prepare="federated", columns=columns, seed=seed)
    assert data.owners is not None
    f = fl.federate(data.train, fl.data.natural(data.owners, data.train.owners), test=data.test)
    assert f.test is not None
    if way == "filled":
        kept = [i for i, name in enumerate(f.train.columns) if not name.endswith("_missing")]
        names = tuple(f.train.columns[i] for i in kept)
        train, test = (replace(e, x=e.x[:, kept], columns=names, preparation=None) for e in (f.train, f.test))
        f = replace(f, train=train, test=test)
    history = fl.run(
        fl.FedAvg(local=fl.Local(epochs=2, batch_size=16, optimiser=fl.SGD(lr=0.05))),
        f,
        lambda: fl.models.build(model, f.train.shape, f.train.num_classes),
        fl.RunSettings(rounds=ROUNDS, cohort_size=23, seed=seed, threads=1),
    )
    return len(f.train.columns), float(history.last("global_accuracy"))


def measure(vehicle: Path, model: str, lacks: str, seed: int) -> list[Row]:
    """Return the rows of one drawing of columns; none of a way that has no columns."""
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        there = has(lacks, seed)
        write(vehicle, Path(folder), there)
        for way in WAYS[0 if there.all(0).any() else 1 :]:
            features, accuracy = measured(Path(folder), way, seed, model)
            values = (model, lacks, str(seed), way, str(features), f"{accuracy:.4f}")
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def table(rows: list[Row]) -> str:
    """Return the table of the page."""
    lines = [
        "| network | columns | shared | union | union - shared | union without masks |",
        "|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for lacks, words in LACKS.items():
            of = {way: [100 * float(row["accuracy"]) for row in rows
                        if (row["model"], row["lacks"], row["columns"]) == (model, lacks, way)]
                  for way in WAYS}  # fmt: skip
            gain = [union - shared for union, shared in zip(of["union"], of["shared"], strict=False)]
            cells = [_spread(each) for each in (of["shared"], of["union"], gain, of["filled"])]
            lines.append(f"| {' | '.join((f'`{model}`', words, *cells))} |")
    return "\n".join([*lines, ""])


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if values else "-"


def kept() -> list[Row]:
    """Return the numbers that are kept."""
    with KEPT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(arguments: list[str]) -> None:
    if arguments:
        vehicle = Path(arguments[0]) / "vehicle_ditto_train.npz"
        rows = [
            r for model in MODELS for lacks in LACKS for seed in SEEDS for r in measure(vehicle, model, lacks, seed)
        ]
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(before + BEGIN + table(kept()) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
