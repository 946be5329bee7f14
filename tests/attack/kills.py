"""Runs that are killed again and again, and must end as if nobody had touched them.

    python tests/attack/kills.py --kills 200

SIGKILL, so that nothing can be tidied up: half of the kills at a random moment, half just before the n-th time that
the process opens, renames or removes a file of the run, or cuts one, n random: the moments at which a directory could
be half written. After every kill the directory must be whole (`verify`); at the end metrics.jsonl must have the bytes,
and server and clients the bits, of a run that was left alone.
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

import runs

from fedloom import verify
from fedloom.core.errors import SettingError

EVENTS = ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir")


def child(directory: str, name: str, engine: str, rounds: int, die_at: int | None) -> None:
    """Go on with a run; die just before touching its files for the `die_at`-th time."""
    runs.quiet()
    touched = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal touched
        if event in EVENTS and str(args[0]).startswith(directory):
            touched += 1
            if touched == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if die_at is not None:
        sys.addaudithook(hook)
    runs.job(name, engine, rounds).run(directory, resume=True)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def attack(name: str, engine: str, kills: int, seed: int, folder: Path, rounds: int = 40) -> tuple[int, list[str]]:
    """(how often the run was killed, what went wrong)."""
    rng, wrong, killed = random.Random(f"{seed} {name} {engine}"), list[str](), 0
    cut, whole = folder / "cut", folder / "whole"
    reference = runs.job(name, engine, rounds).run(whole)
    deadline = time.monotonic() + 60 + 5 * kills
    while killed < kills and time.monotonic() < deadline:
        seen, more = max(lines(cut / "metrics.jsonl"), runs.phase(name)), rng.choice((0, 0, 1, 2, 4))
        sought = rng.random() < 0.5 and lines(cut / "metrics.jsonl") == seen
        die_at = rng.randrange(1, 60) if sought else None
        process = runs.forkserver().Process(target=child, args=(str(cut), name, engine, rounds, die_at))
        process.start()
        if not sought:
            while process.is_alive() and lines(cut / "metrics.jsonl") < seen + more:
                time.sleep(0.001)
            time.sleep(rng.random() * (0.03 if more else 0.4))
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            killed += 1
            if (cut / "manifest.json").exists():
                wrong += [f"not whole after a kill: {problem}" for problem in verify(cut).problems]
        elif process.exitcode != 0:
            wrong.append(f"failed to resume after {killed} kills: status {process.exitcode}")
            break
        elif lines(cut / "metrics.jsonl") > rounds:  # finished before it could be killed: once more from the start
            wrong += compare(name, engine, rounds, reference, whole, cut)
            os.rename(cut, folder / f"finished-{killed}-{time.monotonic_ns()}")
    process = runs.forkserver().Process(target=child, args=(str(cut), name, engine, rounds, None))
    process.start()
    process.join()
    return killed, [*wrong, *compare(name, engine, rounds, reference, whole, cut)]


def compare(name: str, engine: str, rounds: int, reference: Any, whole: Path, cut: Path) -> list[str]:
    """In what a run that was killed ended otherwise than one that was not."""
    wrong = []
    for name_of_log in ("metrics.jsonl", "clients.jsonl"):
        if (cut / name_of_log).read_bytes() != (whole / name_of_log).read_bytes():
            wrong.append(f"{name_of_log} differs")
    if not runs.same_end(reference, runs.job(name, engine, rounds).run(cut, resume=True)):
        wrong.append("server or clients differ")
    begun = runs.job(name, engine, rounds)
    with runs.torch.random.fork_rng():
        models = {**begun.model, "linear": runs.linear()}  # with other weights than those of the run's seed
    try:
        dataclasses.replace(begun, model=models).run(cut, resume=True)
        wrong.append("went on from other weights")
    except SettingError:
        pass
    return [*wrong, *(f"not whole at the end: {problem}" for problem in verify(cut).problems)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kills", type=int, default=200, help="in all, over 6 algorithms and 3 asynchronies on 3 engines"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="names of these")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [case for case in runs.cases() if not args.only or case[0] in args.only]
    each, total, bad, start = -(-args.kills // len(cases)), 0, 0, time.monotonic()
    for name, engine in cases:
        with tempfile.TemporaryDirectory() as folder:
            killed, wrong = attack(name, engine, each, args.seed, Path(folder))
        total, bad = total + killed, bad + len(wrong)
        print(
            f"{name:10} {engine:8} {killed:4} kills, {len(wrong)} wrong",
            *wrong,
            sep="\n  " if wrong else "",
            flush=True,
        )
    print(f"kills {total}, wrong {bad}, {time.monotonic() - start:.0f} s")
    return int(bad > 0 or total < args.kills)


if __name__ == "__main__":
    sys.exit(main())
