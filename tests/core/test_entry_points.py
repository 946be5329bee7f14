"""Commands and analyses of other distributions: found where they are installed, and refused in a sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from commands import call, error
from fedloom.analyses import ANALYSES as OWN, every
from fedloom.core.entry_points import ANALYSES, COMMANDS, Offer, offers
from fedloom.core.errors import SettingError

GREETING = '''
"""Commands of a package that fedloom does not know."""
from fedloom import Command

def _flags(parser):
    parser.add_argument("name")
    parser.add_argument("--loud", action="store_true", help="in capitals")

GREET = Command(help="greet somebody", do="greeting.saying:greet", flags=_flags)
'''
SAYING = '''
def greet(args, console):
    """Greet."""
    text = f"hello {args.name}"
    console.print(text.upper() if args.loud else text)
    return 0
'''
MEASURE = '''
def measure(run):
    """Measure nothing."""
'''


def install(folder: Path, package: str, entries: str) -> None:
    """Write what pip writes of a distribution with entry points."""
    declared = folder / f"{package}-1.0.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (declared / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path, with a package of one command and one analysis."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "greeting"
    package.mkdir()
    for name, text in (("__init__", GREETING), ("saying", SAYING), ("nothing", MEASURE)):
        (package / f"{name}.py").write_text(text)
    install(
        tmp_path, "my_greeting",
        "[console_scripts]\ngreet = greeting:main\n\n[fedloom.commands]\n# one\ngreet = greeting:GREET [extra]\n"
        "[fedloom.analyses]\nnothing=greeting.nothing:measure\n",
    )  # fmt: skip
    return tmp_path


@pytest.mark.usefixtures("site")
def test_a_command_of_another_package_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert offers(COMMANDS)["greet"] == Offer("greet", "greeting:GREET", "my-greeting")
    assert call(capsys, "greet", "you")[:2] == (0, "hello you\n")
    assert call(capsys, "greet", "you", "--loud")[:2] == (0, "HELLO YOU\n")
    assert "saying" not in GREETING.partition("GREET")[0]  # what it does is imported when it is called


@pytest.mark.usefixtures("site")
def test_it_stands_in_the_help_and_in_completion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(capsys, "--help")
    assert re.search(r"\n +greet +greet somebody\n", capsys.readouterr().out)
    script = call(capsys, "completion", "bash")[1]
    assert '"greet") words="--help --loud"' in script
    assert " nothing " in re.search(r'"analyse"\) words="([^"]*)"', script)[1]  # type: ignore[index]


@pytest.mark.usefixtures("site")
def test_an_analysis_of_another_package_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert every()["nothing"].__doc__ == "Measure nothing."
    assert list(every())[: len(OWN)] == list(OWN)
    assert "Measure nothing." in call(capsys, "analyse", "--list")[1]


def test_a_name_that_two_packages_offer_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "zz_other", "[fedloom.commands]\ngreet = other:GREET\n")
    said = "'greet' is offered by my-greeting and by zz-other: uninstall one of them"
    assert said in error(capsys, "greet", "you")
    assert call(capsys, "models", "logistic")[0] == 0  # a command of ours asks nobody
    (site / "zz_other-1.0.dist-info" / "entry_points.txt").write_text("[fedloom.commands]\nrun = other:RUN\n")
    with pytest.raises(SettingError, match="'run' is offered by fedloom and by zz-other: uninstall one of them"):
        offers(COMMANDS, {"run"})


def test_what_cannot_be_imported_is_named(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "zz_other", "[fedloom.commands]\nbroken = nowhere:IT\n")
    said = error(capsys, "broken")
    assert "nowhere:IT of zz-other, which is its 'broken', is not (No module named 'nowhere')" in said
    assert "install zz-other anew, or uninstall it" in said
    with pytest.raises(SettingError, match="has no attribute 'gone'"):
        Offer("gone", "fedloom.wording:gone", "x").load()


def test_a_folder_further_up_hides_the_same_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nearer = site / "nearer"
    nearer.mkdir()
    install(nearer, "my_greeting", "[fedloom.commands]\nwelcome = greeting:GREET\n")
    monkeypatch.syspath_prepend(nearer)
    found = offers(COMMANDS)
    assert "welcome" in found
    assert "greet" not in found


def test_it_finds_what_python_finds() -> None:
    for group in (COMMANDS, ANALYSES, "console_scripts"):
        theirs = {(one.name, one.value) for one in entry_points(group=group)}
        ours = offers(group) if group != "console_scripts" else {}
        assert {(one.name, one.value) for one in ours.values()} == (theirs if ours else set())


def test_a_command_of_papers_without_its_package_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedloom.cli.parser.offers", lambda *_: {})
    for name in ("reproduce", "claims", "figures"):
        with pytest.raises(SystemExit) as ended:
            call(capsys, name, "--list")
        assert ended.value.code == 2
        said = f"{name} is a command of fedloom-papers: pip install '<PATH>' brings it, where <PATH> is"
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_commands_of_ours_need_no_look_at_other_packages() -> None:
    code = (
        "import sys, fedloom.core.entry_points as e; from fedloom.cli.main import main\n"
        "e.os.listdir = lambda folder: sys.exit('looked')\n"
        "assert main(['models', 'logistic']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
