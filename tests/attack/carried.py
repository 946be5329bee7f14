"""Processes of a federation over Flower or NATS that are killed: the run goes on or resumes, and nothing is left.

    python tests/attack/carried.py flower --kills 8 --victims server superlink device supernode clientapp serverapp
    python tests/attack/carried.py nats --kills 8 --victims server nats-server device

One federation with TLS and keys on loopback. SIGKILL at a seeded moment; then both devices must answer in a round again
(a killed server is resumed, a killed device is started again, Flower's processes are not touched), before the next is
killed. In the end the run has the global numbers and the bits of the server's state of the loop that loses whom its
record names, and no process is left.
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

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import runs
from served import GLOBAL, lost, records

from federation_processes import Federation, command_of, secured
from fedloom.coordinator.directory import RunDirectory, identity
from fedloom.data import Federation as Examples
from fedloom.deploy.child_program import descendants
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings
from two_folders import lines, written

ROUNDS = 100_000  # more than there is time for
WITHIN = 300.0  # seconds to be whole again
PLACES = {  # below which process, and a word of its command line
    "superlink": ("server", "flower-superlink"), "serverapp": ("server", "serverapp"),
    "nats-server": ("server", "nats-server"), "supernode": ("device1", "flower-supernode"),
    "clientapp": ("device1", "fedloom.deploy.flower.flower_app"),
}  # fmt: skip


class Carried:
    """A federation over a transport, in a folder."""

    def __init__(self, transport: str, folder: Path) -> None:
        self.folder, self.federation = folder, Federation(folder, transport)
        self.examples = written(folder, ROUNDS)
        settings = (
            (folder / "fed.toml")
            .read_text()
            .replace("deadline = 600", 'deadline = 20, eval_every = 1000, bound = "none"')
        )
        (folder / "fed.toml").write_text(settings)
        self.certs = secured(folder, transport)
        self.federation.serve(*self.certs)
        for k in (0, 1):
            self.federation.join(k)
        self.wait(lambda: self.whole(0))

    def wait(self, condition: object, seconds: float = WITHIN) -> float:
        start = time.monotonic()
        self.federation.until(condition, seconds)
        return time.monotonic() - start

    def rounds(self) -> int:
        """Return how many rounds are done."""
        return lines(self.folder / "out" / "metrics.jsonl") - 1

    def whole(self, after: int) -> bool:
        """Return whether both devices have answered in a round after some round."""
        return self.rounds() > after and any(not m["failed"] for m in records(self.folder)[after + 1 :])

    def victim(self, what: str) -> int | None:
        """Return the number of a process, if it is there."""
        if what in self.federation.processes or what == "device":
            return self.federation.processes["device1" if what == "device" else what].pid
        parent, word = PLACES[what]
        for number in descendants(self.federation.processes[parent].pid):
            command = command_of(number)
            if word in command and "fedloom.deploy.child_program" not in command:
                return number
        return None

    def kill(self, what: str, rng: random.Random) -> tuple[float, int]:
        """Kill a process, and return the seconds until all is whole again, and the answers that were lost."""
        time.sleep(rng.random() * 5 if self.federation.transport == "flower" else rng.random() * 0.5)
        before = len(lost(self.folder))
        while True:  # one that lives for a message may be gone again
            number = self.victim(what)
            self.federation.look()
            if number is not None:
                time.sleep(rng.random() * (0.5 if what == "clientapp" else 0.0))
                if command_of(number):
                    os.kill(number, signal.SIGKILL)
                    break
            time.sleep(0.005)
        start = time.monotonic()
        if what == "server":
            self.federation.processes["server"].wait()
            self.federation.serve(*self.certs, "--resume")
            time.sleep(1)
        if what == "device":
            self.federation.processes["device1"].wait()
            self.federation.join(1)
        at = self.rounds() + 1  # the round at hand may have had its answers
        self.wait(lambda: self.whole(at))
        return time.monotonic() - start, len(lost(self.folder)) - before

    def end(self) -> list[str]:
        """End all, and return what is wrong with the run."""
        for name in ("server", "device0", "device1"):
            process = self.federation.processes[name]
            process.terminate()
            process.wait(90)
        wrong = [f"left: {command[:100]}" for command in self.federation.left()]
        return wrong + unlike_the_loop(self.folder, self.examples)


def unlike_the_loop(folder: Path, examples: Examples) -> list[str]:
    """In what a run, as far as its newest checkpoint, differs from the loop that loses whom its record names."""
    files = RunDirectory(folder / "out")
    files.checkpoints.identity = identity(files.manifest())
    checkpoint, there, wrong = files.checkpoint(), lost(folder), list[str]()
    alone = {"run.engine": "loop", "run.compilation": "none", "run.threads": 1, "run.deadline": None}
    job = Experiment.of(read_settings(folder / "fed.toml")).with_all(alone | {"run.rounds": checkpoint.round})
    faults = lambda t, e, k: "lost" if (t, k) in there else None  # noqa: E731
    history = dataclasses.replace(job.job(examples), faults=faults).run()
    for got, want in zip(records(folder)[1 : checkpoint.round + 1], history.metrics[1:], strict=True):
        if not (got["round"] == checkpoint.round and "global_accuracy" not in got):  # the last is always evaluated
            wrong += [f"round {got['round']}: {n} differs" for n in GLOBAL if n in got and got[n] != want.get(n)]
    server = files.checkpoints.server(checkpoint, history.server)
    return wrong + ([] if runs.same(server, history.server) else ["the server's state differs in the end"])


def attack(transport: str, victims: list[str], kills: int, seed: int, seconds: float) -> list[str]:
    """Kill each victim so many times, in turn, as far as there is time; return what is wrong."""
    start, wrong, count = time.monotonic(), list[str](), dict.fromkeys(victims, 0)
    with tempfile.TemporaryDirectory() as name:
        carried = Carried(transport, Path(name))
        try:
            print(f"{transport}: both devices answered after {time.monotonic() - start:.0f} s", flush=True)
            for number in range(kills):
                for what in victims:
                    if time.monotonic() - start > seconds:
                        break
                    try:
                        took, answers = carried.kill(what, random.Random(f"{seed}/{what}/{number}"))
                    except AssertionError as error:
                        wrong.append(f"{what} {number}: not whole again: {str(error)[-600:]}")
                        raise
                    count[what] += 1
                    print(
                        f"{what} {number}: whole again after {took:.1f} s, {answers} answers lost, load "
                        f"{os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
            wrong += carried.end()
        except AssertionError:
            pass
        finally:
            carried.federation.end()
    total = ", ".join(f"{what} {n}" for what, n in count.items())
    print(f"{transport}: killed {total}; wrong {len(wrong)}", *wrong, sep="\n  ", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transport", choices=("flower", "nats"))
    parser.add_argument("--victims", nargs="+", default=["server", "device"], choices=["server", "device", *PLACES])
    parser.add_argument("--kills", type=int, default=8, help="of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no more is killed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    return int(bool(attack(args.transport, args.victims, args.kills, args.seed, args.seconds)))


if __name__ == "__main__":
    sys.exit(main())
