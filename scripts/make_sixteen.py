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
from fedloom.evaluate.paired_differences import Noise, difference, pooled

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
LEFT = "as given"  # what tuning chose for a method that it left alone
LEVEL = 0.95

Row = dict[str, str]


def measured(folders: Sequence[Path], before: Sequence[Row] = ()) -> list[Row]:
    """Return a row for each run of the comparisons and of those before, in the order of the page."""
    found = {_key(row): row for row in before if row["chosen"] != LEFT}
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
    found |= {_key(row): row for row in _left(list(found.values()))}
    return [found[key] for key in sorted(found)]


def _left(rows: Sequence[Row]) -> list[Row]:
    """Return tuned rows of the methods that tuning left alone: those of their given settings."""
    moved = {(row["partition"], row["method"]) for row in rows if row["settings"] == "tuned"}
    given = [row for row in rows if row["settings"] == "given" and row["partition"] in {at for at, _ in moved}]
    return [
        row | {"settings": "tuned", "chosen": LEFT} for row in given if (row["partition"], row["method"]) not in moved
    ]


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
    """Return how many intervals there are, and the page's tables: for each partition as given and tuned.

    `seconds`: of a round of each method.
    """
    parts = [_table(rows, partition, settings, seconds) for partition, settings in _parts(rows)]
    count, surviving = (sum(part[i] for part in parts) for i in (1, 2))
    told = (
        f"{count} intervals of {100 * LEVEL:g} %, each by itself: with no difference at all, about "
        f"{(1 - LEVEL) * count:.0f} would leave out 0. **Bold**: the {surviving} that survive Holm's correction for "
        "all of their column.\n\n"
    )
    return told * (count > 0) + "\n".join(text for text, *_ in parts)


def _parts(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["partition"], row["settings"]) for row in rows))


def _table(rows: Sequence[Row], partition: str, settings: str, seconds: Mapping[str, float]) -> tuple[str, int, int]:
    """Return the table, the number of its intervals, and how many of these survive the correction."""
    mine = [row for row in rows if (row["partition"], row["settings"]) == (partition, settings)]
    by_method = {m: {r["seed"]: r for r in mine if r["method"] == m} for m in METHODS}
    by_method = {m: runs for m, runs in by_method.items() if runs}
    seeds = sorted({seed for runs in by_method.values() for seed in runs})
    several = len(seeds) > 1
    gaps = [
        _gaps(by_method, *beside)
        for beside in (("fedavg", "global_accuracy"), ("local_only", "personal_accuracy"))
        if several
    ]
    heads = ["global", "personal", "worst decile", "forgetting", "MB a round", "time of a round"]
    heads += ["global - `fedavg`", "personal - `local_only`"] * several + ["chosen"] * (settings == "tuned")
    title = f"{TITLES[partition]}, {LEFT if settings == 'given' else 'tuned'}, seeds {', '.join(seeds)}"
    lines = [f"| {title} | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for method, runs in by_method.items():
        cells = [_percent([float(r[name]) for r in runs.values() if r[name]]) for name in SHARES]
        sent = [float(r["mb_a_round"]) for r in runs.values() if r["mb_a_round"]]
        cells.append(f"{statistics.mean(sent):.2f}" if sent else "-")
        cells.append(f"{seconds[method] / seconds['fedavg']:.1f} x" if method in seconds else "-")
        cells += [texts.get(method, "-") for texts, *_ in gaps]
        if settings == "tuned":
            cells.append(next(r["chosen"] for r in runs.values()))
        lines.append(f"| `{method}`{_diverged(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n", sum(count for _, count, _ in gaps), sum(alive for *_, alive in gaps)


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


def _gaps(by_method: Mapping[str, Mapping[str, Row]], beside: str, name: str) -> tuple[dict[str, str], int, int]:
    """Return the mean difference of each method to another over common seeds, with its interval, as texts.

    Beside them the number of intervals, and of those that survive, which are bold. The rule is that of reports.
    """
    numbers = {m: {s: 100 * float(r[name]) for s, r in runs.items() if r[name]} for m, runs in by_method.items()}
    noise = pooled([{m: of for m, of in numbers.items() if of}])
    other = numbers.get(beside, {})
    both = {m: [of[s] - other[s] for s in of if s in other] for m, of in numbers.items() if m != beside}
    several = {m: gaps for m, gaps in both.items() if len(gaps) > 1}
    alive, tested = _surviving({m: gaps for m, gaps in several.items() if any(gaps)}, noise)
    texts = dict.fromkeys(several, "the same")
    for m in tested:
        gap = difference(several[m], noise, LEVEL)
        assert gap is not None
        text = f"{gap.mean:+.1f} [{gap.mean - gap.half:+.1f}, {gap.mean + gap.half:+.1f}]"
        texts[m] = f"**{text}**" if m in alive else text
    return texts, len(tested), len(alive)


def _surviving(gaps: Mapping[str, Sequence[float]], noise: Noise | None) -> tuple[set[str], list[str]]:
    """Return the methods whose differences survive Holm's correction, and all from the clearest on."""

    def clear(method: str) -> float:
        gap = difference(gaps[method], noise, LEVEL)
        return abs(gap.mean) / gap.half if gap is not None and gap.half else 0.0

    tested = sorted(gaps, key=clear, reverse=True)
    alive: set[str] = set()
    for i, method in enumerate(tested):
        gap = difference(gaps[method], noise, 1 - (1 - LEVEL) / (len(tested) - i))
        if gap is None or not gap.sign:
            break
        alive.add(method)
    return alive, tested


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
