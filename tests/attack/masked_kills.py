"""Devices and servers that are killed in the protocol of a masked sum: each sum is right or refused, none is wrong.

    python tests/attack/masked_kills.py --kills 200 --seed 1 --folder /somewhere

Federations over nats-server with TLS and keys: `fedloom serve` and six devices, each a process. SIGKILL of one, two or
four devices or of the server, or of both, once some message of the protocol was seen or at any moment, and now and then
SIGTERM; what was killed is started again (a server with --resume), and a round must be done thereafter. A run ends by
itself, with exit status 0 of all. Then:

- its records and the bits of its server's state are those of the loop that loses whom the record names, in fixed point
  and without masks, so each of its sums was right or refused;
- each device holds the state that the server has accepted last, with the bits of the loop;
- nothing of a single upload is in what nats-server was given (`--trace`), in what the processes printed, or in any file
  of the server or of another device. A device's own folder is searched for the uploads of others alone, since it keeps
  its own state there.

With --clear there are no masks and no kills, and the search has to find the uploads.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest.mock
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from served import loop_that_loses, lost, records, unlike

import launching
from federation_processes import Federation, secured
from fedloom.coordinator.history import History
from fedloom.data import Federation as Examples, by_lists, from_arrays
from fedloom.deploy.nats.nats_server import program
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings
from fedloom.storage import files
from fedloom.storage.codec import encode
from two_folders import lines
from uploads_searched import found, in_words, pieces_of, pieces_sent, traced, uploads_seen

DEVICES, FEATURES, CLASSES, EACH = 6, 30, 3, 30
ASKED = "range=8"
WITHIN = 120.0  # seconds until a round is done after what was killed is there again
SETTINGS = """
algorithm = "scaffold"
model = "logistic"
data.classes = 3
local = {epochs = 1, batch_size = 12}
run = {rounds = %d, cohort_size = 6, deadline = 20, eval_every = 100000%s}
"""
EVENTS = {"device": 9, "two devices": 3, "four devices": 2, "server": 4, "server and device": 2}  # how often
_STAGE = re.compile(rb'\\"masked\\": \{\\"(?:stage\\": \\"(\w+)|(message))')  # in a request, as nats-server prints it


@functools.cache
def forkserver() -> Any:
    """As `runs.forkserver`, unless that one runs already: what servers and devices over NATS import is there too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["masked_preloaded"])
    with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        multiprocessing.forkserver.ensure_running()
    return context


class Forked(launching.Forked):
    """As `launching.Forked`, with all of a `Popen` that a `Federation` uses; it prints into a file that stays."""

    def __init__(self, program: list[str], told: dict[str, str], output: Path) -> None:
        self.stdout: Any = output.open("a+", encoding="utf-8")
        self.process = forkserver().Process(target=launching._as_python, args=(program, told, str(output)))
        self.process.start()

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float = 60) -> int:
        return super().wait(timeout)

    def terminate(self) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGTERM)


class Masked(Federation):
    """A federation in a folder, whose nats-server writes down what it is given."""

    def __init__(self, folder: Path, rounds: int, masks: bool = True) -> None:
        forkserver()
        super().__init__(folder, "nats")
        self.masks, self.outputs, self.read, self.stage = masks, dict[str, Path](), 0, ""
        self.examples = written(folder, rounds, masks)
        programs = folder / "programs"
        programs.mkdir()
        (programs / "nats-server").write_text(f'#!/bin/sh\nexec "{program()}" --trace "$@"\n')
        (programs / "nats-server").chmod(0o700)
        self.told = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        self.more = secured(folder, "nats", range(DEVICES))
        self.rounds = rounds
        self.serve(*self.more, least=DEVICES)
        for k in range(DEVICES):
            self.join(k)
        self.until(lambda: self.done() >= 1)

    def start(self, name: str, *words: str) -> Any:
        output = self.outputs[name] = self.folder / f"{name}.{time.monotonic_ns()}.out"
        process = Forked(["-m", "fedloom", *words], self.told, output)
        self.processes[name] = process  # type: ignore[assignment]
        return process

    def text(self, name: str) -> str:
        return self.outputs[name].read_text(errors="replace")

    def done(self) -> int:
        """How many rounds are done."""
        return lines(self.folder / "out" / "metrics.jsonl") - 1

    def read_on(self) -> None:
        """Read on in what nats-server was given: which message of the protocol is the newest."""
        log = self.folder / "out" / "nats" / "nats-server.log"
        if log.exists():
            with log.open("rb") as file:
                self.read = self.read if self.read <= log.stat().st_size else 0  # it was begun anew
                file.seek(self.read)
                new = file.read()
            self.read += max(0, len(new) - 100)  # a word may be cut
            for stage, training in _STAGE.findall(new):
                self.stage = stage.decode() or ("mask" if training else "")

    def passes(self, stage: str, seconds: float = 5.0) -> None:
        """Wait until some message of the protocol is on its way."""
        end = time.monotonic() + seconds
        self.read_on()
        self.stage = ""
        while self.stage != stage and time.monotonic() < end:
            self.read_on()
            time.sleep(0.005)

    def event(self, rng: random.Random) -> tuple[str, int]:
        """Kill something at a moment of the protocol, and start it again; return (at which message, how many kills)."""
        what = rng.choices([*EVENTS], [*EVENTS.values()])[0]
        count = {"two": 2, "four": 4}.get(what.split()[0], 1) * (what != "server")
        names = [f"device{k}" for k in rng.sample(range(DEVICES), count)] + ["server"] * ("server" in what)
        rng.shuffle(names)
        number = signal.SIGTERM if rng.random() < 0.1 else signal.SIGKILL
        if (aim := rng.choice((None, "advertise", "share", "mask", "unmask"))) is None:
            time.sleep(rng.random() * 2)
        else:
            self.passes(aim)
            time.sleep(rng.random() * 0.03)
        self.read_on()
        at = self.stage
        there = [name for name in names if self.processes[name].poll() is None]
        killed = len(there) * (number == signal.SIGKILL)
        for name in there:
            self.processes[name].send_signal(number)
        for name in there:
            self.processes[name].wait(90)
        for name in rng.sample(there, len(there)):
            time.sleep(rng.choice((0.0, 0.5, 2.0)) * rng.random())
            if name == "server":
                self.serve(*self.more, "--resume", least=DEVICES)
            else:
                self.join(int(name[-1]))
        before, server = self.done() + 1, self.processes["server"]  # the round at hand may have had its answers

        def goes_on() -> bool:
            for k in range(DEVICES):  # a server that ends by SIGTERM tells devices that the run is over
                if self.done() < self.rounds and self.processes[f"device{k}"].poll() is not None:
                    self.join(k)
            return self.done() > before or server.poll() is not None

        self.until(goes_on, WITHIN)
        return at, killed

    def finish(self) -> list[str]:
        """Wait until the run is over, and return what is wrong."""
        self.until(lambda: self.processes["server"].poll() is not None)
        time.sleep(5)
        if late := [name for name, process in self.processes.items() if process.poll() is None]:
            self.serve(*self.more, "--resume", least=len(late))  # they were started again as the run ended
        ended = self.ended()
        wrong = [f"{name} ended with {status}: {self.text(name)[-500:]}" for name, status in ended.items() if status]
        wrong += [f"left: {command[:100]}" for command in self.left()]
        there, uploads = records(self.folder), Uploads(self.examples)
        if len(there) != self.rounds + 1:
            return [*wrong, f"{len(there) - 1} of {self.rounds} rounds are there"]
        with uploads_seen(uploads.seen, uploads.sent, range(DEVICES)):
            history = loop_that_loses(self.folder, self.examples)
        return wrong + unlike(self.folder, history) + self.other_states(history) + self.shown(uploads)

    def other_states(self, history: History) -> list[str]:
        """Devices whose states are not those of the loop."""
        out = self.folder / "out"
        engine, wrong = Experiment.from_directory(out).job().restore(out).engine, list[str]()
        for k, state in history.clients.items():
            digest = files.digest(encode(state))
            held = [path.name for path in (self.folder / f"state{k}" / "runs").rglob(f"*{digest}*")]
            if engine._digest(k) != digest or len(held) != 1:  # type: ignore[attr-defined]
                wrong.append(f"the state of device {k} is {digest}, accepted {engine._digest(k)}, held {held}")  # type: ignore[attr-defined]
        return wrong

    def kept(self) -> list[Path]:
        """The files that the run has left, without the examples that it was given."""
        given = ("data", "test.npz", "programs")
        paths = sorted(self.folder.rglob("*"))
        return [p for p in paths if p.is_file() and not p.relative_to(self.folder).parts[0].startswith(given)]

    def whose(self, path: Path) -> int | None:
        """The device in whose folder a file is."""
        part = path.relative_to(self.folder).parts[0]
        return int(part[-1]) if part.startswith("state") else None

    def shown(self, uploads: Uploads) -> list[str]:
        """Where pieces of single uploads are."""
        wrong, all_ = list[str](), set[bytes]().union(*uploads.pieces.values())
        logs = given_to_nats(self.folder)
        messages = [message for log in logs for message in traced(log.read_bytes())]
        if b"Starting nats-server" not in logs[0].read_bytes()[:200]:
            wrong.append("what nats-server was given at first is not written down any more: fewer --rounds")
        self.searched = {"messages": sum(map(len, messages)), "files": 0, "pieces": len(all_)}
        if here := found(all_, b"\n".join(messages)):
            wrong.append(f"{len(here)} pieces of uploads are in messages")
        for own in (None, *range(DEVICES)):
            paths = [path for path in self.kept() if path not in logs and self.whose(path) == own]
            pieces = all_ if own is None else all_ - uploads.pieces[own]
            contents = [path.read_bytes() for path in paths]
            self.searched["files"] += sum(map(len, contents))
            if found(pieces, b"\n".join(contents)):
                names = [path.name for path, data in zip(paths, contents, strict=True) if found(pieces, data)]
                wrong.append(f"pieces of uploads are in {names}")
        return wrong


class Uploads:
    """Pieces of each device's uploads in a run, without those of what all are sent."""

    def __init__(self, examples: Examples) -> None:
        self.fixed = in_words(ASKED, examples.partition.sizes.tolist())
        self.pieces = {k: set[bytes]() for k in range(DEVICES)}
        self.of_all = set[bytes]()

    def seen(self, round: int, client: int, upload: Any) -> None:
        self.pieces[client] |= pieces_of(upload, self.fixed) - self.of_all

    def sent(self, round: int, broadcast: Any) -> None:
        new = pieces_sent(broadcast)
        self.of_all |= new
        for pieces in self.pieces.values():
            pieces -= new


def given_to_nats(folder: Path) -> list[Path]:
    """The logs of what nats-server was given, the older one first."""
    log = folder / "out" / "nats" / "nats-server.log"
    return [path for path in (log.with_name(f"{log.name}.old"), log) if path.exists()]


def written(folder: Path, rounds: int, masks: bool) -> Examples:
    """Folders of the devices, the server's settings and test set, and what devices hold together."""
    (folder / "fed.toml").write_text(SETTINGS % (rounds, f', secure_aggregation = "{ASKED}"' if masks else ""))
    parts = [clouds(k, [k % CLASSES, (k + 1) % CLASSES]) for k in range(DEVICES)]
    for k, (x, y) in enumerate(parts):
        (folder / f"data{k}").mkdir()
        np.savez(folder / f"data{k}" / "mine.npz", x_train=x[:24], y_train=y[:24], x_test=x[24:], y_test=y[24:])
        (folder / f"state{k}").mkdir()
        (folder / f"state{k}" / "id").write_text(str(k + 1) * 32)
    test = clouds(9, [0, 1, 2])
    np.savez(folder / "test.npz", x_train=test[0], y_train=test[1], x_test=test[0], y_test=test[1])
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    starts = range(0, EACH * DEVICES, EACH)
    rows = [by_lists([range(a + start, b + start) for start in starts]) for a, b in ((0, 24), (24, EACH))]
    return Examples(from_arrays(x, y, num_classes=CLASSES), rows[0], from_arrays(*test, num_classes=CLASSES), rows[1])


def clouds(seed: int, classes: list[int]) -> Any:
    """(x, y) of clouds, of which only some are here."""
    rng = np.random.default_rng(seed)
    y = np.resize(classes, EACH)
    return (np.eye(CLASSES, FEATURES)[y] + rng.normal(size=(EACH, FEATURES))).astype(np.float32), y


def attack(folder: Path, kills: int, rounds: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One federation, in which so many are killed, or as many as its rounds allow; return counts and what is wrong."""
    start, rng, count, wrong = time.monotonic(), random.Random(seed), Counter[str](), list[str]()
    masked = Masked(folder, rounds)
    try:
        while count["kills"] < kills and masked.done() < rounds - 12:
            at, killed = masked.event(rng)
            count.update({"events": 1, "kills": killed, f"at {at or 'no message'}": killed})
        wrong += masked.finish()
        there = lost(folder)
        by_round = Counter(t for t, _ in there)
        refused = {t for t, number in by_round.items() if number == DEVICES}
        count.update({
            "rounds": rounds, "sums": rounds - len(refused), "refused": len(refused),
            "with some lost": len(by_round.keys() - refused), **masked.searched,
        })  # fmt: skip
    except AssertionError as error:
        wrong.append(f"it hangs: {str(error)[-3000:]}")
    finally:
        masked.end()
    print(
        f"seed {seed}: {time.monotonic() - start:.0f} s, {dict(count)}; wrong {len(wrong)}",
        *wrong,
        sep="\n  ",
        flush=True,
    )
    return count, wrong


def in_the_clear(folder: Path) -> int:
    """Run a round without masks, and return how many pieces of its uploads the search finds in messages."""
    masked, uploads = Masked(folder, 1, masks=False), None
    try:
        masked.ended()
        uploads = Uploads(masked.examples)
        settings = Experiment.of(read_settings(folder / "fed.toml")).with_all(
            {"run.engine": "loop", "run.compilation": "none", "run.deadline": None, "run.secure_aggregation": ASKED}
        )
        with uploads_seen(uploads.seen, uploads.sent, range(DEVICES)):
            settings.job(masked.examples).run()
        messages = traced(given_to_nats(folder)[0].read_bytes())
        return len(found(set[bytes]().union(*uploads.pieces.values()), b"\n".join(messages)))
    finally:
        masked.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100, help="of a federation")
    parser.add_argument("--seed", type=int, default=0, help="of the first federation; each has the next")
    parser.add_argument("--folder", type=Path, help="for what is wrong; a temporary one")
    parser.add_argument("--clear", action="store_true", help="what the search finds where there are no masks")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    total, wrong, seed = Counter[str](), list[str](), args.seed
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        while not args.clear and total["kills"] < args.kills:
            own = folder / f"seed{seed}"
            own.mkdir(parents=True)
            count, bad = attack(own, args.kills - total["kills"], args.rounds, seed)
            total, wrong, seed = total + count, wrong + bad, seed + 1
            if not bad:
                shutil.rmtree(own)
        if args.clear:
            (folder / "clear").mkdir(parents=True)
            print(f"{in_the_clear(folder / 'clear')} pieces of uploads are found without masks")
    print(f"in all {dict(total)}; wrong {len(wrong)}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
