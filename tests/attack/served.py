"""Servers and devices that are killed: a device's run goes on without it, a server's goes on with --resume.

    python tests/attack/served.py --kills 20

SIGKILL at a random moment, of `fedloom serve` or of one `fedloom join`. Killed servers, once for all: metrics.jsonl has
the bytes of a run of the loop. Killed devices, each time: it has the global numbers of the loop that loses whom its
record names, and the server's state has the bits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "device"))
sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

import launching
import runs
import test_serve
from test_serve import commands, lines

from fedloom.coordinator.directory import RunDirectory, identity
from fedloom.experiments.experiment import Experiment, read_settings

ROUNDS = 40
GLOBAL = ("clients", "train_loss", "global_accuracy", "global_loss", "class_accuracy", "bytes_up")


def killed(folder: Path, victim: int, after: int, order: list[int], *more: str) -> list[tuple[int, str]]:
    """What became of three ranks of which one is killed some time after a round."""
    log, ranks = folder / "out" / "metrics.jsonl", launching.gloo(commands(folder, order, *more))
    while lines(log) <= after and ranks[0].poll() is None:
        time.sleep(0.002)
    time.sleep(random.random() * 0.2)
    ranks[victim].send_signal(signal.SIGKILL)
    return launching.ended(ranks, 300)


def servers(kills: int) -> list[str]:
    wrong, count = list[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        federation = test_serve.written(folder, ROUNDS)
        log, order = folder / "out" / "metrics.jsonl", [0, 1]
        whole = test_serve.of_loop(folder, federation)
        while count < kills:
            at = lines(log)
            more = ["--resume"] if at else []
            if at > ROUNDS - 2:  # a server that is killed before it is there leaves devices that wait for one
                found = launching.ended(launching.gloo(commands(folder, order, *more)), 300)
            else:
                found = killed(folder, 0, min(at + random.randrange(4), ROUNDS - 2), order, *more)
            count += found[0][0] == -signal.SIGKILL
            wrong += [text for status, text in found[1:] if status not in (0, 2)]
            order.reverse()
            if lines(log) > ROUNDS:
                wrong += [] if log.read_bytes() == whole else [f"metrics differ after {count} kills"]
                (folder / "out").rename(folder / f"out{count}")
        if (folder / "out").exists():
            found = launching.ended(launching.gloo(commands(folder, order, "--resume")), 120)
            wrong += [text for status, text in found if status]
            wrong += [] if log.read_bytes() == whole else ["metrics differ in the end"]
    print(f"server {count} kills, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return wrong


def devices(kills: int) -> list[str]:
    wrong, count = list[str](), 0
    while count < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            federation = test_serve.written(folder, ROUNDS)
            found = killed(folder, random.choice((1, 2)), random.randrange(ROUNDS - 5), [0, 1])
            records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
            lost = {(m["round"] - 1, int(k)) for m in records[1:] for k in m["failed"]}
            count += bool(lost)  # else the run was done before
            if found[0][0] or len(records) != ROUNDS + 1:
                wrong.append(f"the server did not go on: {found[0]}")
                continue
            alone = {"run.engine": "loop", "run.compilation": "none", "run.threads": 1, "run.deadline": None}
            job = Experiment.of(read_settings(folder / "fed.toml")).with_all(alone).job(federation)
            faults = lambda t, e, k, lost=lost: "lost" if (t, k) in lost else None  # noqa: E731
            history = dataclasses.replace(job, faults=faults).run()
            for got, want in zip(records[1:], history.metrics[1:], strict=True):
                wrong += [f"round {got['round']}: {n} differs" for n in GLOBAL if got.get(n) != want.get(n)]
            files = RunDirectory(folder / "out")
            files.checkpoints.identity = identity(files.document("manifest"))
            server = files.checkpoints.server(files.checkpoint(), history.server)
            wrong += [] if runs.same(server, history.server) else ["the server's state differs in the end"]
    print(f"device {count} kills, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of servers, and of devices")
    parser.add_argument("--seed", type=int, default=0)
    args: Any = parser.parse_args()
    warnings.simplefilter("ignore")
    random.seed(args.seed)
    return int(bool(servers(args.kills)) | bool(devices(args.kills)))


if __name__ == "__main__":
    sys.exit(main())
