"""Devices and servers that are killed while nobody is waited for: each run is what its log of arrivals says.

    python tests/attack/unwaited_kills.py --kills 60 --seed 1 --folder /somewhere

Federations over nats-server with TLS and keys: `fedloom serve` and three devices, each a process, of which one takes
ten times longer. SIGKILL of one or two devices, of the server, or of both, at any moment; what was killed is started
again (a server with --resume), and a version of the model must come thereafter. A run ends by itself, with exit status
0 of all. Then the simulation by `arrivals.jsonl` must have the digest of the server's state of each version, and at the
end its bits; and the run's folder must be whole.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from masked_kills import Forked, forkserver

from federation_processes import Federation, secured
from fedloom.virtual_time.arrivals_log import NAME, ArrivalsLog
from two_folders import lines, unlike_its_log, written

DEVICES = 3
DELAYS = (0.05, 0.05, 0.5)  # seconds that a training takes longer
KINDS = ("fedbuff:size=2", "fedasync:alpha=0.6", "deadline:seconds=0.2")
WITHIN = 120.0  # seconds until a version is there after what was killed is there again
EVENTS = {"device": 5, "two devices": 2, "server": 6, "server and device": 3}  # how often


class Unwaited(Federation):
    """A federation in a folder that waits for nobody."""

    def __init__(self, folder: Path, rounds: int, kind: str, every: int) -> None:
        forkserver()
        super().__init__(folder, "nats")
        self.outputs, self.rounds = dict[str, Path](), rounds
        self.examples, settings = written(folder, rounds, DEVICES), folder / "fed.toml"
        words = f'cohort_size = 3, asynchrony = "{kind}", checkpoint_every = {every}, eval_every = 100000'
        said = settings.read_text().replace("cohort_size = 2", words).replace("deadline = 600", "deadline = 20")
        settings.write_text(said)
        self.more = secured(folder, "nats", range(DEVICES))
        self.serve(*self.more, least=DEVICES)
        for k in range(DEVICES):
            self.join(k)
        self.until(lambda: self.done() >= 1)

    def start(self, name: str, *words: str) -> Any:
        output = self.outputs[name] = self.folder / f"{name}.{time.monotonic_ns()}.out"
        if name == "server":
            program = ["-m", "fedloom", *words]
        else:
            program = [str(Path(__file__).parents[1] / "delayed.py"), str(DELAYS[int(name[-1])]), *words]
        process = Forked(program, {}, output)
        self.processes[name] = process  # type: ignore[assignment]
        return process

    def text(self, name: str) -> str:
        return self.outputs[name].read_text(errors="replace")

    def done(self) -> int:
        """How many rounds are done."""
        return lines(self.folder / "out" / "metrics.jsonl") - 1

    def event(self, rng: random.Random) -> int:
        """Kill something, and start it again; return how many processes were killed."""
        what = rng.choices([*EVENTS], [*EVENTS.values()])[0]
        count = 0 if what == "server" else 1 + ("two" in what)
        names = [f"device{k}" for k in rng.sample(range(DEVICES), count)] + ["server"] * ("server" in what)
        time.sleep(rng.random() * 1.5)
        there = [name for name in rng.sample(names, len(names)) if self.processes[name].poll() is None]
        for name in there:
            self.processes[name].send_signal(signal.SIGKILL)
        for name in there:
            self.processes[name].wait(90)
        for name in rng.sample(there, len(there)):
            time.sleep(rng.choice((0.0, 0.5)) * rng.random())
            if name == "server":
                self.serve(*self.more, "--resume", least=DEVICES)
            else:
                self.join(int(name[-1]))
        before, server = self.done(), self.processes["server"]

        def goes_on() -> bool:
            for k in range(DEVICES):  # a device whose server is gone ends
                if self.done() < self.rounds and self.processes[f"device{k}"].poll() is not None:
                    self.join(k)
            return self.done() > before or server.poll() is not None

        self.until(goes_on, WITHIN)
        return len(there)

    def finish(self) -> list[str]:
        """Wait until the run is over, and return what is wrong."""
        self.until(lambda: self.processes["server"].poll() is not None)
        status = self.processes["server"].poll()
        wrong = [f"the server ended with {status}: {self.text('server')[-800:]}"] if status else []
        for process in self.processes.values():
            if process.poll() is None:  # started again as the run ended
                process.terminate()
                process.wait(60)
        return [*wrong, *unlike_its_log(self.folder, self.examples, self.rounds)]


def attack(folder: Path, kills: int, rounds: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One federation, in which so many are killed, or as many as its rounds allow; return counts and what is wrong."""
    start, rng, count, wrong = time.monotonic(), random.Random(seed), Counter[str](), list[str]()
    kind, every = KINDS[seed % len(KINDS)], rng.choice((1, 1, 3))
    federation = Unwaited(folder, rounds, kind, every)
    try:
        while count["kills"] < kills and federation.done() < rounds - 5:
            count.update({"events": 1, "kills": federation.event(rng)})
        wrong += federation.finish()
        log = ArrivalsLog(folder / "out" / NAME)
        ages = [moment.version - since for moment in log.moments.values() for since in moment.arrivals.values()]
        count.update({
            "rounds": rounds, "answers": len(ages), "late": sum(age > 0 for age in ages),
            "lost": sum(len(moment.lost) for moment in log.moments.values()),
            "begun anew": lines(folder / "out" / NAME) - len(log.moments) - len(log.ends),
        })  # fmt: skip
    except AssertionError as error:
        wrong.append(f"it hangs: {str(error)[-3000:]}")
    finally:
        federation.end()
    took = time.monotonic() - start
    print(f"{kind}, seed {seed}: {took:.0f} s, {dict(count)}; wrong {len(wrong)}", *wrong, sep="\n  ", flush=True)
    return count, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="in all")
    parser.add_argument("--each", type=int, default=12, help="kills of a federation")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where what went wrong stays")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    total, bad, seed = Counter[str](), 0, args.seed
    while total["kills"] < args.kills:
        folder = Path(tempfile.mkdtemp(prefix=f"unwaited-{seed}-", dir=args.folder))
        count, wrong = attack(folder, args.each, args.rounds, seed)
        total, bad, seed = total + count, bad + len(wrong), seed + 1
    print(f"{dict(total)}, wrong {bad}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
