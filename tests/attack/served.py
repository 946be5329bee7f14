"""Servers and devices that are killed: a device's run goes on without it, a server's goes on with --resume.

    python tests/attack/served.py --kills 20 --returns 5 --damages

SIGKILL at a random moment, of `fedloom serve` or of one `fedloom join`. Killed servers, once for all: metrics.jsonl has
the bytes of a run of the loop. Killed devices, each time: it has the global numbers of the loop that loses whom its
record names, and the server's state has the bits; the same of those that are started again, which are asked again.

Damages: a server is killed, `devices.json` or what devices keep is damaged, and all start again. Either the run does
not go on and says which file it is, or its record says which device was refused, and it is the loop's that loses it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import runs

import launching
from fedloom.coordinator.directory import RunDirectory, identity
from fedloom.coordinator.history import History
from fedloom.coordinator.verification import verify
from fedloom.data import Federation
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings
from two_folders import commands, lines, of_loop, written

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
        federation = written(folder, ROUNDS)
        log, order = folder / "out" / "metrics.jsonl", [0, 1]
        whole = of_loop(folder, federation)
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


def records(folder: Path) -> list[dict[str, Any]]:
    *whole, _ = (folder / "out" / "metrics.jsonl").read_text().split("\n")  # behind the last break a line is written
    return [json.loads(line) for line in whole]


def lost(folder: Path) -> dict[tuple[int, int], str]:
    """Whom the record names, by round and client, and why."""
    return {(m["round"] - 1, int(k)): why for m in records(folder)[1:] for k, why in m["failed"].items()}


def loop_that_loses(folder: Path, federation: Federation) -> History:
    """The run of the loop that loses whom a record names."""
    alone = {"run.engine": "loop", "run.compilation": "none", "run.threads": 1, "run.deadline": None}
    job = Experiment.of(read_settings(folder / "fed.toml")).with_all(alone).job(federation)
    there = lost(folder)
    return dataclasses.replace(job, faults=lambda t, e, k: "lost" if (t, k) in there else None).run()


def unlike_the_loop(folder: Path, federation: Federation) -> list[str]:
    """In what a run differs from the loop that loses whom its record names."""
    return unlike(folder, loop_that_loses(folder, federation))


def unlike(folder: Path, history: History) -> list[str]:
    """In what a run differs from another one."""
    wrong = []
    for got, want in zip(records(folder)[1:], history.metrics[1:], strict=True):
        wrong += [f"round {got['round']}: {n} differs" for n in GLOBAL if got.get(n) != want.get(n)]
    files = RunDirectory(folder / "out")
    files.checkpoints.identity = identity(files.manifest())
    server = files.checkpoints.server(files.checkpoint(), history.server)
    return wrong + ([] if runs.same(server, history.server) else ["the server's state differs in the end"])


def devices(kills: int) -> list[str]:
    wrong, count = list[str](), 0
    while count < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            federation = written(folder, ROUNDS)
            found = killed(folder, random.choice((1, 2)), random.randrange(ROUNDS - 5), [0, 1])
            count += bool(lost(folder))  # else the run was done before
            if found[0][0] or len(records(folder)) != ROUNDS + 1:
                wrong.append(f"the server did not go on: {found[0]}")
                continue
            wrong += unlike_the_loop(folder, federation)
    print(f"device {count} kills, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return wrong


def returned(folder: Path, victim: int = 1, rounds: int = 150) -> list[str]:
    """A device is killed, and started again while the server waits for the other; what is wrong then."""
    federation, port = written(folder, rounds), launching.free_port()
    programs = commands(folder, [0, 1])
    ranks = launching.gloo(programs, port)

    def until(reached: Callable[[], object]) -> None:
        end = time.monotonic() + 200
        while not reached() and ranks[0].poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    until(lambda: lines(folder / "out" / "metrics.jsonl") > 4)
    ranks[victim].send_signal(signal.SIGKILL)
    until(lambda: lost(folder))
    ranks[3 - victim].send_signal(signal.SIGSTOP)
    again = launching.Forked(programs[victim], launching.environment(victim, 3, port))
    until(lambda: "waiting for the server" in Path(again.stdout.name).read_text())
    time.sleep(1)
    ranks[3 - victim].send_signal(signal.SIGCONT)
    found = launching.ended([ranks[0], ranks[3 - victim], again, ranks[victim]], 600)
    wrong = [text for status, text in found[:3] if status]
    away = sorted(t for t, _ in lost(folder))
    if not away or away != list(range(away[0], away[-1] + 1)) or away[-1] >= rounds - 1:
        wrong.append(f"of {rounds} rounds it was away in {away}, and did not come back")
    return wrong + unlike_the_loop(folder, federation)


def _registry(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "out" / "devices.json"
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found, indent=2) + "\n")

    return damage


def _ids(found: dict[str, Any]) -> None:
    one, two = found["devices"]
    one["id"], two["id"] = two["id"], one["id"]


def _states(folder: Path, device: int = 0) -> Path:
    return next((folder / f"state{device}" / "runs").iterdir())


def _exchanged(folder: Path) -> None:
    one, two = _states(folder, 0), _states(folder, 1)
    one.rename(folder / "aside")
    two.rename(one)
    (folder / "aside").rename(two)


def _gone(folder: Path) -> None:
    for path in _states(folder).iterdir():
        path.unlink()


def _one_byte(folder: Path) -> None:
    for path in _states(folder).iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


def _renamed_as_the_others(folder: Path) -> None:
    """A device's states under the rounds of its own with the digests and contents of the other's."""
    for path in _states(folder).iterdir():
        path.unlink()
    for path in _states(folder, 1).iterdir():
        (_states(folder) / path.name).write_bytes(path.read_bytes())


OF_SERVER: dict[str, Callable[[Path], object]] = {
    "ids swapped": _registry(_ids),
    "list reversed": _registry(lambda found: found["devices"].reverse()),
    "a digit of an id": _registry(lambda found: found["devices"][0].update(id="1" * 31 + "2")),
    "gone": lambda folder: (folder / "out" / "devices.json").unlink(),
    "another run": _registry(lambda found: found.update(run="b" * 32)),
    "another cap": _registry(lambda found: found.update(cap=7)),
    "another count": _registry(lambda found: found["devices"][0]["train"].reverse()),
}
OF_DEVICES: dict[str, Callable[[Path], object]] = {
    "states exchanged": _exchanged,
    "states gone": _gone,
    "one byte of a state": _one_byte,
    "states of the other": _renamed_as_the_others,
}


def damages() -> list[str]:
    """Each damage between a kill of the server and --resume; those that nobody noticed."""
    silent = list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder, base = Path(name) / "run", Path(name) / "base"  # a run keeps the place of its test examples
        folder.mkdir()
        federation = written(folder, ROUNDS)
        killed(folder, 0, 6, [0, 1])
        folder.rename(base)
        for what, damage in (OF_SERVER | OF_DEVICES).items():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(base, folder)
            damage(folder)
            if what in OF_SERVER:
                environment = launching.environment(0, 3, launching.free_port())
                found = launching.ended([launching.Forked(commands(folder, [0, 1], "--resume")[0], environment)], 120)
                named = found[0][0] == 2 and "devices.json" in found[0][1] and not verify(folder / "out").whole
                silent += [] if named else [f"{what}: {found}"]
                continue
            found = launching.ended(launching.gloo(commands(folder, [0, 1], "--resume")), 300)
            why = {why for (t, _), why in lost(folder).items() if "Error: " in why}
            stopped = len(records(folder)) <= ROUNDS  # by the rule that a run ends whose every answer is refused
            same = stopped or not unlike_the_loop(folder, federation)
            silent += [] if why and same else [f"{what}: {found}, {why}"]
    print(f"{len(OF_SERVER | OF_DEVICES)} damages, {len(silent)} silent", *silent, sep="\n  ", flush=True)
    return silent


def returns(count: int) -> list[str]:
    wrong = list[str]()
    for number in range(count):
        with tempfile.TemporaryDirectory() as name:
            wrong += returned(Path(name), 1 + number % 2)
    print(f"device {count} returns, {len(wrong)} wrong", *wrong, sep="\n  ", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of servers, and of devices")
    parser.add_argument("--returns", type=int, default=0, help="of devices that are killed and started again")
    parser.add_argument("--damages", action="store_true", help="of devices.json and of what devices keep")
    parser.add_argument("--seed", type=int, default=0)
    args: Any = parser.parse_args()
    warnings.simplefilter("ignore")
    random.seed(args.seed)
    wrong = servers(args.kills) + devices(args.kills) + returns(args.returns)
    return int(bool(wrong + (damages() if args.damages else [])))


if __name__ == "__main__":
    sys.exit(main())
