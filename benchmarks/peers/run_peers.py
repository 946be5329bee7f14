"""Other simulators of federated learning, hand-written PyTorch and fedloom do the same work (`make bench-peers`).

    python benchmarks/peers/run_peers.py           # what is not kept yet of two repetitions, at most 12 minutes
    python benchmarks/peers/run_peers.py --busy 1 --only fedloom,by_hand --cases cnn
    python benchmarks/peers/run_peers.py --same    # does everybody compute the same? keeps nothing
    python benchmarks/peers/run_peers.py --page    # docs/peers-speed.md from what is kept

Each measurement is a row of docs/results/peers.csv at once, so that a stopped run goes on where it was. A repetition
goes through all cases, and through everybody in each; the product of two matrices of 1,024 is timed just before.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from peer_networks import loss_of
from peer_work import CASES, SAME, Case, Work, cores, make

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "results" / "peers.csv"
PAGE = ROOT / "docs" / "peers-speed.md"
BEGIN, END = "<!-- made by benchmarks/peers/run_peers.py: from here -->\n", "<!-- to here -->\n"
PEERS = {
    "fedloom": "fedloom",
    "by_hand": "by hand",
    "fedjax": "FedJAX",
    "pfl": "pfl-research",
    "flower": "Flower",
    "blazefl": "BlazeFL",
}
OWN = ("fedloom", "by_hand")  # in fedloom's environment
# Rounds of the slower ones, where a round costs the same as any other.
FEWER = {
    "logistic10": {"fedjax": 30, "pfl": 20, "flower": 6, "blazefl": 6},
    "logistic100": {"fedjax": 8, "pfl": 5, "flower": 3, "blazefl": 3},
    "lenet": {"flower": 5, "blazefl": 5},
    "cnn": {"flower": 4, "blazefl": 4, "fedjax": 3},
    "blazefl": {"fedloom": 3, "by_hand": 3, "fedjax": 2, "pfl": 2, "flower": 2, "blazefl": 2},
}
# Clients of one whose round costs nothing but its clients: its seconds are multiplied by what is left out.
PART = {("blazefl", "fedjax"): 10}
COLUMNS = (
    "repetition", "busy", "case", "program", "rounds", "first", "later", "loss", "gemm", "load", "minute", "form",
    "versions", "machine",
)  # fmt: skip
Row = dict[str, str]


def environment(name: str) -> Path | None:
    """Return the Python of a program, None where its environment has not been made."""
    python = Path(sys.executable) if name in OWN else ROOT / ".peers" / name / "bin" / "python"
    return python if python.exists() else None


def run(name: str, folder: Path, rounds: int, limit: float) -> dict[str, object]:
    """Return what a program says of its rounds.

    Raises:
        RuntimeError: it failed, or took longer than `limit` seconds.
    """
    (folder / "end.npz").unlink(missing_ok=True)
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"))}
    mine["PYTHONPATH"] = str(ROOT / "src") if name == "fedloom" else ""
    command = [str(environment(name)), str(Path(__file__).parent / f"peer_{name}.py"), str(folder), str(rounds)]
    # A session of its own, so that all that it started ends with it.
    process = subprocess.Popen(
        command, env=mine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        printed, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} took longer than {limit:.0f} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    lines = [line for line in printed.splitlines() if line.startswith('{"seconds"')]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)} failed ({process.returncode}):\n{said[-2000:]}")
    answer: dict[str, object] = json.loads(lines[-1])
    return answer


def loss(folder: Path) -> float:
    """Return the mean loss of the trained parameters over the first 2,000 examples."""
    work = Work(folder)
    rows = slice(0, 2000)
    with np.load(folder / "end.npz") as file:
        end = [file[name] for name in sorted(file.files)]
    x = torch.from_numpy(work.bytes[rows]).float().div_(127.5).sub_(1)
    return loss_of(work.case, end, x, torch.from_numpy(work.y[rows]))


def gemm() -> float:
    """Return the GFLOP/s of float32 products of 1,024 by 1,024 matrices on all cores, the best of some."""
    a, best = torch.rand(1024, 1024), float("inf")
    for _ in range(12):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best / 1e9


def machine() -> str:
    """Return the cores and the processor in words."""
    words = dict[str, str]()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        words.setdefault(key.strip(), value.strip())
    name = words.get("model name", platform.machine())
    return f"{cores()} cores of {name} (family {words.get('cpu family', '?')}, model {words.get('model', '?')})"


def measure(args: argparse.Namespace) -> None:
    """Measure what is not kept yet, until the time is over."""
    until = time.monotonic() + 60 * args.minutes
    names = [name for name in args.only.split(",") if environment(name)]
    for name in set(args.only.split(",")) - set(names):
        print(f"{PEERS[name]}: no environment, run `make .peers/{name}`")
    done = {(r["repetition"], r["busy"], r["case"], r["program"]) for r in kept()}
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.busy)]
    try:
        with tempfile.TemporaryDirectory() as temporary:
            for repetition in range(args.repeat):
                for case in (CASES[name] for name in args.cases.split(",")):
                    turn = names[repetition % len(names) :] + names[: repetition % len(names)]
                    for name in turn:
                        if (str(repetition), str(args.busy), case.name, name) in done:
                            continue
                        if time.monotonic() > until:
                            print("time is over: call again for the rest")
                            return
                        clients = PART.get((case.name, name), case.clients)
                        folder = Path(temporary) / f"{case.name}-{clients}"
                        if not folder.exists():
                            make(dataclasses.replace(case, clients=clients), folder)
                        keep(one(repetition, args.busy, case, name, folder, args.limit))
        print("all is kept")
    finally:
        for process in others:
            process.kill()


def one(repetition: int, busy: int, case: Case, name: str, folder: Path, limit: float) -> Row | None:
    """Return the row of one measurement, None where the program failed."""
    rounds = FEWER.get(case.name, {}).get(name, case.rounds)
    rate, load = gemm(), os.getloadavg()[0]
    try:
        answer = run(name, folder, rounds, limit)
    except RuntimeError as error:
        print(error)
        return None
    seconds = answer["seconds"]
    assert isinstance(seconds, list)
    assert isinstance(answer["versions"], dict)
    first, later = seconds[0], statistics.median(seconds[1:])
    times = case.clients / PART.get((case.name, name), case.clients)
    first, later = first + (times - 1) * later, times * later
    print(
        f"{repetition} {case.name:12s} {name:8s} {first:8.2f} s first, {1e6 * later / case.steps:9.1f} us a step, "
        f"GEMM {rate:.0f} GFLOP/s, load {load:.1f}",
        flush=True,
    )
    versions = ", ".join(f"{k} {v}" for k, v in answer["versions"].items())
    values = {
        "repetition": repetition,
        "busy": busy,
        "case": case.name,
        "program": name,
        "rounds": len(seconds),
        "first": f"{first:.4g}",
        "later": f"{later:.6g}",
        "loss": f"{loss(folder):.5f}",
        "gemm": f"{rate:.1f}",
        "load": f"{load:.1f}",
        "minute": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "form": answer["form"] + (f", {PART[case.name, name]} clients" if times > 1 else ""),
        "versions": versions,
        "machine": machine(),
    }
    return {column: str(values[column]) for column in COLUMNS}


def keep(row: Row | None) -> None:
    """Add a row to the kept file."""
    if row is None:
        return
    new = not KEPT.exists()
    with KEPT.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def kept() -> list[Row]:
    """Return the rows that are kept."""
    if not KEPT.exists():
        return []
    with KEPT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same(names: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return the loss of each (network, program) where the order of batches makes no difference."""
    out = dict[tuple[str, str], float]()
    with tempfile.TemporaryDirectory() as temporary:
        for network, case in SAME.items():
            folder = Path(temporary) / network
            make(case, folder)
            for name in names:
                if environment(name):
                    run(name, folder, case.rounds, 600)
                    out[network, name] = loss(folder)
                    print(f"{network:10s} {name:8s} {out[network, name]:.7f}", flush=True)
    return out


# The page.


def spread(values: Sequence[float], digits: int | None = None) -> str:
    """Return least to greatest, with three figures."""
    low, high = min(values), max(values)
    if digits is None:
        digits = 0 if high >= 100 else 1 if high >= 10 else 2
    texts = [f"{value:,.{digits}f}" for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def whole_run(row: Row) -> float:
    """Return the seconds of BlazeFL's five rounds, the first and four others."""
    return float(row["first"]) + 4 * float(row["later"])


def per_step(row: Row) -> float:
    """Return the microseconds of one client-step after the first round."""
    return 1e6 * float(row["later"]) / CASES[row["case"]].steps


def tables(rows: Sequence[Row]) -> str:
    """Return the tables of what is kept, and who wins where."""
    out = list[str]()
    for busy in sorted({row["busy"] for row in rows}):
        beside = {"0": "Nothing else running", "1": "Beside one process that never rests"}.get(
            busy, f"Beside {busy} processes that never rest"
        )
        mine = [row for row in rows if row["busy"] == busy]
        names = [name for name in PEERS if any(row["program"] == name for row in mine)]
        out += [f"### {beside}", "", f"| | {' | '.join(PEERS[n] for n in names)} | GEMM, GFLOP/s | load before |"]
        out.append("|---" * (len(names) + 3) + "|")
        for case in CASES.values():
            there = [row for row in mine if row["case"] == case.name]
            if not there:
                continue
            value, unit = (
                (whole_run, "s, all five rounds") if case.name == "blazefl" else (per_step, "us a client-step")
            )
            found = {n: [value(row) for row in there if row["program"] == n] for n in names}
            best = min((n for n in names if found[n]), key=lambda n: statistics.median(found[n]))
            cells = [(f"**{spread(v)}**" if n == best else spread(v)) if (v := found[n]) else "-" for n in names]
            rate, load = (spread([float(row[key]) for row in there], d) for key, d in (("gemm", 0), ("load", 1)))
            out.append(f"| {case.words} ({unit}) | {' | '.join(cells)} | {rate} | {load} |")
        out.append("")
        out += [*verdicts(mine), ""]
    out += ["### Loss at the end, rounds, what computed it", "", "| | " + " | ".join(PEERS.values()) + " |"]
    out.append("|---" * (len(PEERS) + 1) + "|")
    for case in CASES.values():
        cells = list[str]()
        for name in PEERS:
            there = [row for row in rows if (row["case"], row["program"]) == (case.name, name)]
            said = (
                f"{spread([float(r['loss']) for r in there], 3)} after {there[0]['rounds']}; {there[0]['form']}"
                if there
                else "-"
            )
            cells.append(said)
        out.append(f"| {case.words} | {' | '.join(cells)} |")
    versions = {row["program"]: row["versions"] for row in rows}
    out += ["", "Versions: " + "; ".join(f"{PEERS[n]}: {versions[n]}" for n in PEERS if n in versions) + "."]
    machines = "; ".join(sorted({row["machine"] for row in rows}))
    minutes = sorted(row["minute"] for row in rows)
    out.append(f"Machine: {machines}. Measured {minutes[0]} to {minutes[-1]} UTC.")
    return "\n".join(out) + "\n"


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return a line a case: who is first, and where fedloom stands."""
    out = list[str]()
    for case in CASES.values():
        value = whole_run if case.name == "blazefl" else per_step
        found = {
            name: statistics.median(values)
            for name in PEERS
            if (values := [value(r) for r in rows if (r["case"], r["program"]) == (case.name, name)])
        }
        if "fedloom" not in found or len(found) < 2:
            continue
        order = sorted(found, key=found.__getitem__)
        ratios = ", ".join(f"{PEERS[n]} {found[n] / found['fedloom']:.2f}" for n in order if n != "fedloom")
        place = order.index("fedloom") + 1
        stands = "fedloom is first" if place == 1 else f"{PEERS[order[0]]} is first, fedloom number {place}"
        out.append(f"- {case.words}: {stands}. Times of the others as multiples of fedloom's: {ratios}.")
    return out


def page(rows: Sequence[Row]) -> str:
    """Return what the page must hold: its text, with tables of these rows."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    made = tables(rows) if rows else "Nothing is measured yet: `make bench-peers`.\n"
    return before + BEGIN + "\n" + made + END + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PEERS), help="programs, with commas")
    parser.add_argument("--cases", default=",".join(CASES), help="cases, with commas")
    parser.add_argument("--repeat", type=int, default=2, help="repetitions that the kept file shall have")
    parser.add_argument("--busy", type=int, default=0, help="processes beside that never rest")
    parser.add_argument("--minutes", type=float, default=12, help="no measurement begins after these")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which a program is stopped")
    parser.add_argument(
        "--same", action="store_true", help="only compare losses where the order of batches is the same"
    )
    parser.add_argument("--page", action="store_true", help="only write the page")
    args = parser.parse_args()
    if args.same:
        same(args.only.split(","))
        return
    if not args.page:
        measure(args)
    PAGE.write_text(page(kept()), encoding="utf-8")


if __name__ == "__main__":
    main()
