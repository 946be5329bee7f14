"""Ranks that are killed: over Gloo the run goes on without one that computes, and any run goes on with --resume.

    python tests/attack/ranks.py --kills 20

SIGKILL, of a rank that computes clients or of rank 0, at a random moment. In the end metrics.jsonl must have the bytes
of a run of the loop that was left alone, and what rank 0 leaves behind must let the others end by themselves.
"""

from __future__ import annotations

import argparse
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
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import launching
import runs
from kills import lines

CASES = (("gloo", "rank"), ("gloo", "server"), ("mpi", "rank"), ("mpi", "server"))
ALGORITHM = "pfedsd"


def run(transport: str, rounds: int, directory: str) -> None:
    """One rank's part."""
    runs.quiet()
    from fedloom.engines.communication import rank_here

    rank: Any = rank_here(transport)  # type: ignore[arg-type]
    Path(f"{directory}-{rank}.pid").write_text(str(os.getpid()))
    runs.job(ALGORITHM, transport, rounds).run(directory, resume=True)


def of_gloo(rank: int, port: int, rounds: int, directory: str) -> None:
    os.environ.update(launching.environment(rank, 3, port))
    run("gloo", rounds, directory)


class Launched:
    """Three ranks of a run."""

    def __init__(self, transport: str, rounds: int, directory: Path) -> None:
        self.directory = directory
        for file in directory.parent.glob("*.pid"):
            file.unlink()
        if transport == "gloo":
            port = launching.free_port()
            fork = runs.forkserver().Process
            self.processes = [fork(target=of_gloo, args=(r, port, rounds, str(directory))) for r in range(3)]
            for process in self.processes:
                process.start()
        else:
            program = [__file__, "--run", transport, str(rounds), str(directory)]
            self.processes = launching.mpi(program)

    def running(self) -> bool:
        return any(self.status(p) is None for p in self.processes)

    @staticmethod
    def status(process: Any) -> int | None:
        return process.poll() if hasattr(process, "poll") else process.exitcode  # type: ignore[no-any-return]

    def kill(self, rank: int) -> bool:
        """Whether there was still one to kill."""
        file = Path(f"{self.directory}-{rank}.pid")
        if not file.exists() or not self.running():
            return False
        try:
            os.kill(int(file.read_text() or 0) or os.getpid() + (1 << 30), signal.SIGKILL)
        except (ProcessLookupError, OverflowError):
            return False
        return True

    def end(self, seconds: float) -> list[int | None]:
        """The exit status of each; None where it did not end by itself."""
        until = time.monotonic() + seconds
        while self.running() and time.monotonic() < until:
            time.sleep(0.02)
        found = [self.status(p) for p in self.processes]
        for process in self.processes:
            process.kill()
            if getattr(process, "stdout", None):
                process.stdout.close()
        return found


def attack(transport: str, victim: str, kills: int, seed: int, folder: Path, rounds: int = 60) -> tuple[int, list[str]]:
    """(how often a rank was killed, what went wrong)."""
    rng, wrong, killed = random.Random(f"{seed} {transport} {victim}"), list[str](), 0
    cut, whole = folder / "cut", folder / "whole"
    runs.job(ALGORITHM, "loop", rounds).run(whole)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each transport and victim")
    parser.add_argument("--rounds", type=int, default=60, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", nargs=3, metavar=("TRANSPORT", "ROUNDS", "DIR"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.run:
        run(args.run[0], int(args.run[1]), args.run[2])
        return 0
    bad = 0
    for transport, victim in CASES:
        with tempfile.TemporaryDirectory() as folder:
            killed, wrong = attack(transport, victim, args.kills, args.seed, Path(folder), args.rounds)
        bad += len(wrong) + (killed < args.kills)
        print(f"{transport:5} {victim:7} {killed:4} kills, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
