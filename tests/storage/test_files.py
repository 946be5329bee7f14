"""Files: whole or absent, read with distrust, set aside and never written over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedloom.core.errors import DamageError, StorageError, StorageWarning
from fedloom.storage import files


def test_what_is_missing_or_changed_is_damage(tmp_path: Path) -> None:
    file = files.write(tmp_path, "a", b"one")
    assert files.read(tmp_path, file) == b"one"
    (tmp_path / "a").write_bytes(b"two")
    with pytest.raises(DamageError, match="is not what was written there: 3 bytes"):
        files.read(tmp_path, file)
    (tmp_path / "a").unlink()
    with pytest.raises(DamageError, match="a is missing"):
        files.read(tmp_path, file)
    assert not files.exists(tmp_path / "a")
    assert files.names(tmp_path / "nowhere") == []


def test_what_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a"))

    for name in ("read_bytes", "lstat"):
        monkeypatch.setattr(Path, name, denied)
    monkeypatch.setattr(os, "scandir", denied)
    for ask in (files.load, files.exists, files.names, lambda path: list(files.walk(path))):
        with pytest.raises(StorageError, match=r"cannot read .*a: Permission denied; make it readable") as error:
            ask(tmp_path / "a")
        assert not isinstance(error.value, DamageError)


def test_a_digest_of_parts_is_that_of_the_whole() -> None:
    running = files.RunningDigest(b"ab")
    running.add(b"c")
    assert running.digest == files.digest(b"abc")
    running.add(b"d")
    assert running.digest == files.digest(b"abcd")


def test_what_goes_aside_is_never_written_over(tmp_path: Path) -> None:
    for number in (1, 2):
        aside = files.Quarantine(tmp_path)
        assert not (tmp_path / f"set-aside/{number}").exists()  # made when the first file comes
        (tmp_path / "sub").mkdir(exist_ok=True)
        (tmp_path / "sub/a").write_text(str(number))
        (tmp_path / "b").write_text(str(number))
        aside.move(tmp_path / "sub/a")
        aside.copy(tmp_path / "b")
        assert aside.count == 2
        assert aside.folder == tmp_path / f"set-aside/{number}"
        assert not (tmp_path / "sub/a").exists()
        assert (tmp_path / "b").exists()
    for number in (1, 2):
        for name in ("sub/a", "b"):
            assert (tmp_path / f"set-aside/{number}/{name}").read_text() == str(number)
    with pytest.raises(StorageError, match=r"cannot set .*gone aside in"):
        files.Quarantine(tmp_path).move(tmp_path / "gone")


def test_failures_to_delete_or_rename_are_said(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    with pytest.raises(StorageError, match=r"cannot delete .*full"):
        files.remove(tmp_path / "full")
    with pytest.raises(StorageError, match=r"cannot rename .*gone"):
        files.rename(tmp_path / "gone", tmp_path / "b")
    files.remove(tmp_path / "gone")


def test_a_file_has_the_digest_of_its_bytes_and_what_is_no_file_none(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000  # longer than what is read at once
    (tmp_path / "a").write_bytes(data)
    assert files.digest_of(tmp_path / "a") == files.digest(data)
    os.mkfifo(tmp_path / "pipe")  # reading it would never end
    for name in ("pipe", "nowhere", "."):
        with pytest.raises(DamageError, match="is missing: no such file"):
            files.digest_of(tmp_path / name)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot write in .*a/b: .*; name another folder"):
        files.make(tmp_path / "a/b")
    files.make(tmp_path / "b/c")
    files.make(tmp_path / "b/c")


def test_a_folder_in_the_place_of_a_file_goes_aside(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/mine").write_text("mine")
    (tmp_path / "b").write_text("nobody's")
    aside = files.Quarantine(tmp_path)
    for name in ("a", "b", "nowhere"):
        files.remove_or_move(tmp_path / name, aside)
    with pytest.warns(StorageWarning, match=r"^1 file\(s\) that are odd are now in .*set-aside/1; delete them"):
        aside.say("are odd")
    assert (tmp_path / "set-aside/1/a/mine").read_text() == "mine"
    assert not (tmp_path / "b").exists()
