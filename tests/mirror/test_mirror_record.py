"""The newest whole record of a mirror counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedloom.coordinator.run_documents import sealed
from fedloom.mirror.mirror_record import MirrorRecord, newest_record, older_records
from fedloom.mirror.object_store import ObjectStore

D = "0123456789abcdef" * 2
RECORD = MirrorRecord(1, D, 3, {"manifest.json": D}, {"metrics.jsonl": {D: 7}}, {"0": D, "3": D})


def numbered(*numbers: int, at: Path) -> ObjectStore:
    store = ObjectStore(f"memory://{at.as_posix().lstrip('/')}")
    for number in numbers:
        record = dataclasses.replace(RECORD, number=number)
        store.write({record.name: record.sealed()})
    return store


def test_the_newest_whole_record_counts(tmp_path: Path) -> None:
    store = numbered(1, 2, 9, 10, at=tmp_path)
    record, number = newest_record(store)
    assert record is not None
    assert (record.number, number) == (10, 10)
    store.write({record.name: record.sealed()[:-20]})  # a writer died
    record, number = newest_record(store)
    assert record is not None
    assert (record.number, number) == (9, 10)
    assert older_records(store, 9) == ["records/00000001.json", "records/00000002.json"]


def test_a_record_under_another_number_is_none(tmp_path: Path) -> None:
    store = numbered(1, 2, at=tmp_path)
    store.write({"records/00000005.json": RECORD.sealed()})  # the first
    record, number = newest_record(store)
    assert (record and record.number, number) == (2, 5)


def test_without_a_whole_one_there_is_none(tmp_path: Path) -> None:
    store = numbered(at=tmp_path)
    assert newest_record(store) == (None, 0)
    store.write({"records/00000004.json": b"{", "records/notes.json": b"{}"})
    assert newest_record(store) == (None, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"run": "../etc"},
        {"number": -1},
        {"documents": {"manifest.json": "x"}},
        {"logs": {"metrics.jsonl": {D: 0}}},
        {"checkpoints": {"0": D}},
        {"checkpoints": {"03": D, "3": D}},
        {"more": 1},
    ],
)
def test_what_no_mirror_writes_is_refused(change: dict[str, Any]) -> None:
    content = {"format": 1, **dataclasses.asdict(RECORD)}
    assert MirrorRecord.of(sealed(content)) == RECORD
    with pytest.raises(ValueError, match=r"must be|other entries"):
        MirrorRecord.of(sealed(content | change))
