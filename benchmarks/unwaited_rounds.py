"""Rounds a minute of devices over NATS of which one is ten times slower, waited for and not.

    python benchmarks/unwaited_rounds.py                # some minutes
    python benchmarks/unwaited_rounds.py --seconds 120

A server and five devices are processes of this machine, over nats-server on loopback. A training takes four of them
0.5 s longer than it does, and one 5 s, as they sleep so long: so the numbers are of what is waited for, and hardly of
the machine. Rounds are counted from the fifth on. Prints the table of docs/time.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedloom.cli.main import main as fedloom
from fedloom.deploy.nats.nats_server import make_key
from fedloom.engines.message import EVALUATING
from fedloom.engines.runtime import Runtime

DEVICES, DELAY, SLOWER = 5, 0.5, 10
WAYS = {
    "waits for all 5": "none",
    "`fedbuff:size=3`": "fedbuff:size=3",
    "`fedasync:alpha=0.6`": "fedasync:alpha=0.6",
    "`deadline:seconds=1`": "deadline:seconds=1",
}
SETTINGS = """
algorithm = "fedavg"
model = "logistic"
data.classes = 3
local = {{epochs = 1, batch_size = 8}}
run = {{rounds = 100000, cohort_size = 5, eval_every = 100000, checkpoint_every = 1, asynchrony = "{way}"}}
"""


def write(folder: Path, way: str) -> None:
    """Write the settings, the test set, and the examples of each device."""
    (folder / "fed.toml").write_text(SETTINGS.format(way=way))
    rng = np.random.default_rng(0)
    for k in range(DEVICES + 1):
        y = np.resize([0, 1, 2], 60)
        x = (np.eye(3, 20)[y] + rng.normal(size=(60, 20))).astype(np.float32)
        where = folder / (f"data{k}" if k < DEVICES else "test")
        where.mkdir()
        np.savez(where / "its.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])


def secured(folder: Path) -> str:
    """Make certificates of the server and keys of the devices, and register these."""
    certs = str(folder / "certs")
    fedloom(["certs", "authority", certs])
    fedloom(["certs", "server", certs, "--name", "127.0.0.1", "--name", "localhost"])
    for k in range(DEVICES):
        state = folder / f"state{k}"
        public = make_key(state / "nats.nk")
        (state / "authority.crt").write_bytes((folder / "certs" / "authority.crt").read_bytes())
        fedloom(["devices", "add", certs, f"device{k}", public])
    return certs


def measure(way: str, seconds: float, port: int) -> tuple[float, float]:
    """Return rounds and answers a minute."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, way)
        with contextlib.redirect_stdout(io.StringIO()):
            certs = secured(folder)
        joining = [sys.executable, __file__, "--join"]
        serve = [
            sys.executable, "-m", "fedloom", "serve", "--transport", "nats", "--certs", certs, "--port", str(port),
            "--settings", f"{folder}/fed.toml", "--out", f"{folder}/out", "--test", f"{folder}/test/its.npz",
            "--least", str(DEVICES), "--bound", "none",
        ]  # fmt: skip
        told = (folder / "said").open("w")
        processes = [subprocess.Popen(serve, stdout=told, stderr=told)]
        for k in range(DEVICES):
            delay = DELAY * (SLOWER if k == 0 else 1)
            join = [
                *joining, str(delay), "join", "--transport", "nats", "--server", f"127.0.0.1:{port}",
                "--name", f"device{k}", "--data", f"{folder}/data{k}", "--state", f"{folder}/state{k}",
            ]  # fmt: skip
            processes.append(subprocess.Popen(join, stdout=told, stderr=told))
        try:
            first = watch(folder, processes, lambda count: count >= 5)
            began = time.monotonic()
            last = watch(folder, processes, lambda count: time.monotonic() >= began + seconds)
            minutes = (time.monotonic() - began) / 60
        finally:
            for process in processes:
                process.kill()
                process.wait()
            told.close()
        records = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()[first:last]]
        return len(records) / minutes, sum(len(record["clients"]) for record in records) / minutes


def watch(folder: Path, processes: list[subprocess.Popen[bytes]], reached: object) -> int:
    """Wait until something holds of the number of records, and return that."""
    log = folder / "out/metrics.jsonl"
    while True:
        count = log.read_bytes().count(b"\n") if log.exists() else 0
        if reached(count):  # type: ignore[operator]
            return count
        if any(process.poll() is not None for process in processes):
            raise SystemExit(f"a process has ended: {(folder / 'said').read_text()[-2000:]}")
        time.sleep(0.02)


def delayed(seconds: float, words: list[str]) -> int:
    """Join as a device whose trainings take so much longer."""
    answer = Runtime.answer

    def later(self, request, *args, **more):  # type: ignore[no-untyped-def]
        if request.call.exchange != EVALUATING:
            time.sleep(seconds)
        return answer(self, request, *args, **more)

    Runtime.answer = later  # type: ignore[method-assign]
    return fedloom(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each way")
    parser.add_argument("--port", type=int, default=14_543)
    args = parser.parse_args()
    found = {name: measure(way, args.seconds, args.port + i) for i, (name, way) in enumerate(WAYS.items())}
    waits = found["waits for all 5"][1]
    print("| devices | rounds a minute | answers a minute | beside waiting |\n|---|---|---|---|")
    for name, (rounds, answers) in found.items():
        print(f"| {name} | {rounds:.3g} | {answers:.3g} | {answers / waits:.2g} |")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--join"]:
        sys.exit(delayed(float(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
