"""Runs with a mirror: at every moment it holds a whole run, which goes on elsewhere bit for bit."""

from __future__ import annotations

import dataclasses
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fedloom import History, Job, PFedSD, RunSettings, verify
from fedloom.coordinator.checkpoint import Prefix, identity
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import SettingError, StorageWarning
from fedloom.mirror.fetch import fetch
from fedloom.mirror.mirror_record import newest_record
from fedloom.mirror.mirroring import MirrorCopy, Mirroring
from fedloom.mirror.object_store import ObjectStore
from fedloom.storage import files
from tiny import LOCAL, federation, linear

SETTINGS = RunSettings(rounds=4, cohort_size=3, engine="loop", threads=1, keep_every=3)


def address_of(tmp_path: Path, name: str = "mirror") -> str:
    return f"memory://{(tmp_path / name).as_posix().lstrip('/')}"


def job(mirror: str | None = None, rounds: int = 4, seed: int = 0) -> Job:
    settings = dataclasses.replace(SETTINGS, mirror=mirror, rounds=rounds, seed=seed)
    return Job(algorithm=PFedSD(local=LOCAL), federation=federation(), model=linear, settings=settings)


def checkpoints(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in (folder / "checkpoints").rglob("*.*")}


def test_after_each_checkpoint_the_mirror_is_the_folder(tmp_path: Path) -> None:
    address, seen = address_of(tmp_path), list[int]()

    def look(history: History) -> None:
        there = tmp_path / f"at-{len(seen)}"
        seen.append(fetch(address, there))
        assert verify(there).root == verify(tmp_path / "run").root
        assert checkpoints(there) == checkpoints(tmp_path / "run")

    job(address).run(tmp_path / "run", on_round=look)
    assert seen == [1, 2, 3, 4]


def test_nothing_stays_that_no_checkpoint_needs(tmp_path: Path) -> None:
    address = address_of(tmp_path)
    job(address).run(tmp_path / "run")
    store = ObjectStore(address)
    record, _ = newest_record(store)
    assert record is not None
    assert [*store.sizes("records")] == [record.name.removeprefix("records/")]
    states = {files.digest(data) for data in checkpoints(tmp_path / "run").values()}
    others = {*record.documents.values(), *(digest for pieces in record.logs.values() for digest in pieces)}
    assert set(store.sizes("files")) == states | others
    assert store.folders() == ["files", "records"]


def test_a_run_goes_on_elsewhere_bit_for_bit(tmp_path: Path) -> None:
    address = address_of(tmp_path)
    job(address, rounds=2).run(tmp_path / "here")
    shutil.rmtree(tmp_path / "here")  # the machine is lost
    assert fetch(address, tmp_path / "there") == 2
    history = job(address).run(tmp_path / "there", resume=True)
    unbroken = job().run(tmp_path / "unbroken")
    assert history.metrics == unbroken.metrics
    named = ("server", "clients")
    states = [
        {k: v for k, v in checkpoints(tmp_path / name).items() if any(w in k for w in named)}
        for name in ("there", "unbroken")
    ]
    assert states[0] == states[1]
    assert fetch(address, tmp_path / "later") == 4


class BrokenError(Exception):
    """What a store may raise, whatever it is."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Lets a store die at its n-th call that changes something: half of what is written arrives, then nothing works."""
    from fsspec.implementations.memory import MemoryFileSystem

    left: list[int | None] = [None]
    whole = {name: getattr(MemoryFileSystem, name) for name in ("pipe_file", "put_file", "rm_file")}

    def counted(name: str) -> Any:
        def call(self: Any, path: str, *rest: Any, **more: Any) -> Any:
            if left[0] is None:
                return whole[name](self, path, *rest, **more)
            left[0] -= 1
            if left[0] > 0:
                return whole[name](self, path, *rest, **more)
            if left[0] == 0 and name == "pipe_file":
                whole[name](self, path, rest[0][: len(rest[0]) // 2])
            if left[0] == 0 and name == "put_file":
                data = Path(path).read_bytes()
                whole["pipe_file"](self, rest[0], data[: len(data) // 2])
            raise BrokenError("the line is dead")

        return call

    for name in whole:
        monkeypatch.setattr(MemoryFileSystem, name, counted(name))
    return lambda n: left.__setitem__(0, n)


@pytest.mark.slow
def test_a_mirror_is_whole_wherever_its_writer_dies(tmp_path: Path, dying: Callable[[int | None], None]) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    address, calls, ends = address_of(tmp_path), 0, False
    job(address, rounds=1).run(tmp_path / "run")
    store = ObjectStore(address)
    before = {name: store.read(f"{name}", 1 << 20) for name in names(store)}
    job(rounds=3).run(tmp_path / "run", resume=True)  # of which the mirror has not heard
    folder = opened(tmp_path / "run")
    while not ends:
        calls, ends = calls + 1, True
        for path in [path for path in MemoryFileSystem.store if path.startswith(store._root)]:
            del MemoryFileSystem.store[path]
        store.write(before)
        dying(calls)
        try:
            MirrorCopy(store, folder).bring()
        except OSError:
            ends = False
        dying(None)
        assert fetch(address, tmp_path / f"there-{calls}") in (1, 3)  # proved as a whole
        MirrorCopy(store, folder).bring()  # what is half there is sent again
        assert fetch(address, tmp_path / f"end-{calls}") == 3
    assert calls > 15


def names(store: ObjectStore) -> list[str]:
    return [f"{folder}/{name}" for folder in store.folders() for name in store.sizes(folder)]


def test_a_failing_mirror_is_said_tried_again_and_behind_at_the_end(
    tmp_path: Path, dying: Callable[[int | None], None]
) -> None:
    address = address_of(tmp_path)

    def look(history: History) -> None:
        dying({1: 3, 2: None, 3: 1}.get(len(history.metrics) - 1))

    with pytest.warns(StorageWarning) as said:
        history = job(address).run(tmp_path / "run", on_round=look)
    first, last = (str(warning.message) for warning in said)
    assert "mirror of round 2: cannot write" in first
    assert "the line is dead" in first
    assert "holds round 1; it is tried again after the next checkpoint" in first
    assert "holds round 3; the run has ended, and its mirror is behind: resume the run" in last
    assert history.metrics == job().run(tmp_path / "unbroken").metrics
    dying(None)
    assert newest_record(ObjectStore(address))[0].round == 3  # type: ignore[union-attr]
    job(address).run(tmp_path / "run", resume=True)
    assert newest_record(ObjectStore(address))[0].round == 4  # type: ignore[union-attr]


def test_a_mirror_that_cannot_be_reached_is_refused_before_the_run(
    tmp_path: Path, dying: Callable[[int | None], None]
) -> None:
    dying(1)
    with pytest.raises(OSError, match="the line is dead"):
        job(address_of(tmp_path)).run(tmp_path / "run")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == b""


def test_a_mirror_of_another_run_is_refused(tmp_path: Path) -> None:
    address = address_of(tmp_path)
    job(address, rounds=1).run(tmp_path / "one")
    before = ObjectStore(address).sizes("files")
    with pytest.raises(SettingError, match=r"holds round 1 of another run than .*two, or a later state"):
        job(address, rounds=1, seed=1).run(tmp_path / "two")
    assert ObjectStore(address).sizes("files") == before


def test_a_machine_that_comes_back_does_not_overwrite_what_went_on(tmp_path: Path) -> None:
    address = address_of(tmp_path)
    job(address, rounds=1).run(tmp_path / "here")
    fetch(address, tmp_path / "there")
    job(address, rounds=2).run(tmp_path / "there", resume=True)
    with pytest.raises(SettingError, match="or a later state of it: go on from there"):
        job(address, rounds=3).run(tmp_path / "here", resume=True)
    assert fetch(address, tmp_path / "end") == 2


def test_two_machines_at_once_are_noticed(tmp_path: Path) -> None:
    address = address_of(tmp_path)

    def other(history: History) -> None:
        if len(history.metrics) == 2:
            fetch(address, tmp_path / "there")
            job(address, rounds=3).run(tmp_path / "there", resume=True)

    with pytest.warns(StorageWarning, match=r"another process writes to .*stop it here"):
        job(address, rounds=2).run(tmp_path / "here", on_round=other)
    assert fetch(address, tmp_path / "end") == 3


def test_a_file_that_a_store_lost_is_sent_again(tmp_path: Path) -> None:
    address = address_of(tmp_path)
    job(address, rounds=1).run(tmp_path / "run")
    store = ObjectStore(address)
    record, _ = newest_record(store)
    assert record is not None
    store.remove([f"files/{record.documents['federation.json']}"])
    job(address, rounds=2).run(tmp_path / "run", resume=True)
    assert fetch(address, tmp_path / "there") == 2


def test_a_damaged_state_is_not_mirrored(tmp_path: Path) -> None:
    job(rounds=1).run(tmp_path / "run")
    (tmp_path / "run/checkpoints/00000000-server.safetensors").write_bytes(b"damaged")
    copy = MirrorCopy(ObjectStore(address_of(tmp_path)), opened(tmp_path / "run"))
    with pytest.raises(
        OSError, match=r"00000000-server\.safetensors is not what was written there, and is not mirrored"
    ):
        copy.bring()
    assert copy.store.sizes("records") == {}


def opened(folder: Path) -> RunDirectory:
    found = RunDirectory(folder)
    found.checkpoints.identity = identity(found.manifest())
    return found


def test_a_mirror_needs_a_folder_and_no_devices() -> None:
    with pytest.raises(SettingError, match="a mirror is a copy of a run's folder: name one"):
        job("memory://never").run()
    with pytest.raises(SettingError, match="begins with the kind of its store"):
        job("mirror")
    devices: Any = types.SimpleNamespace(
        federation=types.SimpleNamespace(train=types.SimpleNamespace(remote=object())),
        settings=types.SimpleNamespace(engine="devices"),
    )
    with pytest.raises(SettingError, match="devices keep states of their own"):
        Mirroring("memory://a").check(devices)


def test_a_log_is_few_pieces_and_travels_few_times(tmp_path: Path) -> None:
    copy, lines = object.__new__(MirrorCopy), [b"%d\n" % k * (1 + k % 7) for k in range(200)]
    copy.folder, copy._pieces, sent = cast("Any", types.SimpleNamespace(path=tmp_path)), {}, 0
    for count in range(1, len(lines) + 1):
        data = b"".join(lines[:count])
        (tmp_path / "metrics.jsonl").write_bytes(data + b"of a later round")
        cut = copy._cut("metrics.jsonl", Prefix(len(data), files.digest(data)))
        done = 0
        for digest, size in cut.items():
            assert files.digest(data[done : done + size]) == digest
            sent += size * (digest not in copy._pieces.get("metrics.jsonl", {}))
            done += size
        assert done == len(data)
        assert len(cut) <= len(data).bit_length()
        copy._pieces = {"metrics.jsonl": cut}
    assert sent <= len(data) * len(data).bit_length()
