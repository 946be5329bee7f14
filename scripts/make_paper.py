"""Make the numbers of docs/paper/fedloom.typ from what is kept, and the paper.

    python scripts/make_paper.py              numbers.json; fedloom.pdf where the package typst is installed
    python scripts/make_paper.py --measure    each method on two engines first: docs/results/equality.csv (a minute)

Nothing is typed into the paper: it reads numbers.json, and `tests/scripts/test_make_paper.py` says when that is old.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")]

PAPER = ROOT / "docs" / "paper"
NUMBERS = PAPER / "numbers.json"
RESULTS = ROOT / "docs" / "results"
EQUALITY = RESULTS / "equality.csv"
SHOWN = ("fedprox", "fedntd", "pfedsd", "apfl_ni", "kt_pfl", "dense")


def seam() -> dict[str, Any]:
    """Return what one must read: statements of the kernel, and of some methods' files."""
    from concepts import concepts
    from size import code, rows_of

    folder = ROOT / "src" / "fedloom" / "algorithms"
    files = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py") if path.stem != "__init__"}
    design = rows_of((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))
    names = len(json.loads((ROOT / "src/fedloom/cli/index.json").read_text(encoding="utf-8"))["algorithms"])
    return {
        "methods": names,
        "files": len(files),
        "kernel": design["statements behind fedloom.run"][1],
        "before": design["statements behind fedloom.run"][0],
        "wheel": design["statements of the wheel"][1],
        "median": int(statistics.median(code(text) for text in files.values())),
        "engines": sum("fedloom.engines" in text for text in files.values()),
        "shown": {
            name: {"code": code(files[name]), "concepts": sum(map(len, concepts(files[name])))} for name in SHOWN
        },
    }


def equality() -> dict[str, Any]:
    """Return how far engines are from each other, of the kept measurement."""
    with EQUALITY.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    far = {row["method"]: float(row["stacked"]) for row in rows}
    return {
        "methods": len(rows),
        "exact": sum(float(row["messages"]) == 0 for row in rows),
        "worst": f"{max(far.values()):.0e}",
        "median": f"{statistics.median(far.values()):.0e}",
    }


def golden() -> dict[str, Any]:
    """Return how many rows of docs/papers.md compare with numbers that are not fedloom's."""
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| .*::test_.* \|$", text, re.MULTILINE)
    defects = (ROOT / "docs" / "public-defects.md").read_text(encoding="utf-8")
    found = [row for row in re.findall(r"^\| .* \|$", defects, re.MULTILINE) if not row.startswith("| repository")]
    return {
        "rows": len(table),
        "files": len([path for path in (ROOT / "tests" / "golden").rglob("*") if path.suffix in (".npz", ".json")]),
        "defects": len(found),
    }


def claims() -> dict[str, Any]:
    """Return the claims of each source and their comparisons by verdict, of the record that fedloom-papers has."""
    record = json.loads((ROOT / "papers/src/fedloom_papers/claims.json").read_text(encoding="utf-8"))
    sources = [
        {
            "title": mine["title"],
            "claims": Counter(row["said"].partition(",")[0] for row in mine["claims"]),
            "comparisons": mine["comparisons"],
        }
        for mine in record["sources"].values()
    ]
    rate = re.search(r"calls ([0-9.]+) % different", record["rule"])
    assert rate is not None
    return {
        "sources": sources,
        "comparisons": sum((Counter(one["comparisons"]) for one in sources), Counter[str]()),
        "claims": sum((one["claims"] for one in sources), Counter[str]()),
        "false alarms": rate[1],
    }


def speed() -> dict[str, Any]:
    """Return the least of each program's times by case, what one process beside costs, and the machine."""
    from peer_work import CASES
    from run_peers import PEERS, kept, per_step, spread, whole_run

    rows = kept()
    cases = {}
    for case in CASES.values():
        value = whole_run if case.name == "blazefl" else per_step
        mine = {
            name: [value(row) for row in rows if (row["case"], row["program"], row["busy"]) == (case.name, name, "0")]
            for name in PEERS
        }
        beside = [
            value(row) for row in rows if (row["case"], row["program"], row["busy"]) == (case.name, "fedloom", "1")
        ]
        cases[case.name] = {
            "words": case.words,
            "unit": "s" if case.name == "blazefl" else "µs",
            "times": {PEERS[name]: spread(found) for name, found in mine.items() if found},
            "best": min((n for n in mine if mine[n]), key=lambda n: statistics.median(mine[n])),
            "beside": round(statistics.median(beside) / statistics.median(mine["fedloom"]), 2) if beside else None,
        }
    return {
        "cases": cases,
        "programs": list(PEERS.values()),
        "best": [PEERS[case["best"]] for case in cases.values()],
        "machine": sorted({row["machine"] for row in rows}),
    }


def costs() -> dict[str, Any]:
    """Return virtual seconds and megabytes up to 95 % of the end of the run that waits, and accuracy by epsilon."""
    with (RESULTS / "time.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["data"] == "cifar"]
    with (RESULTS / "private.csv").open(newline="", encoding="utf-8") as file:
        private = list(csv.DictReader(file))
    ways = dict[str, Any]()
    for way in ("sync", "spares", "late", "semi", "fedbuff", "fedasync"):
        mine = [row for row in rows if row["way"] == way]
        there = [float(row["seconds_to"]) for row in mine if row["seconds_to"]]
        ways[way] = {
            "seconds": f"{statistics.fmean(there):.0f} ± {statistics.stdev(there):.0f}",
            "reached": f"{len(there)} of {len(mine)}",
            "accuracy": f"{100 * statistics.fmean(float(row['accuracy']) for row in mine):.1f}",
        }
    accuracy = dict[str, list[str]]()
    for method, measure in (
        ("fedavg", "global_accuracy"),
        ("fedrep", "personal_accuracy"),
        ("ditto", "personal_accuracy"),
    ):
        accuracy[method] = [
            f"{100 * statistics.fmean(found):.1f}"
            if (
                found := [
                    float(row[measure])
                    for row in private
                    if (row["method"], row["privacy"]) == (method, f"central:{kind},delta=1e-5,clip=0.5")
                ]
            )
            else "-"
            for kind in ("noise=0", "epsilon=8", "epsilon=4", "epsilon=2", "epsilon=1")
        ]
    alone = [
        float(row["personal_accuracy"]) for row in private if (row["method"], row["cohort"]) == ("local_only", "1000")
    ]
    return {"ways": ways, "accuracy": accuracy, "alone": f"{100 * statistics.fmean(alone):.1f}"}


def numbers() -> dict[str, Any]:
    """Return all numbers of the paper."""
    return {
        "seam": seam(),
        "equality": equality(),
        "golden": golden(),
        "claims": claims(),
        "speed": speed(),
        "costs": costs(),
    }


def text() -> str:
    """Return what numbers.json must hold."""
    return json.dumps(numbers(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def measure() -> None:
    """Run each method of the catalogue on the tiny federation in float64, and keep the largest differences.

    Largest are those of a tensor of server, clients' states or personal models after three rounds, relative to the
    larger of 1 and the tensor's largest number: of the stack, and of requests and answers as bytes, beside the loop.
    """
    from gpu import largest, of, small

    import fedloom as fl
    from fedloom.engines.loop import Loop
    from fedloom.engines.stacked import Stacked
    from fedloom.testing import Subject
    from fedloom.testing.messages import Messages

    warnings.simplefilter("ignore")
    with EQUALITY.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "stacked", "messages"])
        for name, method in fl.algorithms.ALGORITHMS.items():
            subject = Subject.of(small(method()))
            loop = of(subject.run(Loop))
            others = [largest(loop, of(subject.run(kind))) for kind in (Stacked, Messages)]
            writer.writerow([name, *(f"{value:.3g}" for value in others)])
            print(name, *others, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="compare the engines anew")
    if parser.parse_args().measure:
        measure()
    NUMBERS.write_text(text(), encoding="utf-8")
    try:
        import typst
    except ImportError:
        print("numbers.json is made; for the paper: pip install typst")
        return
    typst.compile(PAPER / "fedloom.typ", output=PAPER / "fedloom.pdf")


if __name__ == "__main__":
    main()
