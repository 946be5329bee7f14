"""Make the tables of docs/time.md on what ways of running and encoders cost from finished runs: numbers, then tables.

    python scripts/make_time.py runs/time

Runs lie in DATA/WAY/SEED; `sync` is the run that waits for its cohort and sends whole uploads. What a folder has takes
the place of what is kept of the same data, way and seed. Without a folder, the page is renewed from the numbers that
are kept.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from fedloom import History

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "time.md"
KEPT = ROOT / "docs" / "results" / "time.csv"
BEGIN, END = "<!-- made by scripts/make_time.py: from here -->\n", "<!-- to here -->\n"
SHARE = 0.95  # of the end of the run that waits, with the same seed
WAYS = {
    "sync": "waits for all 20",
    "spares": "for the first 20 of 30 (`spares = 10`)",
    "late": "for {late:g} s at most (`deadline={late:g}` in the clock)",
    "semi": "`asynchrony = deadline:seconds={semi:g}`",
    "fedbuff": "`asynchrony = fedbuff:size=10`",
    "fedasync": "`asynchrony = fedasync:alpha=0.6`",
}
ENCODERS = {
    "bits:8?feedback=false": "`bits:8`",
    "bits:4?feedback=false": "`bits:4`",
    "bits:4?feedback=true": "`bits:4?feedback=true`",
    "topk:0.01?feedback=true": "`topk:0.01`",
    "topk:0.01?feedback=false": "`topk:0.01?feedback=false`",
    "sign?feedback=true": "`sign`",
    "sign?feedback=false": "`sign?feedback=false`",
    "lowrank:2?feedback=true": "`lowrank:2`",
    "lowrank:2?feedback=false": "`lowrank:2?feedback=false`",
    "randk:0.05?feedback=false": "`randk:0.05`",
    "randk:0.05?feedback=true": "`randk:0.05?feedback=true`",
    "topk:0.01+bits:4?feedback=true": "`topk:0.01+bits:4`",
    "topk:0.01+bits:4?feedback=false": "`topk:0.01+bits:4?feedback=false`",
}
DATA = {  # words, and seconds of the ways with a deadline
    "fmnist": ("Fashion-MNIST, `mlp`", {"late": 8, "semi": 4}),
    "cifar": ("CIFAR-10, 20,000 images, `lenet`", {"late": 3, "semi": 1.5}),
}
COLUMNS = (
    "data",
    "way",
    "seed",
    "rounds",
    "accuracy",
    "level",
    "seconds_to",
    "bytes_to",
    "up_to",
    "seconds",
    "bytes_up",
)

Row = dict[str, str]


def measured(folder: Path) -> list[Row]:
    """Return a row for each finished run below a folder whose run that waits has finished too, there or earlier."""
    found = {path.parent: _records(path.parent) for path in sorted(folder.rglob("metrics.jsonl"))}
    levels = {(row["data"], row["seed"]): float(row["level"]) for row in kept()}
    for run, records in found.items():
        if run.parent.name == "sync" and records:
            levels[run.parts[-3], run.name] = SHARE * float(records[-1]["global_accuracy"])
    of = {run: levels.get((run.parts[-3], run.name)) for run, records in found.items() if records}
    return [_row(run, found[run], level) for run, level in of.items() if level is not None]


def _records(run: Path) -> list[dict[str, float]]:
    """Return the records of a run; none where it has not finished."""
    asked = json.loads((run / "settings.json").read_text(encoding="utf-8"))["run"]
    records = History.read(run).metrics
    return records if records[-1]["round"] == asked["rounds"] else []


def _row(run: Path, records: Sequence[dict[str, float]], level: float) -> Row:
    data, way, seed = run.parts[-3:]
    down = up = 0.0
    to: tuple[float, ...] | None = None
    for record in records:
        down, up = down + record.get("bytes_down", 0), up + record.get("bytes_up", 0)
        if to is None and record.get("global_accuracy", 0.0) >= level:
            to = record["virtual_seconds"], down + up, up
    last = records[-1]
    numbers = [last["round"], last["global_accuracy"], level, *(to or [None] * 3), last["virtual_seconds"], up]
    cells = ["" if value is None else f"{value:.6g}" for value in numbers]
    return dict(zip(COLUMNS, [data, way, seed, *cells], strict=True))


def key(row: Row) -> tuple[str, int, str, int]:
    """Return what a run is, in the order of the file."""
    place = [*WAYS, *ENCODERS].index(row["way"])
    return row["data"], place, row["way"], int(row["seed"])


def tables(rows: Sequence[Row]) -> str:
    """Return what it costs to reach the level: by way of running, and by encoder of uploads, for each data."""
    out = list[str]()
    for data, (words, deadlines) in DATA.items():
        found = {way: {r["seed"]: r for r in rows if (r["data"], r["way"]) == (data, way)} for way in WAYS | ENCODERS}
        if not (waits := found["sync"]):
            continue
        whole = {"sync": "whole uploads"} | ENCODERS
        for names, what, costs in (
            (WAYS, "MB, both ways", ("seconds_to", "bytes_to")), (whole, "MB up", ("up_to", "seconds_to")),
        ):  # fmt: skip
            if not any(found[way] for way in names if way != "sync"):
                continue
            units = {"seconds_to": "virtual seconds", "bytes_to": what, "up_to": what}
            heads = [units[costs[0]], "beside waiting" if names is WAYS else "beside whole", units[costs[1]]]
            out += [f"| {words} | seeds | {' | '.join(heads)} | accuracy at the end |", "|---" * 6 + "|"]
            for way in names:
                if not (of := found[way]):
                    continue
                first = costs[0]
                shares = [float(of[s][first]) / float(waits[s][first]) for s in of if of[s][first]]
                beside = "1" if way == "sync" else _text(shares)
                cells = [_reached(of, first), beside, _reached(of, costs[1])]
                end = _text([100 * float(row["accuracy"]) for row in of.values()])
                name, seeds = names[way].format(**deadlines), ", ".join(sorted(of, key=int))
                out.append(f"| {name} | {seeds} | {' | '.join(cells)} | {end} |")
            out.append("")
    return "\n".join(out)


def _reached(of: dict[str, Row], name: str) -> str:
    values = [float(row[name]) / (1.0 if name == "seconds_to" else 1e6) for row in of.values() if row[name]]
    never = f" ({len(values)} of {len(of)})" * (len(values) < len(of))
    return _text(values) + never if values else "never"


def _text(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = statistics.mean(values)
    digits = 0 if mean >= 100 else 1 if mean >= 10 else 2 if mean >= 0.1 else 3
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:,.{digits}f}{spread}"


def page(rows: Sequence[Row]) -> str:
    """Return what the page must hold: its text, with tables of these rows."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + tables(rows) + END + rest.partition(END)[2]


def kept() -> list[Row]:
    """Return the numbers that are kept."""
    if not KEPT.exists():
        return []
    with KEPT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    if sys.argv[1:]:
        found = {key(row): row for row in [*kept(), *measured(Path(sys.argv[1]))]}
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found[place] for place in sorted(found))
    PAGE.write_text(page(kept()), encoding="utf-8")
