"""What the rooms of papers offer, and that they are found."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedloom_papers as papers
from commands import call
from fedloom import __version__
from fedloom.analyses import ANALYSES, every
from fedloom.core.errors import SettingError
from fedloom_papers import STUDIES, Study, find

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
    sys.modules.pop("fedloom_papers.another", None)


ANOTHER = """
import dataclasses
from fedloom_papers import Study
from fedloom_papers.fedntd import STUDY as FEDNTD

def recipes():
    (first, *_) = FEDNTD.recipes()["fedntd-table1"]
    return {"another-table1": [dataclasses.replace(first, table="another-table1", column="here")]}

STUDY = Study(tables={"another-table1": "what it is about"}, recipes=recipes)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("_another")
def test_a_new_paper_is_a_folder_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "reproduce", "--list")
    assert (status, "another-table1" in out, "fedntd-table1" in out) == (0, True, True)
    assert call(capsys, "reproduce", "another-table1", "--list")[1].startswith("columns: here\n")
    with pytest.raises(SettingError, match=r"unknown table 'another-table2' \(did you mean 'another-table1'"):
        find("another-table2")


def test_a_table_and_a_title_are_of_their_own_study() -> None:
    titles = dict(zip(STUDIES, ("FedNTD", "pFedSD", "DENSE", "APFL", "KT-pFL"), strict=True))
    assert all(papers.title(source).startswith(name) for source, name in titles.items())
    for table in papers.tables():
        assert papers.study(table).title == papers.title(table.partition("-")[0])


def test_every_folder_is_a_study_with_a_line() -> None:
    assert {*STUDIES, "commands", "reproduction"} == {p.name for p in ROOMS.iterdir() if (p / "__init__.py").exists()}


@pytest.mark.slow
def test_no_two_papers_share_a_name() -> None:
    rooms: list[Study] = list(papers._studies())
    names = [name for room in rooms for name in room.tables]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {name: set(room.recipes()) for name, room in zip(STUDIES, rooms, strict=True)} == {
        name: set(room.tables) for name, room in zip(STUDIES, rooms, strict=True)
    }


def test_analyses_of_papers_are_offered_by_the_names_of_their_modules() -> None:
    own = {name: measure.__module__ for name, measure in every().items() if name not in ANALYSES}
    assert len(own) == 10
    assert {name: module.rpartition(".")[2].replace("_", "-") for name, module in own.items()} == {n: n for n in own}
    assert {module.split(".")[0] for module in own.values()} == {"fedloom_papers"}


def test_it_has_the_version_of_the_library_and_needs_that_one() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert papers.__version__ == __version__
    assert f"fedloom=={__version__}" in project["dependencies"]
    assert project["optional-dependencies"]["figures"][0] == f"fedloom[analysis]=={__version__}"


def test_the_registry_is_light() -> None:
    code = "import sys, fedloom_papers.commands; print('torch' in sys.modules, 'fedloom_papers.fedntd' in sys.modules)"
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
