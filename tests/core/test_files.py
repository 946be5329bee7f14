"""Files: whole or absent, read with distrust, set aside and never written over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedloom.core import files
from fedloom.core.errors import DamageError, StorageError


def test_what_is_missing_or_changed_is_damage(tmp_path: Path) -> None:
    file = files.write(tmp_path, "a", b"one")
    assert files.read(tmp_path, file) == b"one"
    (tmp_path / "a").write_bytes(b"two")
    with pytest.raises(DamageError, match="is not what was written there: 3 bytes"):
        files.read(tmp_path, file)
    (tmp_path / "a").unlink()
    with pytest.raises(DamageError, match="a is missing"):
        files.read(tmp_path, file)
    assert not files.there(tmp_path / "a")
    assert files.names(tmp_path / "nowhere") == []


def test_what_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a"))

    for name in ("read_bytes", "lstat"):
        monkeypatch.setattr(Path, name, denied)
    monkeypatch.setattr(os, "scandir", denied)
    for ask in (files.load, files.there, files.names, lambda path: list(files.walk(path))):
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
        aside = files.Aside(tmp_path)
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
        files.Aside(tmp_path).move(tmp_path / "gone")


def test_failures_to_delete_or_rename_are_said(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("x")
    with pytest.raises(StorageError, match=r"cannot delete .*full"):
        files.remove(tmp_path / "full")
    with pytest.raises(StorageError, match=r"cannot rename .*gone"):
        files.rename(tmp_path / "gone", tmp_path / "b")
    files.remove(tmp_path / "gone")
