"""What the rooms of papers offer, and that they are found."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import call
from fedloom import papers
from fedloom.analyses import ANALYSES
from fedloom.core.errors import SettingError
from fedloom.papers import STUDIES, Study, find

ROOMS = Path(papers.__file__).parent


@pytest.fixture
def _another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A second paper: a folder and a line."""
    room = tmp_path / "another"
    room.mkdir()
    (room / "__init__.py").write_text(ANOTHER)
    monkeypatch.setattr(papers, "STUDIES", (*STUDIES, "another"))
    monkeypatch.setattr(papers, "__path__", [*papers.__path__, str(tmp_path)])
    for cached in (papers._studies, papers._recipes):
        cached.cache_clear()
    yield
    for cached in (papers._studies, papers._recipes):
        cached.cache_clear()
    sys.modules.pop("fedloom.papers.another", None)


ANOTHER = '''
import dataclasses
from fedloom.papers import Study
from fedloom.papers.fedntd import STUDY as FEDNTD

def recipes():
    (first, *_) = FEDNTD.recipes()["fedntd-table1"]
    return {"another-table1": [dataclasses.replace(first, table="another-table1", column="here")]}

def measure(run):
    """What only this paper measures."""

STUDY = Study(tables={"another-table1": "what it is about"}, recipes=recipes, analyses={"another": measure})
'''


@pytest.mark.slow
@pytest.mark.usefixtures("_another")
def test_a_new_paper_is_a_folder_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "reproduce", "--list")
    assert (status, "another-table1" in out, "fedntd-table1" in out) == (0, True, True)
    assert call(capsys, "reproduce", "another-table1", "--list")[1].startswith("columns: here\n")
    assert "What only this paper measures." in call(capsys, "analyse", "--list")[1]
    with pytest.raises(SettingError, match=r"unknown table 'another-table2' \(did you mean 'another-table1'"):
        find("another-table2")


def test_every_folder_is_a_study_with_a_line() -> None:
    assert {*STUDIES, "reproduction"} == {p.name for p in ROOMS.iterdir() if (p / "__init__.py").exists()}


@pytest.mark.slow
def test_no_two_papers_share_a_name() -> None:
    rooms: list[Study] = list(papers._studies())
    for names in (
        [name for room in rooms for name in room.tables],
        [*ANALYSES, *(name for room in rooms for name in room.analyses)],
    ):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {name: set(room.recipes()) for name, room in zip(STUDIES, rooms, strict=True)} == {
        name: set(room.tables) for name, room in zip(STUDIES, rooms, strict=True)
    }


def test_the_registry_is_light() -> None:
    code = "import sys, fedloom.papers; print('torch' in sys.modules, 'fedloom.papers.fedntd' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == (
        "False False\n"
    )


def test_find_takes_names_and_how_they_begin() -> None:
    assert len(find("fedntd-table1", ["cifar10"])) == 8 * 7
    assert [r.row for r in find("fedntd-table1", ["cifar10-s2"], ["fedntd", "fedprox-config"])] == [
        "fedprox-config", "fedntd",
    ]  # fmt: skip
    assert {r.row for r in find("fedntd-table14", (), ["fedntd"])} == {"fedntd"}
    assert len(find("fedntd-table12", ["cifar10-s2"], ["kd_ntd"])) == 7
    assert len(find("fedntd-table8", ["cifar10-s2"], ["fedavg"])) == 5


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("fedntd-table3",), "unknown table 'fedntd-table3' .* there are fedntd-table1, "),
        (("fedntd-table8", ["cifar10-s2-e4"]), "fedntd-table8 has no column 'cifar10-s2-e4' .* it has cifar10-s2-e1, "),
        (("fedntd-table8", [], ["fedntdd"]), r"no method 'fedntdd' \(did you mean 'fedntd'\?\); it has fedavg, "),
    ],
)
def test_unknown_names_are_refused(asked: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        find(*asked)
