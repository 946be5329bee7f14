"""What people get wrong first, and what they are told: the rule, the value, the remedy, and the code of a page.

The mistakes stand in `tests/mistakes`, by code. Of each, what fails must fail with this code, and what passes must pass
without.
"""

from __future__ import annotations

import runpy
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedloom.algorithms import ALGORITHMS
from fedloom.cli.main import main
from fedloom.core.errors import FedloomError, SettingError
from fedloom.experiments import catalogue

MADE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "scripts/make_errors.py"))
ENTRIES = MADE["entries"]()
EXAMPLES = {f"{code}: {one['mistake']}": (code, one) for code, entry in ENTRIES.items() for one in entry["examples"]}
COMMANDS = [name for name, (_, one) in EXAMPLES.items() if MADE["is_command"](one["fails"])]
PYTHON = [name for name in EXAMPLES if name not in COMMANDS]


def told(one: dict[str, str], code: str, said: str) -> None:
    for part in (one["rule"], one["value"], one["remedy"], f"[{code}]"):
        assert part in said, (part, said)


def run(code: str, source: str) -> list[str]:
    """Run an example after what it begins with; return what is warned of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        whole = f"{MADE['beginning'](ENTRIES[code])}\n{source}"
        exec(compile(whole, code, "exec", dont_inherit=True), {"__name__": "example"})
    return [str(one.message) for one in found if issubclass(one.category, UserWarning)]


@pytest.mark.parametrize("name", PYTHON)
def test_in_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, one = EXAMPLES[name]
    monkeypatch.chdir(tmp_path)
    if ENTRIES[code].get("warns"):
        told(one, code, " ".join(run(code, one["fails"])))
    else:
        with pytest.raises((FedloomError, ValueError)) as error:
            run(code, one["fails"])
        told(one, code, str(error.value))
        assert "\n" not in str(error.value)
    assert f"[{code}]" not in " ".join(run(code, one["passes"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mistakes")


@pytest.fixture
def beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run."""
    monkeypatch.chdir(folder)
    return folder


def make(*sides: str) -> None:
    """Make the files and folders that commands name, as the pages show them."""
    for name in MADE["needed"](*sides):
        ((how, content),) = MADE["places"]()[name].items()
        if Path(name).exists():
            continue
        if how == "text":
            Path(name).write_text(content.lstrip("\n"), encoding="utf-8")
        elif how == "python":
            exec(compile(content, name, "exec", dont_inherit=True), {"__name__": "example"})
        else:
            assert typed(content) == 0


def typed(command: str) -> Any:
    """The exit status of a command as it is typed."""
    try:
        return main(shlex.split(command)[1:])
    except SystemExit as end:
        return end.code


@pytest.mark.some(12)
@pytest.mark.parametrize("name", COMMANDS)
def test_on_the_command_line(name: str, beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, one = EXAMPLES[name]
    make(one["fails"], one["passes"])
    capsys.readouterr()
    assert typed(one["fails"]) == 2
    out, err = capsys.readouterr()
    told(one, code, err)
    assert "Traceback" not in out + err
    first, second = err.splitlines()
    assert code in first
    assert f"fedloom explain {code}" in second
    assert typed(one["passes"]) == 0, capsys.readouterr().err
    assert f"[{code}]" not in capsys.readouterr().err


def test_there_are_many() -> None:
    assert len(EXAMPLES) >= 80


def test_what_is_built_in_is_not_said_to_be_missing() -> None:
    for name, kind in ALGORITHMS.items():
        for typed in (kind.__name__, name.replace("_", "-")):
            if typed not in ALGORITHMS:
                with pytest.raises(SettingError, match=f"did you mean '{name}'"):
                    catalogue.kind(typed)
