"""What people read is written where it was asked to go, whole, and no spreadsheet runs it."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fedloom.core.errors import SettingError, StorageError
from fedloom.storage.output import as_csv, path_below, publish


def test_files_are_written_with_their_folders(tmp_path: Path) -> None:
    assert publish(tmp_path / "a", "b/c.txt", b"1") == tmp_path / "a/b/c.txt"
    publish(tmp_path / "a", "b/c.txt", b"2")
    assert (tmp_path / "a/b/c.txt").read_bytes() == b"2"
    assert [p.name for p in (tmp_path / "a/b").iterdir()] == ["c.txt"]


@pytest.mark.parametrize("link", ["report", "report/figures", "report/figures/x.png", "report/figures/x.png.part"])
@pytest.mark.parametrize("dangling", [False, True])
def test_nothing_is_written_through_a_link(link: str, dangling: bool, tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "file").write_bytes(b"mine")
    (run / link).parent.mkdir(parents=True)
    is_file = link.endswith((".png", ".part"))
    there = outside / "file" if is_file else outside
    (run / link).symlink_to(outside / "new" if dangling else there)
    if link.endswith(".part"):  # the name of the file while it is written
        publish(run, "report/figures/x.png", b"new")
        assert (run / "report/figures/x.png").read_bytes() == b"new"
    else:
        with pytest.raises(SettingError, match=f"{link} is a link, and would be written through: remove it, or name"):
            publish(run, "report/figures/x.png", b"new")
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == {"file": b"mine"}


def test_a_folder_that_a_person_names_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "reports").symlink_to(tmp_path / "disk")
    publish(tmp_path / "reports", "x.csv", b"1")
    assert (tmp_path / "disk/x.csv").read_bytes() == b"1"
    with pytest.raises(SettingError, match="reports is a link"):
        path_below(tmp_path, "reports")


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot write in .*a: .*; name another folder"):
        publish(tmp_path / "a", "b.txt", b"1")


def test_no_text_is_a_formula() -> None:
    rows = [["=cmd|' /C calc'!A0", "+x", "-y", "@SUM(1)", "\t=1", "\r=1", "a=b", ""], [-1.5, "-1.5", "+2", 3, None]]
    found = list(csv.reader(io.StringIO(as_csv(rows), newline="")))
    assert found[0] == ["'=cmd|' /C calc'!A0", "'+x", "'-y", "'@SUM(1)", "'\t=1", "' =1", "a=b", ""]
    assert found[1] == ["-1.5", "-1.5", "+2", "3", ""]
