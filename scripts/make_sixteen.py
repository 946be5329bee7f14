"""Make the table of docs/sixteen.md from runs of its command: first the numbers, then the page's tables.

    python scripts/make_sixteen.py runs/sixteen-dirichlet runs/sixteen-pathological
    python scripts/make_sixteen.py --times runs/short

Folders are those of comparisons that have ended: a run with fewer rounds has diverged, and is printed. What they have
takes the place of what is kept of the same methods, and the rest stays. Without a folder, the page is renewed from the
numbers that are kept. `--times`: a comparison with one seed on quiet cores, for the time of a round of each method.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedloom import History
from fedloom.cli.tune import SUFFIX
from fedloom.coordinator.history import MEASURING
from fedloom.report.over_seeds import interval

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sixteen.md"
KEPT = ROOT / "docs" / "results" / "sixteen.csv"
TIMES = ROOT / "docs" / "results" / "sixteen_times.csv"
BEGIN, END = "<!-- made by scripts/make_sixteen.py: from here -->\n", "<!-- to here -->\n"
SHARES = ("global_accuracy", "personal_accuracy", "personal_worst_tenth", "forgetting")
METHODS = (
    *("fedavg", "fedprox", "scaffold", "feddyn", "moon", "fedntd", "fedadam", "fedper", "fedrep", "fedbabu", "ditto"),
    *("apfl_deng", "pfedme", "fedproto", "fedrod", "pfedsd", "local_only"),
)
TITLES = {"dirichlet:0.1": "Dirichlet 0.1", "pathological:2": "Two classes a client"}
ROUNDS = 30

Row = dict[str, str]


def measured(folders: Sequence[Path], before: Sequence[Row] = ()) -> list[Row]:
    """Return a row for each run of the comparisons and of those before, in the order of the page."""
    found = {_key(row): row for row in before}
    for folder in folders:
        tuned = json.loads((folder / "comparison.json").read_text(encoding="utf-8")).get("tuning", {})
        chosen = {
            method: " ".join(f"{key.rpartition('.')[2]}={value:g}" for key, value in one["chosen"].items())
            for method, one in tuned.get("methods", {}).items()
            if one.get("moved")
        }
        partition = _settings(next(folder.rglob("settings.json")).parent)["data"]["partition"]
        # Tuned again, a method may stay as given, and then has no run here.
        again = [(partition, "tuned", method) for method in tuned.get("methods", {})]
        found = {k: row for k, row in found.items() if (row["partition"], row["settings"], row["method"]) not in again}
        for run in sorted(folder.rglob("metrics.jsonl")):
            if "tuning" in run.relative_to(folder).parts:
                continue
            row = _row(run.parent, chosen)
            found[_key(row)] = row
    return [found[key] for key in sorted(found)]


def _key(row: Row) -> tuple[int, str, int, int]:
    """Return what a run is, in the order of the page."""
    return list(TITLES).index(row["partition"]), row["settings"], METHODS.index(row["method"]), int(row["seed"])


def _settings(run: Path) -> dict[str, Any]:
    return json.loads((run / "settings.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _row(run: Path, chosen: dict[str, str]) -> Row:
    settings = _settings(run)
    last = History.read(run).metrics[-1]
    folder = next(part for part in run.parts[::-1] if part.removesuffix(SUFFIX) in METHODS)
    method = folder.removesuffix(SUFFIX)
    row: Row = {
        "partition": settings["data"]["partition"],
        "settings": "given" if folder == method else "tuned",
        "method": method,
        "seed": str(settings["run"]["seed"]),
        "rounds": str(last["round"]),
    }
    numbers = {name: last.get(name) for name in SHARES} | {"mb_a_round": (last["bytes_down"] + last["bytes_up"]) / 1e6}
    if last["round"] < ROUNDS:
        print(f"{run}: {last['round']} of {ROUNDS} rounds")
        numbers = dict.fromkeys(numbers)
    row |= {name: "" if value is None else str(value) for name, value in numbers.items()}
    return row | {"chosen": "" if folder == method else chosen[method]}


def times(folder: Path) -> list[Row]:
    """Return the median time of a round of each method without evaluation, the first one left out."""
    out = []
    for method in METHODS:
        timing = [t for t in History.read(folder / method).timing if t["round"] > 1]
        seconds = [sum(s for phase, s in t["seconds"].items() if phase not in MEASURING) for t in timing]
        out.append({"method": method, "seconds": f"{statistics.median(seconds):.3f}"})
    return out


def tables(rows: Sequence[Row], seconds: Mapping[str, float] = MappingProxyType({})) -> str:
    """Return the page's tables, one for each partition and for the settings as given and tuned.

    `seconds`: of a round of each method.
    """
    return "\n".join(_table(rows, partition, settings, seconds) for partition, settings in _parts(rows))


def _parts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["partition"], row["settings"]) for row in rows))


def _table(rows: Sequence[Row], partition: str, settings: str, seconds: Mapping[str, float]) -> str:
    """A method that tuning has left as it was stands in the tuned table with what its given settings came to."""
    mine = [row for row in rows if row["partition"] == partition and row["settings"] in ("given", settings)]
    by_method = {m: {r["seed"]: r for r in mine if r["method"] == m and r["settings"] == "given"} for m in METHODS}
    if settings == "tuned":
        by_method |= {
            m: moved for m in METHODS if (moved := {r["seed"]: r for r in mine if r["method"] == m and r["chosen"]})
        }
    by_method = {m: runs for m, runs in by_method.items() if runs}
    seeds = sorted({seed for runs in by_method.values() for seed in runs})
    several = len(seeds) > 1
    heads = ["global", "personal", "worst decile", "forgetting", "MB a round", "time of a round"]
    heads += ["global - `fedavg`", "personal - `local_only`"] * several + ["chosen"] * (settings == "tuned")
    title = f"{TITLES[partition]}, {'as given' if settings == 'given' else 'tuned'}, seeds {', '.join(seeds)}"
    lines = [f"| {title} | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for method, runs in by_method.items():
        cells = [_percent([float(r[name]) for r in runs.values() if r[name]]) for name in SHARES]
        sent = [float(r["mb_a_round"]) for r in runs.values() if r["mb_a_round"]]
        cells.append(f"{statistics.mean(sent):.2f}" if sent else "-")
        cells.append(f"{seconds[method] / seconds['fedavg']:.1f} x" if method in seconds else "-")
        if several:
            cells += [
                _gap(runs, by_method.get(beside, {}), name)
                for beside, name in (("fedavg", "global_accuracy"), ("local_only", "personal_accuracy"))
            ]
        if settings == "tuned":
            cells.append(next((r["chosen"] for r in runs.values() if r["chosen"]), "as given"))
        lines.append(f"| `{method}`{_diverged(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _diverged(runs: dict[str, Row]) -> str:
    """Return which seeds a method has no numbers of."""
    lost = [seed for seed, row in runs.items() if int(row["rounds"]) < ROUNDS]
    if not lost:
        return ""
    return " diverged" if len(lost) == len(runs) else f" (without seed{'s' * (len(lost) > 1)} {', '.join(lost)})"


def _percent(values: Sequence[float]) -> str:
    if not values:
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def _gap(runs: dict[str, Row], beside: dict[str, Row], name: str) -> str:
    """Return the mean difference over common seeds, and its 95 % interval."""
    gaps = [
        100 * (float(row[name]) - float(beside[seed][name]))
        for seed, row in runs.items()
        if row[name] and seed in beside and beside[seed][name]
    ]
    if runs is beside or len(gaps) < 2:
        return "-"
    gap = interval(gaps)
    return f"{gap.mean:+.1f} [{gap.low:+.1f}, {gap.high:+.1f}]"


def page(rows: Sequence[Row]) -> str:
    """Return what the page must hold: its text, with tables of these rows."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    seconds = {row["method"]: float(row["seconds"]) for row in kept(TIMES)}
    return before + BEGIN + tables(rows, seconds) + END + after


def kept(path: Path = KEPT) -> list[Row]:
    """Return the numbers that are kept."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _keep(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--times"]:
        _keep(TIMES, times(Path(sys.argv[2])))
    elif sys.argv[1:]:
        _keep(KEPT, measured([Path(name) for name in sys.argv[1:]], kept()))
    PAGE.write_text(page(kept()), encoding="utf-8")
