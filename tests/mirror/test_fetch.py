"""`fedloom fetch`: a mirror is bytes from outside; what is not proved is not used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from test_mirroring import address_of, job

from commands import call, error
from fedloom import verify
from fedloom.core.errors import DamageError, SettingError
from fedloom.mirror import fetch as fetching
from fedloom.mirror.fetch import fetch, fetched
from fedloom.mirror.mirror_record import MirrorRecord, newest_record
from fedloom.mirror.object_store import ObjectStore


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    address = address_of(tmp_path)
    job(address, rounds=2).run(tmp_path / "run")
    return address


def record_of(address: str) -> MirrorRecord:
    record, _ = newest_record(ObjectStore(address))
    assert record is not None
    return record


def changed(address: str, **more: Any) -> None:
    """A record that is sealed anew, as somebody writes it who knows the format."""
    record = record_of(address)
    record = dataclasses.replace(record, number=record.number + 1, **more)
    ObjectStore(address).write({record.name: record.sealed()})


def refused(address: str, tmp_path: Path, why: str) -> None:
    with pytest.raises(DamageError, match=why):
        fetch(address, tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".fetch")]


def test_every_damaged_file_is_noticed(mirror: str, tmp_path: Path) -> None:
    store = ObjectStore(mirror)
    for k, name in enumerate(store.sizes("files")):
        data = store.read(f"files/{name}", 1 << 20)
        wrong = (data[:-1], bytes([data[0] ^ 1]) + data[1:], data + b"\n")[k % 3]
        store.write({f"files/{name}": wrong})
        refused(mirror, tmp_path, r"damaged or changed|more than [\d,]+ bytes")
        store.remove([f"files/{name}"])
        refused(mirror, tmp_path, "is missing")
        store.write({f"files/{name}": data})
    assert fetch(mirror, tmp_path / "there") == 2


def test_a_record_that_names_other_files_is_refused(mirror: str, tmp_path: Path) -> None:
    record = record_of(mirror)
    digest = record.documents["federation.json"]
    changed(mirror, documents={**record.documents, "../outside.json": digest})
    refused(mirror, tmp_path, "documents that its manifest does not name")
    changed(mirror, documents={"federation.json": digest})
    refused(mirror, tmp_path, "names no manifest.json")
    changed(mirror, documents=record.documents, logs={**record.logs, "../x.jsonl": {}})
    refused(mirror, tmp_path, "holds the files of two runs")
    changed(mirror, logs=record.logs, run="0" * 32)
    refused(mirror, tmp_path, "holds the files of two runs")
    changed(mirror, run=record.run, checkpoints={"0": record.checkpoints["0"], "2": record.checkpoints["1"]})
    refused(mirror, tmp_path, "is not a checkpoint of this run")
    assert not (tmp_path / "outside.json").exists()


def test_what_is_fetched_is_verified_as_a_whole(mirror: str, tmp_path: Path) -> None:
    record = record_of(mirror)
    first, *_ = record.logs["metrics.jsonl"].items()
    changed(mirror, logs={**record.logs, "metrics.jsonl": dict([first])})
    if len(record.logs["metrics.jsonl"]) == 1:
        changed(mirror, logs={**record.logs, "metrics.jsonl": {}})
    refused(mirror, tmp_path, "does not hold what the run wrote")


def test_a_run_that_goes_on_meanwhile_is_fetched_from_its_newer_record(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = fetching.take, list[int]()

    def meanwhile(store: ObjectStore, record: MirrorRecord, run: Path) -> None:
        if not taken:
            job(mirror, rounds=4).run(tmp_path / "run", resume=True)
        taken.append(record.round)
        take(store, record, run)

    monkeypatch.setattr(fetching, "take", meanwhile)
    assert fetch(mirror, tmp_path / "there") == 4
    assert taken == [2, 4]


def test_a_folder_that_is_not_free_and_an_empty_mirror_are_refused(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="already holds a run"):
        fetch(mirror, tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(SettingError, match="a folder of its own: name a new one"):
        fetch(mirror, tmp_path / "mine")
    with pytest.raises(SettingError, match="holds no whole run"):
        fetch(address_of(tmp_path, "empty"), tmp_path / "there")


def test_a_new_run_is_not_begun_over_a_mirror(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"holds round 2 of a run: go on with it \(--resume\)"):
        fetched(mirror, tmp_path / "there", resume=False)
    assert fetched(mirror, tmp_path / "there", resume=True) == f"round 2 fetched from {mirror}"
    assert fetched(mirror, tmp_path / "there", resume=True) == ""
    assert fetched(address_of(tmp_path, "empty"), tmp_path / "new", resume=True) == ""
    assert verify(tmp_path / "there").whole


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*argv: str) -> str:
        status, out, err = call(capsys, *argv)
        assert status == 0, err
        return " ".join(out.split())

    address, first, there = address_of(tmp_path), str(tmp_path / "first"), str(tmp_path / "there")
    flags = ["--clients", "5", "--cohort", "2", "--model", "logistic", "--engine", "loop"]
    two = ["compare", "fedavg", "fedprox", "--no-local-only", *flags, "--mirror", address]
    assert f"fedavg: mirror {address}/fedavg" in said(*two, "--rounds", "1", "--out", first)
    assert "go on with it (--resume)" in error(capsys, *two, "--rounds", "1", "--out", there)
    assert f"{there}/fedavg: round 1" in said("fetch", address, there)
    said("resume", there, "--rounds", "2")
    assert "a later state of it" in error(capsys, "resume", f"{first}/fedavg", "--rounds", "2")
    said("resume", f"{first}/fedavg", "--rounds", "2", "--mirror", "none")
    logs = [Path(place, "fedavg/metrics.jsonl").read_bytes() for place in (first, there)]
    assert logs[0] == logs[1]
    assert f"round 2 fetched from {address}/fedprox" in said(
        *two, "--rounds", "2", "--out", str(tmp_path / "again"), "--resume"
    )
    assert "the branch has no mirror" in said(
        "branch", f"{there}/fedavg", "--out", str(tmp_path / "branch"), "--rounds", "3"
    )
