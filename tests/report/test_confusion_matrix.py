"""Confusion matrices beside a run: read back as they were written, or refused with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import SettingError
from fedloom.report.confusion_matrix import read_confusions

HEAD = "true,predicted,count,share_of_true,share_of_predicted,round\n"
ROWS = "a,a,3,,,7\na,b,1,,,7\nb,a,0,,,7\nb,b,5,,,7\n"


def test_matrices_of_the_global_model_and_of_clients_are_read(tmp_path: Path) -> None:
    assert read_confusions(tmp_path) == []
    (tmp_path / "analysis").mkdir()
    for name in ("confusion", "confusion-client-10", "confusion-client-9"):
        (tmp_path / f"analysis/{name}.csv").write_text(HEAD + ROWS)
    found = read_confusions(tmp_path)
    assert [one.client for one in found] == ["", "9", "10"]
    assert found[0].counts.tolist() == [[3, 1], [0, 5]]
    assert (found[0].names, found[0].round) == (["a", "b"], 7)


@pytest.mark.parametrize(
    "text", ["", HEAD, HEAD + ROWS[:18], HEAD + ROWS.replace("3", "x"), HEAD.replace("count", "n") + ROWS]
)
def test_another_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis/confusion.csv").write_text(text)
    with pytest.raises(
        SettingError, match=r"confusion\.csv must be a table that fedloom analyse RUN confusion has written"
    ):
        read_confusions(tmp_path)
