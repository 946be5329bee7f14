"""Ranks that are killed or frozen: over Gloo the run goes on without one that computes, and any run goes on with
--resume.

    python tests/attack/ranks.py --kills 20

SIGKILL, of a rank that computes clients or of rank 0, at a random moment. In the end metrics.jsonl must have the bytes
of a run of the loop that was left alone, and what rank 0 leaves behind must let the others end by themselves.

SIGSTOP, of a rank that computes, until the deadline of its clients has passed; then it is woken or killed. They are
lost. In the end the failures that metrics.jsonl names are given to the loop as `faults`: all its numbers, the
server's state and every client's must have the bits of the run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import runs
from kills import lines

import launching
from fedloom import Job
from fedloom.engines.faults import NOT_WITHIN, lost_again

CASES = [(transport, victim) for transport in ("gloo", "mpi") for victim in ("rank", "server", "frozen")]
ALGORITHM = "pfedsd"
DEADLINE = 0.5  # seconds, where ranks are frozen


def job(engine: str, rounds: int, deadline: float | None = None) -> Job:
    """The run; as one with a deadline it is evaluated at its end, since who is evaluated has no deadline."""
    made = runs.job(ALGORITHM, engine, rounds)
    every = 1 if deadline is None else rounds
    return dataclasses.replace(made, settings=dataclasses.replace(made.settings, deadline=deadline, eval_every=every))


def run(transport: str, rounds: int, directory: str, deadline: float | None) -> None:
    """One rank's part."""
    runs.quiet()
    from fedloom.ranks.launched import rank_here

    rank: Any = rank_here(transport)  # type: ignore[arg-type]
    Path(f"{directory}-{rank}.pid").write_text(str(os.getpid()))
    job(transport, rounds, deadline).run(directory, resume=True)


class Launched:
    """Three ranks of a run."""

    def __init__(self, transport: str, rounds: int, directory: Path, deadline: float | None = None) -> None:
        self.directory = directory
        for file in directory.parent.glob("*.pid"):
            file.unlink()
        program = [__file__, "--run", transport, str(rounds), str(directory), str(deadline or 0)]
        self.processes: Any = launching.gloo([program] * 3) if transport == "gloo" else launching.mpi(program)

    def running(self) -> bool:
        return any(p.poll() is None for p in self.processes)

    def kill(self, rank: int, by: int = signal.SIGKILL) -> bool:
        """Send a rank a signal: whether it was still there."""
        file = Path(f"{self.directory}-{rank}.pid")
        if not file.exists() or not self.running():
            return False
        try:
            os.kill(int(file.read_text() or 0) or os.getpid() + (1 << 30), by)
        except (ProcessLookupError, OverflowError):
            return False
        return True

    def end(self, seconds: float) -> list[int | None]:
        """The exit status of each; None where it did not end by itself."""
        until = time.monotonic() + seconds
        while self.running() and time.monotonic() < until:
            time.sleep(0.02)
        found = [p.poll() for p in self.processes]
        for process in self.processes:
            process.kill()
            process.stdout.close()
        return found


def attack(transport: str, victim: str, kills: int, seed: int, folder: Path, rounds: int = 60) -> tuple[int, list[str]]:
    """(how often a rank was killed, what went wrong)."""
    rng, wrong, killed = random.Random(f"{seed} {transport} {victim}"), list[str](), 0
    cut, whole = folder / "cut", folder / "whole"
    job("loop", rounds).run(whole)
    want, deadline = (whole / "metrics.jsonl").read_bytes(), time.monotonic() + 300 + 60 * kills
    survives = (transport, victim) == ("gloo", "rank")
    while killed < kills and time.monotonic() < deadline:
        log, launched = cut / "metrics.jsonl", Launched(transport, rounds, cut)
        seen = lines(log) + rng.randrange(12)
        while launched.running() and lines(log) <= min(seen, rounds - 2):
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        hit = launched.kill(rng.choice((1, 2)) if victim == "rank" else 0)
        killed += hit
        status = launched.end(300)  # on a busy machine; who is not done by then hangs
        if None in status:
            wrong.append(f"after {killed} kills a rank did not end by itself: {status}")
        if hit and survives and status[0] != 0:
            wrong.append(f"after {killed} kills the server did not go on: {status}")
        if lines(log) > rounds:
            wrong += [] if log.read_bytes() == want else [f"metrics differ after {killed} kills"]
            cut.rename(folder / f"finished-{killed}-{time.monotonic_ns()}")
    if cut.exists():
        launched = Launched(transport, rounds, cut)
        status = launched.end(300)
        wrong += [] if set(status) == {0} else [f"the last run ended with {status}"]
        wrong += [] if (cut / "metrics.jsonl").read_bytes() == want else ["metrics differ in the end"]
    return killed, wrong


def freeze(transport: str, times: int, seed: int, folder: Path, rounds: int = 60) -> tuple[int, list[str]]:
    """(how often clients were lost since their rank was frozen, what went wrong)."""
    rng, wrong, lost, runs_made = random.Random(f"{seed} {transport} frozen"), list[str](), 0, 0
    until = time.monotonic() + 300 + 60 * times
    while lost < times and time.monotonic() < until:
        cut, runs_made = folder / f"cut{runs_made}", runs_made + 1
        log = cut / "metrics.jsonl"
        while lines(log) <= rounds:
            launched = Launched(transport, rounds, cut, DEADLINE)
            while True:
                seen = lines(log) + rng.randrange(1, 12)
                while launched.running() and lines(log) <= min(seen, rounds - 2):
                    time.sleep(0.002)
                if lines(log) > rounds - 2 or not launched.running() or time.monotonic() > until:
                    break  # frozen again and again it would never come to its end
                time.sleep(rng.random() * 0.05)
                rank = rng.choice((1, 2))
                if launched.kill(rank, signal.SIGSTOP):
                    time.sleep(DEADLINE * rng.choice((0.5, 1.5, 3)))
                    after = rng.choice((signal.SIGCONT, signal.SIGCONT, signal.SIGCONT, signal.SIGKILL))
                    launched.kill(rank, after)
                    if after == signal.SIGKILL:  # one is left, or the job ends
                        break
            status = launched.end(300)
            if None in status:
                wrong.append(f"a rank did not end by itself: {status}")
            if transport == "gloo" and status[0] != 0:
                wrong.append(f"the server did not go on: {status}")
                break
        found, mistakes = as_faults(transport, cut, rounds)
        lost, wrong = lost + found, wrong + mistakes
    return lost, wrong


def as_faults(transport: str, directory: Path, rounds: int) -> tuple[int, list[str]]:
    """(in how many rounds somebody was lost, in what the loop that loses the same clients differs)."""
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    found = sum(any(why.startswith(NOT_WITHIN) for why in m["failed"].values()) for m in records[1:])
    got = job(transport, rounds, DEADLINE).restore(directory)
    alone = job("loop", rounds, DEADLINE)
    settings = dataclasses.replace(alone.settings, deadline=None)
    reference = dataclasses.replace(alone, settings=settings, faults=lost_again(records, alone.faults))
    loop = directory.parent / f"loop-{directory.name}"
    want = reference.run(loop)
    same = {
        name: (directory / name).read_bytes() == (loop / name).read_bytes()
        for name in ("metrics.jsonl", "clients.jsonl")
    }
    same["the server's state"] = runs.same(got.server, want.server)
    clients = [dict(sorted(each.items())) for each in (got.engine.clients, want.clients)]  # who was asked last is last
    same["clients' states"] = runs.same(*clients)
    return found, [f"{what} differs from the loop that loses the same" for what, ok in same.items() if not ok]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each case; where frozen, rounds that lose clients")
    parser.add_argument("--only", nargs="*", choices=[*map("-".join, CASES)], help="cases")
    parser.add_argument("--rounds", type=int, default=60, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", nargs=4, metavar=("TRANSPORT", "ROUNDS", "DIR", "SECONDS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.run:
        run(args.run[0], int(args.run[1]), args.run[2], float(args.run[3]) or None)
        return 0
    bad = 0
    for transport, victim in CASES:
        if args.only and f"{transport}-{victim}" not in args.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if victim == "frozen":
                count, wrong = freeze(transport, args.kills, args.seed, folder, args.rounds)
            else:
                count, wrong = attack(transport, victim, args.kills, args.seed, folder, args.rounds)
        bad += len(wrong) + (count < args.kills)
        what = "rounds that lost clients" if victim == "frozen" else "kills"
        print(f"{transport:5} {victim:7} {count:4} {what}, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
