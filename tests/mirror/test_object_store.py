"""An address of fsspec: which texts are one, what is read of it, and how its failures are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import DamageError, SettingError, StorageError
from fedloom.mirror.object_store import ObjectStore, below, check_address


def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(f"memory://{tmp_path.as_posix().lstrip('/')}")


@pytest.mark.parametrize("address", ["s3://bucket/run", "sftp://me@host/folder", "file:///mnt/other", "memory://a"])
def test_addresses(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("runs/mirror", "begins with the kind of its store"),
        ("s3://", "begins with the kind of its store"),
        ("file://runs/mirror", "an absolute path"),
        ("s3://bucket/*", "names one folder of one store"),
        ("simplecache::s3://bucket/run", "begins with the kind of its store"),
        ("ftp://me:secret@host/run", "holds no password"),
    ],
)
def test_what_is_no_address_is_refused_by_its_rule(address: str, rule: str) -> None:
    with pytest.raises(SettingError, match=rule) as refused:
        check_address(address)
    assert "secret" not in str(refused.value)


def test_a_store_that_is_unknown_or_lacks_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="no address that fsspec knows: Protocol not known: nowhere; name another"):
        ObjectStore("nowhere://a")

    def absent(address: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", absent)
    with pytest.raises(SettingError, match="needs another package: Install s3fs to access S3"):
        ObjectStore("s3://bucket/run")


def test_files_and_folders(tmp_path: Path) -> None:
    there = store(tmp_path)
    assert there.sizes("files") == {}
    there.write({"files/a": b"one", "files/b": b""})
    (tmp_path / "c").write_bytes(b"three")
    there.upload({"files/c": tmp_path / "c"})
    assert there.sizes("files") == {"a": 3, "b": 0, "c": 5}
    assert there.folders() == ["files"]
    there.download({tmp_path / "d": "files/c"})
    assert (tmp_path / "d").read_bytes() == b"three"
    there.remove(["files/a", "files/gone", "files/b"])
    assert there.sizes("files") == {"c": 5}


def test_no_more_is_read_than_there_may_be(tmp_path: Path) -> None:
    there = store(tmp_path)
    there.write({"files/a": b"four"})
    assert there.read("files/a", 4) == b"four"
    with pytest.raises(DamageError, match="more than 3 bytes"):
        there.read("files/a", 3)


def test_what_is_missing_and_what_fails_are_two_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = store(tmp_path)
    with pytest.raises(DamageError, match="files/a is missing"):
        there.read("files/a", 1)

    def fails(*_: Any) -> None:
        raise ConnectionResetError("the other end is gone.\nmore")

    monkeypatch.setattr(there._system, "pipe_file", fails)
    with pytest.raises(StorageError, match=r"cannot write memory://.*/trial: the other end is gone$") as error:
        there.try_out()
    assert not isinstance(error.value, DamageError)


def test_a_store_that_forgets_is_no_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = store(tmp_path)
    monkeypatch.setattr(ObjectStore, "read", lambda *_: b"")
    with pytest.raises(StorageError, match="does not return what was written"):
        there.try_out()


def test_a_store_of_many_requests_is_asked_for_many_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, calls = store(tmp_path), list[int]()

    class Many:
        async_impl = True

        def makedirs(self, path: str, exist_ok: bool) -> None: ...

        def put(self, sources: list[str], targets: list[str]) -> None:
            assert len(sources) == len(targets)
            calls.append(len(sources))

        def rm(self, paths: list[str]) -> None:
            calls.append(-len(paths))

    monkeypatch.setattr(there, "_system", Many())
    there.upload({f"files/{k}": tmp_path / str(k) for k in range(1500)})
    there.remove([f"files/{k}" for k in range(1001)])
    assert calls == [1000, 500, -1000, -1]


def test_places_below() -> None:
    assert below("s3://b/x/", "fedavg/seed-0") == "s3://b/x/fedavg/seed-0"
    assert below("s3://b/x", ".") == "s3://b/x"
