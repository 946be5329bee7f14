"""A long run over NATS whose devices change, while its server and devices are killed.

Five devices, of which one brings more examples and one is removed, and a sixth that comes later; the server is killed
twice and devices five times. In the end the run must be whole, every change an event, and its records those of a
simulation that asks the same clients, of which the same are lost, with the same examples in each round.

    python tests/attack/changing.py [ROUNDS] [FOLDER]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from changing_devices import FIRST, HELD_OUT, MOST, Brought, simulated
from federation_processes import Federation, secured
from fedloom import FixedList
from fedloom.cli.main import main
from fedloom.coordinator.verification import verify
from two_folders import arrays, lines

WORDS = {"algorithm": "pfedsd", "run.cohort_size": 3, "run.eval_every": 50, "run.checkpoint_every": 1}
SETTINGS = """
algorithm = "pfedsd"
model = "logistic"
data.classes = 3
local = {epochs = 2, batch_size = 5}
run = {rounds = %d, cohort_size = 3, deadline = 600, bound = "none", eval_every = 50}
"""
MORE = 50  # examples of the device that brings more


def bring(folder: Path, k: int, count: int) -> None:
    """Write the examples of a device: those that it holds out, and the first of those that it trains on."""
    x, y = arrays(k, [0, 1, 2], MOST)
    (folder / f"data{k}").mkdir(exist_ok=True)
    (folder / f"state{k}").mkdir(exist_ok=True)
    (folder / f"state{k}" / "id").write_text(f"{k:032x}")
    own, file = slice(HELD_OUT, HELD_OUT + count), folder / f"data{k}" / "mine.npz"
    np.savez(file, x_train=x[own], y_train=y[own], x_test=x[:HELD_OUT], y_test=y[:HELD_OUT])


def happened(folder: Path) -> list[tuple[str, int, int]]:
    """Return what, to which client, and the first round that it holds for."""
    found = json.loads((folder / "out" / "devices.json").read_text()).get("events", [])
    return [(event["event"], event["client"], event["round"]) for event in found]


def attacked(folder: Path, rounds: int) -> None:
    """Run the rounds with all changes and kills, spread over them."""
    rng, log = random.Random(0), folder / "out" / "metrics.jsonl"
    (folder / "fed.toml").write_text(SETTINGS % rounds)
    for k in range(5):
        bring(folder, k, FIRST)
    x, y = arrays(9, [0, 1, 2], 30)
    np.savez(folder / "test.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    federation = Federation(folder, "nats")
    certs = secured(folder, "nats", range(5))

    def reach(share: float) -> None:
        federation.until(lambda: lines(log) > share * rounds, 1500)

    def kill(name: str) -> None:
        federation.processes[name].kill()
        federation.processes[name].wait()
        print(f"round {lines(log) - 1}: {name} killed", flush=True)

    def change(what: str, client: int) -> None:
        federation.until(lambda: (what, client) in [event[:2] for event in happened(folder)], 600)
        print(f"round {lines(log) - 1}: {happened(folder)[-1]}", flush=True)

    try:
        federation.serve(*certs, least=5)
        for k in range(5):
            federation.join(k)
        reach(0.1)
        bring(folder, 5, FIRST)
        invited = ["invite", "device5", "--certs", certs[1], "--server", f"127.0.0.1:{federation.port}"]
        assert main([*invited, "--transport", "nats", "--out", f"{folder}/five"]) == 0
        words = ["--data", f"{folder}/data5", "--state", f"{folder}/state5", "--invite", f"{folder}/five"]
        federation.start("device5", "join", *words)
        change("came", 5)
        for share, what in ((0.2, "device"), (0.3, "server"), (0.4, "device"), (0.5, "bring"), (0.6, "device")):
            reach(share)
            if what == "device":
                k = rng.choice([0, 2, 3, 4])
                kill(f"device{k}")
                federation.join(k)
            elif what == "server":
                kill("server")
                federation.serve(*certs, "--resume", least=5)
            else:
                federation.processes["device1"].terminate()
                federation.processes["device1"].wait(60)
                bring(folder, 1, MORE)
                federation.join(1)
                change("renewed", 1)
        reach(0.65)
        assert main(["devices", "remove", certs[1], "device0"]) == 0
        change("removed", 0)
        for share, name in ((0.7, "device2"), (0.8, "server"), (0.9, "device3")):
            reach(share)
            kill(name)
            federation.serve(*certs, "--resume", least=4) if name == "server" else federation.join(int(name[-1]))
        federation.until(lambda: federation.processes["server"].poll() is not None, 1500)
        assert federation.processes["server"].returncode == 0, federation.text("server")
    finally:
        federation.end()


def differences(folder: Path, rounds: int) -> list[int]:
    """Return the rounds whose records are not those of the simulation."""
    records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    asked = FixedList(tuple(tuple(record["clients"]) for record in records[1:]))
    lost = {(record["round"], int(k)) for record in records[1:] for k in record["failed"]}
    (since,) = [round for what, _, round in happened(folder) if what == "renewed"]
    sizes = {k: MORE if k == 1 else FIRST for k in range(6)}
    words = WORDS | {"run.rounds": rounds, "run.bound": "none"}
    found = simulated(words, sizes, arrives=Brought(MORE, since), lost=lost, sampler=asked)
    return [
        record["round"]
        for record, other in zip(records, found.metrics, strict=True)
        if (record.get("train_loss"), sorted(record.get("clients", [])))
        != (other.get("train_loss"), sorted(other.get("clients", [])))
    ]


def run(rounds: int, folder: Path) -> int:
    """Return 0 where all holds."""
    began = time.monotonic()
    attacked(folder, rounds)
    verdict, wrong = verify(folder / "out"), differences(folder, rounds)
    print(f"{rounds} rounds, {time.monotonic() - began:.0f} s; events {happened(folder)}")
    print(f"whole: {verdict.whole}; rounds that differ from the simulation: {wrong[:10] or 'none'}")
    audit = (folder / "out" / "audit.jsonl").read_text()
    logged = all(f'"event": "{what}"' in audit for what, *_ in happened(folder))
    is_right = verdict.whole and not wrong and logged
    return 0 if is_right and [what for what, *_ in happened(folder)] == ["came", "renewed", "removed"] else 1


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    sys.exit(run(rounds, Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())))
