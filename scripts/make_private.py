"""Make the tables of docs/privacy.md on accuracy over epsilon from finished runs: first the numbers, then the tables.

    python scripts/make_private.py runs/private

A folder's runs take the place of what is kept of the same method, privacy, seed and cohort. Without a folder, the page
is renewed from the numbers that are kept.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from fedloom import History
from fedloom.evaluate.paired_differences import difference, pooled

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "privacy.md"
KEPT = ROOT / "docs" / "results" / "private.csv"
BEGIN, END = "<!-- made by scripts/make_private.py: from here -->\n", "<!-- to here -->\n"
CLIPPED = "central:noise=0,delta=1e-5,clip=0.5"
PRIVACY = {"none": "neither", CLIPPED: "clipped"} | {
    f"central:epsilon={e},delta=1e-5,clip=0.5": f"epsilon {e}" for e in (8, 4, 2, 1)
}
ROWS = (
    ("fedavg", "global"), ("fedavg", "personal"), ("pfedsd", "personal"), ("fedrep", "personal"), ("ditto", "personal"),
    ("local_only", "personal"),
)  # fmt: skip

Row = dict[str, str]


def measured(folder: Path) -> list[Row]:
    """Return a row for each finished run below a folder."""
    found = (_row(path.parent) for path in sorted(folder.rglob("metrics.jsonl")))
    return [row for row in found if row is not None]


def _row(run: Path) -> Row | None:
    settings, last = json.loads((run / "settings.json").read_text(encoding="utf-8")), History.read(run).metrics[-1]
    asked = settings["run"]
    if last["round"] < asked["rounds"]:
        return None
    row: Row = {"method": settings["algorithm"], "privacy": asked.get("privacy", "none"), "seed": str(asked["seed"])}
    row |= {"cohort": str(asked["cohort_size"]), "rounds": str(last["round"])}
    numbers = {name: last.get(name) for name in ("global_accuracy", "personal_accuracy", "epsilon")}
    return row | {name: "" if value is None else f"{value:.6g}" for name, value in numbers.items()}


def key(row: Row) -> tuple[int, int, int, int]:
    """Return what a run is, in the order of the file."""
    methods = list(dict.fromkeys(method for method, _ in ROWS))
    place = methods.index(row["method"]), list(PRIVACY).index(row["privacy"])
    return *place, int(row["cohort"]), int(row["seed"])


def tables(rows: Sequence[Row]) -> str:
    """Return accuracies in percent, and their differences to those without noise."""
    heads = list(PRIVACY.values())
    levels = [f"| accuracy, seeds | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    gaps = [f"| beside clipped | {' | '.join(heads[2:])} |", "|" + "---|" * (len(heads) - 1)]
    for method, whose in ROWS:
        for cohort in sorted({int(row["cohort"]) for row in rows if row["method"] == method}):
            mine = [row for row in rows if row["method"] == method and int(row["cohort"]) == cohort]
            found = {
                p: {r["seed"]: 100 * float(r[f"{whose}_accuracy"]) for r in mine if r["privacy"] == p} for p in PRIVACY
            }
            found = {p: of for p, of in found.items() if of}
            seeds = sorted({seed for of in found.values() for seed in of})
            name = f"`{method}`, {whose}" + ", all clients in each round" * (cohort == 1000)
            cells = " | ".join(_level([*found.get(p, {}).values()]) for p in PRIVACY)
            levels.append(f"| {name}, {', '.join(seeds)} | {cells} |")
            if CLIPPED in found:
                cells = " | ".join(_gap(found, p) for p in list(PRIVACY)[2:])
                gaps.append(f"| {name} | {cells} |")
    return "\n".join([*levels, "", *gaps]) + "\n"


def _level(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" if values else "-"


def _gap(found: dict[str, dict[str, float]], privacy: str) -> str:
    """Return the difference of a privacy to clipping alone over common seeds, with its interval."""
    own, other = found.get(privacy, {}), found[CLIPPED]
    noise = pooled([{p: of for p, of in found.items() if p != "none"}])
    gap = difference([own[seed] - other[seed] for seed in own if seed in other], noise)
    if gap is None or not math.isfinite(gap.half):
        return "-"
    return f"{gap.mean:+.1f} [{gap.mean - gap.half:+.1f}, {gap.mean + gap.half:+.1f}]"


def page(rows: Sequence[Row]) -> str:
    """Return what the page must hold: its text, with tables of these rows."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + tables(rows) + END + rest.partition(END)[2]


def kept() -> list[Row]:
    """Return the numbers that are kept."""
    with KEPT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    if sys.argv[1:]:
        found = {key(row): row for row in [*(kept() if KEPT.exists() else []), *measured(Path(sys.argv[1]))]}
        with KEPT.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(next(iter(found.values()))), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found[place] for place in sorted(found))
    PAGE.write_text(page(kept()), encoding="utf-8")
