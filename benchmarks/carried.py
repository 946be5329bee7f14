"""What a transport of the internet costs: a server and two devices on one host, with TLS and keys.

    python benchmarks/carried.py flower
    python benchmarks/carried.py nats --sizes 1e3 3.5e6

FedAvg with logistic regression of as many inputs as make the model that large; a round trains on four examples, and so
is all overhead. Prints the seconds of an exchange (the median of the rounds after the first), from the start of the
three commands to the end of the first round, the largest resident memory of each kind of process, and how much the
database of Flower's SuperLink grows in a round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedloom.deploy.child_program import descendants

ROUNDS, CLASSES, ROWS = 6, 10, 4
SETTINGS = """
algorithm = "fedavg"
model = "logistic"
data.classes = %d
local = {epochs = 1, batch_size = %d}
run = {rounds = %d, cohort_size = 2, deadline = 600, eval_every = %d}
"""
FEDLOOM = (sys.executable, "-m", "fedloom")
KINDS = ("flower-superlink", "flower-superexec", "serverapp", "flower-supernode", "flower_app", "nats-server")


def written(folder: Path, size: float) -> None:
    """Write settings and examples of a model of `size` bytes."""
    folder.mkdir()
    rng, inputs = np.random.default_rng(0), max(1, round(size / 4 / CLASSES))
    (folder / "fed.toml").write_text(SETTINGS % (CLASSES, ROWS, ROUNDS, 1000))
    for name in ("test", "data0", "data1"):
        x, y = rng.normal(size=(ROWS, inputs)).astype(np.float32), np.arange(ROWS)
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])


def free_port() -> int:
    """Return a port of loopback that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Watch:
    """The largest memory of each kind of process below this one, and the sizes of Flower's database by round."""

    def __init__(self) -> None:
        self.mebibytes = dict[str, int]()
        self.database = dict[int, int]()

    def look(self, rounds: int) -> None:
        for process in descendants(os.getpid()):
            try:
                words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            if "fedloom.deploy.child_program" in words or not (found := re.search(r"VmHWM:\s+(\d+)", status)):
                continue
            kind = kind_of(words)
            self.mebibytes[kind] = max(self.mebibytes.get(kind, 0), int(found[1]) >> 10)
            if "--database" in words and (file := Path(words[words.index("--database") + 1])).exists():
                self.database[rounds] = sum(p.stat().st_size for p in file.parent.glob(f"{file.name}*"))


def kind_of(words: list[str]) -> str:
    """Return a name for a process by its command line."""
    whole = " ".join(words)
    for kind in (*KINDS, "serve", "join"):
        if kind in (words if kind in ("serve", "join") else whole):
            return kind
    return "others"


def measured(transport: str, size: float, folder: Path) -> None:
    written(folder, size)
    port, log = free_port(), folder / "out" / "timing.jsonl"
    certs = str(folder / "certs")
    command(folder, "certs", "authority", certs)
    command(folder, "certs", "server", certs, "--name", "127.0.0.1")
    for k in (0, 1):
        invited = ("invite", f"device{k}", "--certs", certs, "--server", f"127.0.0.1:{port}")
        command(folder, *invited, "--transport", transport, "--out", str(folder / f"invitation{k}"))
    begin, processes = time.perf_counter(), []
    with (folder / "log").open("w") as said:
        both = ("--transport", transport)
        for words in (
            ("serve", *both, "--settings", str(folder / "fed.toml"), "--out", str(folder / "out"), "--port", str(port),
             "--test", str(folder / "test.npz"), "--least", "2", "--certs", certs),
            *(("join", *both, "--invite", str(folder / f"invitation{k}"), "--data", str(folder / f"data{k}.npz"),
               "--state", str(folder / f"state{k}")) for k in (0, 1)),
        ):  # fmt: skip
            processes.append(subprocess.Popen([*FEDLOOM, *words], stdout=said, stderr=subprocess.STDOUT))
    watch, first = Watch(), 0.0
    try:
        while any(process.poll() is None for process in processes):
            rounds = len(log.read_text().splitlines()) - 1 if log.exists() else 0
            first = first or (time.perf_counter() - begin if rounds > 0 else 0.0)
            watch.look(rounds)
            time.sleep(0.2)
    finally:
        for process in processes:
            process.terminate()
    if any(process.returncode for process in processes):
        sys.exit((folder / "log").read_text())
    seconds = [json.loads(row)["seconds"]["train"] for row in log.read_text().splitlines()[2:]]
    middle = f"{statistics.median(seconds):.3g} s ({min(seconds):.3g} to {max(seconds):.3g})"
    print(f"{transport}, {size:,.0f} bytes: an exchange {middle}; first round ended after {first:.1f} s")
    print("    MiB at most: " + ", ".join(f"{kind} {most}" for kind, most in sorted(watch.mebibytes.items())))
    if watch.database:
        print("    database, MB by rounds done: ", {k: round(v / 1e6, 2) for k, v in watch.database.items()})


def command(folder: Path, *words: str) -> None:
    with (folder / "commands").open("a") as said:
        subprocess.run([*FEDLOOM, *words], check=True, stdout=said, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("transport", choices=("flower", "nats"))
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e3, 3.5e6, 45e6], help="bytes of a model")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        for k, size in enumerate(args.sizes):
            measured(args.transport, size, Path(scratch) / str(k))
