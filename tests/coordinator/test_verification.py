"""`verify`: after any damage it names it, or the bytes were of no consequence; and no intact file is ever lost."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_resume import everything, same_end

from fedloom import History, PFedSD, RunSettings, verify
from fedloom.coordinator import Job, run_documents as reading
from fedloom.coordinator.verification import Verdict, root_of
from fedloom.core.errors import DamageError, FedloomError, StorageWarning
from fedloom.report import summary, write_report
from fedloom.storage import files
from tiny import LOCAL, federation, linear

JOB = Job(
    algorithm=PFedSD(local=LOCAL),
    federation=federation(),
    model=linear,
    settings=RunSettings(rounds=6, cohort_size=3, engine="loop", threads=1, keep_every=3),
)
KINDS = ("flip", "cut", "append", "delete", "zero", "insert", "swap", "copy", "empty", "digit")


def damage(directory: Path, rng: random.Random) -> tuple[str, set[str]]:
    """Damage one or two files of a run; what was done, and to which."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != ".lock")
    kind, path = rng.choice(KINDS), rng.choice(paths)
    data, at = bytearray(path.read_bytes()), rng.randrange(path.stat().st_size)
    like = rng.choice([p for p in paths if p.suffix == path.suffix])
    touched = {path}
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "digit":  # which leaves JSON well-formed
        digits = [i for i, byte in enumerate(data) if 48 <= byte < 58] or [at]
        at = rng.choice(digits)
        data[at] = 48 + (data[at] - 47) % 10
    elif kind == "cut":
        del data[at:]
    elif kind == "append":
        data += rng.randbytes(rng.randrange(1, 30))
    elif kind == "zero":
        data[at : at + 16] = bytes(len(data[at : at + 16]))
    elif kind == "insert":
        data[at:at] = rng.randbytes(3)
    elif kind == "empty":
        data.clear()
    elif kind in ("swap", "copy"):
        data[:] = like.read_bytes()
        if kind == "swap":
            touched.add(like)
            like.write_bytes(path.read_bytes())
    path.unlink()
    if kind != "delete":
        path.write_bytes(data)
    return kind, {str(p.relative_to(directory)) for p in touched}


def speaks(use: Callable[[Path], Any], run: Path) -> bool:
    """Whether a use of a run refuses it, warns of it or marks what it reads."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            out = use(run)
        except FedloomError:
            return True
    return any(one.category is StorageWarning for one in warned) or bool(getattr(out, "unproved", ""))


def _branch(run: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        JOB.branch(run, Path(folder, "branch"))


USES: dict[str, Callable[[Path], Any]] = {
    "reading": History.read,
    "restoring": JOB.restore,  # for export, predict and evaluate
    "branching": _branch,
    "replaying": lambda run: JOB.replay(run, 6),
}


def tried(count: int, seed: int, folder: Path) -> Counter[str]:
    """How damages of a run came out; an assertion fails where one was silent or cost an intact file."""
    JOB.run(folder / "whole")
    before, end, rng = everything(folder / "whole"), JOB.run(), random.Random(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        run = folder / str(number)
        shutil.copytree(folder / "whole", run)
        kind, names = damage(run, rng)
        told = f"damage {number} of seed {seed}: {kind} of {names}"
        damaged = everything(run)
        verdict = verify(run)
        assert everything(run) == damaged, told
        if not verdict.whole:
            silent = [name for name, use in USES.items() if not speaks(use, run)]
            assert not silent, f"{told}, of which {', '.join(silent)} say nothing"
            assert everything(run) == damaged, told
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StorageWarning)
            try:
                again = JOB.run(run, resume=True)
            except FedloomError:  # any other exception is a failure of this test
                outcomes["refused"] += 1
                assert not verdict.whole, f"{told}, which verify does not name"
                assert everything(run) == damaged, told
            else:
                outcomes["went on"] += 1
                assert same_end(end, again), f"{told}, which a resumed run does not notice"
                assert (run / "metrics.jsonl").read_bytes() == before["metrics.jsonl"], told
                left = [p.read_bytes() for p in run.rglob("*") if p.is_file()]
                lost = [n for n, data in before.items() if n not in names and data not in left and "timing" not in n]
                assert not lost, f"{told} cost {lost}"
        if damaged != before and verdict.whole:  # allowed where nothing depends on it: what is computed again
            outcomes["of no consequence"] += 1
            assert verdict.notes, f"{told}, of which verify says nothing"
        shutil.rmtree(run)
    return outcomes


# ---- whatever verify finds, all that reads a run says


def reseal(run: Path, name: str) -> None:
    """Give the newest index the digest of a log as it is now."""
    index = sorted((run / "checkpoints").glob("*.json"))[-1]
    content, data = reading.unsealed(index.read_bytes()), (run / name).read_bytes()
    content["logs"][name] = [len(data), files.digest(data)]
    index.write_bytes(reading.sealed(content))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl", "clients.jsonl"])
def test_a_number_of_an_early_round_is_proved_by_its_own_checkpoint(name: str, tmp_path: Path) -> None:
    """Where the newest index was sealed anew, it fits the log; those before it do not."""
    job, run = dataclasses.replace(JOB, settings=dataclasses.replace(JOB.settings, per_client=True)), tmp_path / "run"
    job.run(run)
    lines = (run / name).read_text().splitlines(keepends=True)
    lines[2] = re.sub(r"0\.\d+", "0.5", lines[2], count=1)
    (run / name).write_text("".join(lines))
    reseal(run, name)
    message = rf"{name} was changed: its first [\d,]+ bytes are not those of which the checkpoint of round 3 has the"
    assert [re.search(message, problem) is not None for problem in verify(run).problems] == [True]
    before = everything(run)
    refusing: list[Callable[[], Any]] = [
        lambda: History.read(run), lambda: summary(run), lambda: write_report(run, tmp_path / "page"),
        lambda: job.run(run, resume=True), lambda: job.branch(run, tmp_path / "branch"), lambda: job.replay(run, 6),
    ]  # fmt: skip
    for use in refusing:
        with pytest.raises(DamageError, match=message):
            use()
    with pytest.warns(StorageWarning, match=f"the run in .* is damaged: .*{message}.*; fedloom verify lists all"):
        job.restore(run)  # the model is what it was
    assert everything(run) == before
    assert not (tmp_path / "page").exists()
    assert not (tmp_path / "branch").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["checkpoints/00000003-server.safetensors", "checkpoints/00000003.json", "timing.jsonl"]
)
def test_what_is_missing_and_not_shown_is_a_mark(name: str, tmp_path: Path) -> None:
    JOB.run(tmp_path / "runs/one")
    (tmp_path / "runs/one" / name).unlink()
    assert History.read(tmp_path / "runs/one").unproved.startswith("it is damaged: ")
    found = summary(tmp_path / "runs")
    assert [m.label for m in found.methods] == ["PFedSD (unproved)"]
    assert "one: it is damaged: " in found.remarks[0]
    assert verify(tmp_path / "runs/one").problems[0] in found.remarks[0]


@pytest.mark.slow
def test_large_states_are_looked_for_and_read_by_verify_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    JOB.run(run)
    old = run / "checkpoints/00000003-server.safetensors"
    old.write_bytes(old.read_bytes()[:-1] + b"!")
    assert old.name in History.read(run).unproved
    monkeypatch.setattr("fedloom.coordinator.verification.FEW_BYTES", 100)
    assert History.read(run).unproved == ""
    assert not verify(run).whole
    old.unlink()
    assert old.name in History.read(run).unproved


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_damaged(tmp_path: Path) -> None:
    """Whatever it writes and deletes between the moments in which its files are listed and read."""
    settings = dataclasses.replace(JOB.settings, rounds=80, checkpoint_every=1, keep_every=100)
    running = threading.Thread(target=dataclasses.replace(JOB, settings=settings).run, args=(tmp_path / "run",))
    running.start()
    found: Counter[str] = Counter()
    while running.is_alive():
        if (tmp_path / "run/metrics.jsonl").exists() and (tmp_path / "run/manifest.json").exists():
            found[re.sub(r"\d+", "N", History.read(tmp_path / "run").unproved)] += 1
            assert verify(tmp_path / "run").problems == []
    running.join()
    assert found.keys() <= {"", "no checkpoint proves its rounds after N yet", "no checkpoint proves its logs"}
    assert sum(found.values()) > 3


# ---- the root, and the weights that a run starts from


@pytest.mark.slow
def test_the_root_is_that_of_the_run_as_it_stands(tmp_path: Path) -> None:
    JOB.run(tmp_path / "run")
    root = verify(tmp_path / "run").root
    JOB.run(tmp_path / "run", resume=True)  # nothing is left to do
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert verify(tmp_path / "copy").root == root
    dataclasses.replace(JOB, settings=dataclasses.replace(JOB.settings, rounds=7)).run(tmp_path / "copy", resume=True)
    assert verify(tmp_path / "copy").root not in (root, None)
    (tmp_path / "run/settings.json").write_text("{}")
    assert verify(tmp_path / "run").root is None


@pytest.mark.slow
def test_the_root_has_the_logs_of_a_run_without_checkpoints(tmp_path: Path) -> None:
    """One that was killed before its first checkpoint."""
    JOB.run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints")
    for log in (tmp_path / "run").glob("*.jsonl"):
        log.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    roots = [verify(tmp_path / "run").root]
    log = tmp_path / "run/metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-9])
    roots.append(verify(tmp_path / "run").root)
    assert len(set(roots)) == 2
    assert None not in roots


def test_the_root_of_several_runs_is_of_their_places_too(tmp_path: Path) -> None:
    one, two = Verdict(tmp_path, root="1"), Verdict(tmp_path, root="2")
    assert root_of({".": one}) == "1"
    roots = {root_of({"a": one, "b": two}), root_of({"a": two, "b": one}), root_of({"a": one}), root_of({"b": one})}
    assert len(roots) == 4
    assert root_of({"b": two, "a": one}) in roots
    assert root_of({"a": one, "b": Verdict(tmp_path)}) is None


@pytest.mark.slow
def test_another_file_of_start_weights_is_named(tmp_path: Path) -> None:
    start = tmp_path / "start.safetensors"
    start.write_bytes(b"the weights")
    described = {"start": str(start)}
    dataclasses.replace(JOB, described=described).run(tmp_path / "run")
    assert (verify(tmp_path / "run").whole, verify(tmp_path / "run").notes) == (True, [])
    start.write_bytes(b"others")
    assert verify(tmp_path / "run").problems == [
        f"{start} is not the file of weights that the run started from, and a resume refuses it: bring that back"
    ]
    start.unlink()
    assert verify(tmp_path / "run").notes == [f"{start}, the weights that it started from, is not here"]


@pytest.mark.slow
def test_forty_random_damages_are_named_or_of_no_consequence(tmp_path: Path) -> None:
    assert tried(40, 0, tmp_path)["refused"] > 10


@pytest.mark.slow
def test_three_hundred_random_damages_are_named_or_of_no_consequence(tmp_path: Path) -> None:
    outcomes = tried(300, 1, tmp_path)
    assert outcomes["refused"] > 100
    assert outcomes["of no consequence"] < 20
