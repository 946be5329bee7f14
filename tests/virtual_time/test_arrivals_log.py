"""The log of arrivals as bytes from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import StorageError
from fedloom.virtual_time.arrivals_log import ArrivalsLog, Moment
from fedloom.virtual_time.unwaited_versions import UnderWay

MODEL = "0123456789abcdef" * 2
LINE = {"version": 0, "model": MODEL, "started": [2, 0], "arrivals": [[2, 0]], "lost": [[0, 0, "lost: gone"]]}


def written(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = ArrivalsLog(tmp_path / "log")
    moment = Moment.read(LINE)
    log.write(moment)
    log.end(1, MODEL)
    log.end(1, MODEL)
    again = ArrivalsLog(tmp_path / "log")
    assert again.moments == {0: moment}
    assert again.ends == {1: MODEL}
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_of_a_version_that_is_begun_anew_the_last_line_counts_and_later_ones_before_it_do_not(tmp_path: Path) -> None:
    second = LINE | {"version": 1, "started": [1], "arrivals": [[1, 1]], "lost": []}
    anew = LINE | {"arrivals": [[0, 0]], "lost": []}
    end = {"version": 2, "model": MODEL}
    log = ArrivalsLog(written(tmp_path / "log", LINE, second, end, anew))
    assert log.moments == {0: Moment.read(anew)}
    assert log.ends == {}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 1}, r"line 1 of .*log does not say who came in a version: version 1 has arrivals, and follows -1"),
        ({"version": True}, r"whole numbers, got True"),
        ({"version": -1}, r"whole numbers, got -1"),
        ({"started": [1.0]}, r"whole numbers, got 1.0"),
        ({"model": "0"}, r"model is a digest of 32 digits, got '0'"),
        ({"model": ["0"] * 32}, r"model is a digest"),
        ({"arrivals": []}, r"version 0 has arrivals"),
        ({"arrivals": [[2]]}, r"line 1"),
        ({"arrivals": 3}, r"line 1"),
        ({"started": [2, 2]}, r"a client starts once from a version, and comes once"),
        ({"arrivals": [[2, 0], [2, 0]]}, r"a client starts once from a version, and comes once"),
    ],
)
def test_what_is_no_log_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=match):
        ArrivalsLog(written(tmp_path / "log", LINE | change))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"arrivals": [[1, 0]]}, r"client 1 comes from version 0, and has not started there"),
        ({"arrivals": [[4, 0]]}, r"client 4 comes from version 0, and has not started there"),
        ({"started": [4]}, r"client 4 starts from version 3 and is under way"),
        ({"started": [1, 2, 3, 5]}, r"4 clients are under way after version 3, in 3 places"),
    ],
)
def test_what_cannot_have_happened_is_refused(change: dict[str, Any], match: str) -> None:
    line = {"version": 3, "model": MODEL, "started": [1], "arrivals": [[4, 2]], "lost": []} | change
    with pytest.raises(ValueError, match=match):
        Moment.read(line).after({4: UnderWay(2, 0.0, 1)}, 3)


def test_who_loses_its_place_may_start_again_and_places_are_given_in_turn() -> None:
    line = {
        "version": 3,
        "model": MODEL,
        "started": [4, 1, 0],
        "arrivals": [[1, 3]],
        "lost": [[4, 2, "a"], [0, 3, "b"]],
    }
    version = Moment.read(line).after({4: UnderWay(2, 0.0, 0), 5: UnderWay(1, 0.0, 1)}, 3)
    assert version.arrivals == {1: UnderWay(3, 0.0)}
    assert version.left == {5: UnderWay(1, 0.0, 1), 4: UnderWay(3, 0.0, 0)}
    assert version.lost == {(4, 2): "a", (0, 3): "b"}


def test_a_log_without_a_file_is_of_this_process() -> None:
    log = ArrivalsLog(None)
    log.write(Moment.read(LINE))
    assert [*log.moments] == [0]
