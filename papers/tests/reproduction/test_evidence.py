"""Numbers of analyses that stand beside runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.coordinator import History
from fedloom.core.errors import SettingError
from fedloom_papers.reproduction.evidence import place, rows_of
from fedloom_papers.reproduction.results import Run


def test_rows_of_a_run(tmp_path: Path) -> None:
    run, path = Run(0, tmp_path, History("FedAvg"), None), tmp_path / place("drops")
    with rows_of(run, "drops") as rows:
        assert rows is None
    path.parent.mkdir()
    path.write_text("a,b\n1,x\n2,y\n")
    with rows_of(run, "drops") as rows:
        assert rows == [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]


def first_of_b(run: Run) -> float:
    with rows_of(run, "drops") as rows:
        assert rows is not None
        return float(rows[0]["b"])


def test_what_a_reader_does_not_find_names_file_and_remedy(tmp_path: Path) -> None:
    run, path = Run(0, tmp_path, History("FedAvg"), None), tmp_path / place("drops")
    path.parent.mkdir()
    for wrong in (b"a\n1\n", b"b\nx\n", b"b\n\xff\n", b""):
        path.write_bytes(wrong)
        with pytest.raises(
            SettingError, match=rf"drops\.csv is not what drops wrote .*analyse {tmp_path} drops writes"
        ):
            first_of_b(run)
