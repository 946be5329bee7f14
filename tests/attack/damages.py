"""Run directories whose files are damaged, and what resuming, verifying and reporting make of them.

    python tests/attack/damages.py --cases 300

Each case damages one file of a copy of a run: bits flipped, bytes gone or added, JSON values changed, keys dropped,
files swapped with others of their kind, with older ones, with those of another seed; indexes that are sealed anew;
the file of weights that a run starts from, which is beside it. Bad is

- silent: the run goes on and ends otherwise than one that nobody has touched, or `verify` calls whole, with the same
  root, what is not;
- traceback: an exception that fedloom does not raise on purpose;
- lost: a file that was intact is gone, although the run was refused, or it would be there had nothing happened.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))

import runs

from fedloom import verify
from fedloom.cli.main import main as fedloom
from fedloom.coordinator import run_documents as reading
from fedloom.core.errors import FedloomError, SettingError
from fedloom.models import build
from fedloom.storage import files

ROUNDS, MORE = 9, 12
KINDS = {
    "settings": "settings.json", "manifest": "manifest.json", "federation": "federation.json",
    "metrics": "metrics.jsonl", "timing": "timing.jsonl", "index": "checkpoints/[0-9]*.json",
    "server": "checkpoints/*-server.safetensors", "client": "checkpoints/clients/*.safetensors",
    "chain": "checkpoints/[0-9]*.json", "start": "../start.safetensors",
}  # fmt: skip
Damage = Callable[[random.Random, Path, Path], str]  # (rng, the file, a run of another seed) -> what was done


def flip_bit(rng: random.Random, path: Path, other: Path) -> str:
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"a bit of byte {at}"


def cut(rng: random.Random, path: Path, other: Path) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    return "cut"


def cut_out(rng: random.Random, path: Path, other: Path) -> str:
    data = path.read_bytes()
    a = rng.randrange(len(data))
    path.write_bytes(data[:a] + data[a + rng.randrange(1, 50) :])
    return f"bytes gone at {a}"


def zeros(rng: random.Random, path: Path, other: Path) -> str:
    data = bytearray(path.read_bytes())
    a = rng.randrange(len(data))
    b = min(len(data), a + rng.randrange(1, 4096))
    data[a:b] = bytes(b - a)
    path.write_bytes(data)
    return f"zeros from {a} to {b}"


def more(rng: random.Random, path: Path, other: Path) -> str:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 30)))
    return "bytes added"


def gone(rng: random.Random, path: Path, other: Path) -> str:
    path.unlink()
    return "gone"


def swapped(rng: random.Random, path: Path, other: Path) -> str:
    """With another of its kind: another client's, another round's."""
    siblings = [p for p in path.parent.iterdir() if p.is_file() and p.suffix == path.suffix and p != path]
    if not siblings:
        return flip_bit(rng, path, other)
    b = rng.choice(siblings)
    one, two = path.read_bytes(), b.read_bytes()
    path.write_bytes(two)
    b.write_bytes(one)
    return f"swapped with {b.name}"


def of_another_run(rng: random.Random, path: Path, other: Path) -> str:
    there = sorted(other.rglob(path.name))
    if not there:
        return cut(rng, path, other)
    shutil.copy(there[0], path)
    return "of another seed"


def digit(rng: random.Random, path: Path, other: Path) -> str:
    text = path.read_bytes()
    places = [i for i, b in enumerate(text) if chr(b).isdigit()]
    if not places:
        return flip_bit(rng, path, other)
    at = rng.choice(places)
    new = rng.choice([d for d in b"0123456789" if d != text[at]])
    path.write_bytes(text[:at] + bytes([new]) + text[at + 1 :])
    return f"digit {chr(text[at])} at {at} became {chr(new)}"


def json_changed(rng: random.Random, path: Path, other: Path) -> str:
    """One value of a document becomes another, or a key goes, or stands twice."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    whole = path.suffix == ".json"
    number = 0 if whole else rng.randrange(len(lines))
    try:
        document = json.loads(path.read_text() if whole else lines[number])
    except ValueError:
        return cut(rng, path, other)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(document)
    if not places:
        return cut(rng, path, other)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.2:
        del node[key]
        done = f"{key} gone"
    else:
        deep: Any = 1
        for _ in range(900):
            deep = [deep]
        values = (None, -1, 0, "1", 10**12, 1e308, [], {}, True, "a\0b", "../../x", deep)
        node[key] = rng.choice(values)
        done = f"{key} changed to {str(node[key])[:20]}"
    text = json.dumps(document, indent=2 if whole else None)
    if whole:
        path.write_text(text + "\n")
    else:
        lines[number] = text
        path.write_text("\n".join(lines) + "\n")
    return done


def sealed_anew(rng: random.Random, path: Path, other: Path) -> str:
    """An index that names an older state of a client, or none, or another beginning of a log, and whose digest fits."""
    index = reading.unsealed(path.read_bytes())
    client = rng.choice(list(index["clients"])) if index["clients"] else None
    states = [] if client is None else sorted((path.parent / "clients").glob(f"{int(client):08d}-*"))
    older = [p for p in states if p.name < index["clients"][client][0]]
    if older and rng.random() < 0.6:
        index["clients"][client] = [older[0].name, files.digest(older[0].read_bytes())]
        done = f"client {client} is as in {older[0].name}"
    elif client is not None and rng.random() < 0.7:
        del index["clients"][client]
        done = f"client {client} gone"
    else:
        index["logs"]["timing.jsonl"][1] = "0" * 32
        done = "another log"
    path.write_bytes(reading.sealed(index))
    return f"{done}, sealed anew"


BYTES: tuple[Damage, ...] = (flip_bit, cut, cut_out, zeros, more, gone, swapped, of_another_run)
TEXT: tuple[Damage, ...] = (*BYTES, digit, digit, json_changed, json_changed)


def other_weights(rng: random.Random, path: Path, other: Path) -> str:
    """The weights of another file, which fit."""
    shutil.copy(path.parent / "others.safetensors", path)
    return "other weights"


STARTS: tuple[Damage, ...] = (other_weights, other_weights, flip_bit, zeros, gone)


def digests(directory: Path) -> dict[str, str]:
    return {
        str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in directory.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def attempt(action: Callable[[], Any]) -> tuple[str, Any]:
    """("done", what came), ("refused", why) or ("traceback", the exception)."""
    try:
        return "done", action()
    except FedloomError as error:
        return "refused", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"


def command(*words: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return fedloom(words)


@contextlib.contextmanager
def _as_it_was(path: Path) -> Iterator[None]:
    """Bring a file back in the end."""
    data = path.read_bytes() if path.exists() else None
    try:
        yield
    finally:
        if data is not None:
            path.write_bytes(data)


class Subject:
    """A run of nine rounds, what it is after twelve, and the same run with another seed.

    What it is after twelve is told twice: of the run that ended after nine, whose last round then has all measurements,
    and of one that was asked for twelve at once, as where round nine is computed again.
    """

    start = Path("nowhere")  # the file of weights that it starts from

    def __init__(self, name: str, engine: str, folder: Path) -> None:
        self.name, self.engine = name, engine
        self.run, self.other, self.after = folder / "run", folder / "other", folder / "after"
        runs.job(name, engine, ROUNDS).run(self.run)
        runs.job(name, engine, ROUNDS, seed=1).run(self.other)
        shutil.copytree(self.run, self.after)
        at_once = folder / "at-once"
        ends = ((self.after, self.resume(self.after)), (at_once, runs.job(name, engine, MORE).run(at_once)))
        self.ends = [((place / "metrics.jsonl").read_bytes(), end) for place, end in ends]
        self.remember()

    def remember(self) -> None:
        self.files, self.files_after = digests(self.run), digests(self.after)
        self.root = verify(self.run).root
        assert self.root is not None

    def resume(self, directory: Path) -> Any:
        return runs.job(self.name, self.engine, MORE).run(directory, resume=True)

    def ended_otherwise(self, place: Path, end: Any) -> bool:
        found = (place / "metrics.jsonl").read_bytes()
        return not any(found == metrics and runs.same_end(known, end) for metrics, known in self.ends)

    def try_case(self, rng: random.Random, kind: str, place: Path) -> list[str]:
        """What was bad about one damage."""
        if kind == "start" and not self.start.exists():  # of a run that starts from no file
            kind = "chain"
        shutil.copytree(self.run, place)
        path = self.start if kind == "start" else rng.choice(sorted(place.glob(KINDS[kind])))
        damage = rng.choice(BYTES if path.suffix == ".safetensors" else TEXT)
        damage = sealed_anew if kind == "chain" else rng.choice(STARTS) if kind == "start" else damage
        with _as_it_was(self.start):
            return self._try(f"{path.name}: {damage(rng, path, self.other)}", place, kind)

    def _try(self, what: str, place: Path, kind: str) -> list[str]:
        before = digests(place)
        touched = {name for name in self.files if before.get(name) != self.files[name]}
        if not touched and kind != "start":
            return []
        bad = []
        how, verdict = attempt(lambda: verify(place))
        if how != "done":
            bad.append(f"traceback: verify: {verdict}")
        elif verdict.whole and not verdict.notes and verdict.root == self.root:
            bad.append("silent: verify calls it whole and has nothing to note")
        how, status = attempt(lambda: command("report", str(place), "--out", str(place / "page")))
        if how == "traceback":
            bad.append(f"traceback: report: {status}")
        shutil.rmtree(place / "page", ignore_errors=True)
        if digests(place) != before:
            bad.append("lost: verify or report changed the directory")
        how, end = attempt(lambda: self.resume(place))
        now = digests(place)
        if how == "traceback":
            bad.append(f"traceback: resume: {end}")
        if kind == "chain" and how == "done" and verdict.root not in (None, self.root):
            self.outcome = how  # the newest index, sealed anew: whoever has written the root down knows
            return bad
        if how == "done":
            if self.ended_otherwise(place, end):
                bad.append("silent: resumed and ended otherwise")
            expected = {n for n in self.files_after if self.files.get(n) == self.files_after[n]} - touched
        else:
            expected = set(self.files) - touched
        there = collections.Counter(now.values())
        bad += [f"lost: {name} ({how})" for name in sorted(expected) if not there[self.files[name]]]
        self.outcome = how
        return [f"{b} [{what}]" for b in bad]


class Commanded(Subject):
    """The same with a run that is described in words: here settings.json decides what is computed."""

    def __init__(self, folder: Path) -> None:
        self.run, self.other, self.after = folder / "run", folder / "other", folder / "after"
        rng, data = np.random.default_rng(0), folder / "data.npz"
        folder.mkdir(parents=True)
        x, y = rng.random((240, 4), np.float32), np.arange(240) % 3
        np.savez(data, x_train=x, y_train=y, x_test=x[:60], y_test=y[:60])
        self.start = folder / "start.safetensors"
        for seed, path in enumerate((self.start, folder / "others.safetensors")):
            torch.manual_seed(seed)
            save_file(build("logistic", (4,), 3).state_dict(), path)
        asked = ["--data", str(data), "--model", "logistic", "--clients", "12", "--partition", "iid", "--cohort", "4",
                 "--rounds", str(ROUNDS), "--engine", "loop", "--threads", "1", "--batch-size", "4",
                 "--start", str(self.start)]  # fmt: skip
        for place, seed in ((self.run, "0"), (self.other, "1")):
            assert command("run", "pfedsd", *asked, "--seed", seed, "--out", str(place)) == 0
        shutil.copytree(self.run, self.after)
        self.resume(self.after)
        self.remember()

    def resume(self, directory: Path) -> None:
        if command("resume", str(directory), "--rounds", str(MORE)) != 0:
            raise SettingError("refused by the command")

    def ended_otherwise(self, place: Path, end: Any) -> bool:
        last = {n: d for n, d in self.files_after.items() if f"{MORE:08d}-server" in n or n == "metrics.jsonl"}
        return not last.items() <= digests(place).items()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rng, start, found = random.Random(args.seed), time.monotonic(), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        subjects = [Subject(n, e, Path(folder, f"{n}-{e}")) for n, e in (("pfedsd", "loop"), ("kt_pfl", "stacked"))]
        subjects.append(Commanded(Path(folder, "commanded")))
        for case in range(args.cases):
            subject, kind = subjects[case % len(subjects)], list(KINDS)[case // len(subjects) % len(KINDS)]
            place = Path(folder, f"case-{case}")
            for line in subject.try_case(rng, kind, place):
                found[line.partition(":")[0]] += 1
                print(f"case {case}: {line}", flush=True)
            found[subject.outcome] += 1
            shutil.rmtree(place)
    counts = ", ".join(f"{name} {found[name]}" for name in ("done", "refused", "silent", "traceback", "lost"))
    print(f"cases {args.cases}: {counts}, {time.monotonic() - start:.0f} s")
    return int(any(found[name] for name in ("silent", "traceback", "lost")))


if __name__ == "__main__":
    sys.exit(main())
