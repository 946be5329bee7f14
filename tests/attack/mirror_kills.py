"""Machines that are lost: a run is killed, its folder is gone, and it goes on elsewhere from its mirror alone.

    python tests/attack/mirror_kills.py --kills 50

SIGKILL: a third at a random moment, a third just before the n-th time that the process touches a file of the mirror, so
that uploads, records and deletions are left half, a third likewise with a file of the run. After every kill the folder
is given up: `fetch` must bring a whole run from the mirror, or say that there is none yet, where the run begins anew.
At the end metrics.jsonl must have the bytes, and server and clients the bits, of a run that was left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
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

import kills
import runs

from fedloom import Job, verify
from fedloom.core.errors import SettingError
from fedloom.mirror.fetch import fetch

CASES = (("pfedsd", "loop"), ("fedavg", "stacked"), ("kt_pfl", "loop"), ("scaffold", "workers"), ("fedbuff", "loop"))


def mirrored(name: str, engine: str, rounds: int, address: str) -> Job:
    job = runs.job(name, engine, rounds)
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, mirror=address))


def child(folder: str, mirror: str, name: str, engine: str, rounds: int, watched: str, die_at: int | None) -> None:
    """Go on with a run; die just before touching a file below `watched` for the `die_at`-th time."""
    runs.quiet()
    touched = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal touched
        if event in kills.EVENTS and str(args[0]).startswith(watched):
            touched += 1
            if touched == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if die_at is not None:
        sys.addaudithook(hook)
    mirrored(name, engine, rounds, f"file://{mirror}").run(folder, resume=True)


def attack(name: str, engine: str, count: int, seed: int, folder: Path, rounds: int) -> tuple[int, list[str]]:
    """(how often a machine was lost, what went wrong)."""
    rng, wrong, lost, mirror = random.Random(f"{seed} {name} {engine}"), list[str](), 0, folder / "mirror"
    reference = runs.job(name, engine, rounds).run(folder / "whole")
    while True:
        here = folder / f"machine-{lost}"
        try:
            fetch(f"file://{mirror}", here)
            wrong += [f"not whole after {lost} kills: {problem}" for problem in verify(here).problems]
        except SettingError as error:
            if "no whole run" not in str(error):
                raise
        way = rng.choice(("time", "mirror", "run")) if lost < count else ""
        watched, die_at = (
            str(mirror if way == "mirror" else here),
            None if way in ("time", "") else rng.randrange(1, 90),
        )
        arguments = (str(here), str(mirror), name, engine, rounds, watched, die_at)
        process = runs.forkserver().Process(target=child, args=arguments)
        process.start()
        if way == "time":
            time.sleep(rng.random() * 0.6)
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            lost += 1
            continue
        if process.exitcode != 0:
            return lost, [*wrong, f"failed to go on after {lost} kills: status {process.exitcode}"]
        end = folder / f"end-{lost}"
        fetch(f"file://{mirror}", end)  # what a machine that comes later finds
        wrong += [f"at the end: {problem}" for problem in differences(name, engine, rounds, reference, folder, end)]
        if lost >= count or wrong:
            return lost, wrong
        os.rename(
            mirror, folder / f"finished-{lost}-{time.monotonic_ns()}"
        )  # it ended too soon: once more from the start
        os.rename(here, folder / f"ended-{lost}-{time.monotonic_ns()}")
        os.rename(end, folder / f"compared-{lost}-{time.monotonic_ns()}")


def differences(name: str, engine: str, rounds: int, reference: Any, folder: Path, end: Path) -> list[str]:
    found = [
        f"{log} differs"
        for log in ("metrics.jsonl", "clients.jsonl")
        if (end / log).read_bytes() != (folder / "whole" / log).read_bytes()
    ]
    if not runs.same_end(reference, runs.job(name, engine, rounds).run(end, resume=True)):
        found.append("server or clients differ")
    return [*found, *verify(end).problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="in all, over five methods")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    each, total, bad, start = -(-args.kills // len(CASES)), 0, 0, time.monotonic()
    for name, engine in CASES:
        with tempfile.TemporaryDirectory() as folder:
            lost, wrong = attack(name, engine, each, args.seed, Path(folder), args.rounds)
        total, bad = total + lost, bad + len(wrong)
        print(f"{name:9} {engine:8} {lost:4} lost, {len(wrong)} wrong", *wrong, sep="\n  " if wrong else "", flush=True)
    print(f"machines lost {total}, wrong {bad}, {time.monotonic() - start:.0f} s")
    return int(bad > 0 or total < args.kills)


if __name__ == "__main__":
    sys.exit(main())
