"""What a person types is understood without importing what does it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import interrupted
from fedloom.cli import main as cli
from fedloom.cli.parser import parser

HEAVY = {"torch", "numpy", "safetensors", "pandas", "matplotlib", "scipy", "sklearn", "PIL"}


def functions(of: argparse.ArgumentParser) -> Iterator[str]:
    """What every command does, also those below `data`."""
    if do := of.get_default("do"):
        yield do
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from functions(inner.filled())


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("", 2),
        ("--help", 0),
        ("--version", 0),
        ("algorithms", 0),
        ("claims dense", 0),
        ("report --help", 0),
        ("serve --help", 0),
        ("run --help", 0),
        ("sweep --help", 0),
        ("run fedavg --roundss 3", 2),
    ],
)
def test_what_needs_no_run_does_not_wait_for_pytorch(command: str, status: int) -> None:
    run = [sys.executable, "-X", "importtime", "-m", "fedloom", *command.split()]
    done = subprocess.run(run, capture_output=True, text=True)
    imported = set(re.findall(r"^import time:.*\| +(\w+)$", done.stderr, re.MULTILINE))
    assert done.returncode == status
    assert "argparse" in imported  # else the list was not read
    assert not imported & HEAVY
    assert "--help" not in command or "rich" not in imported  # which takes as long as all the rest


def test_every_command_does_something() -> None:
    found = set(functions(parser()))
    assert {"fedloom.cli.train:compare", "fedloom.cli.data_sets:show", "fedloom.report.printed_results:report"} <= found
    assert all(callable(cli._load_function(name)) for name in found)


def places(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Options and arguments of every command that name a folder or a file of this machine."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from places(inner.filled())
        elif action.metavar in {"DIR", "FILE", "FOLDER", "FILE.csv", "directory"} or action.dest in {
            "directory", "directories", "folder", "file", "out", "state", "certs",
        }:  # fmt: skip
            yield f"{of.prog} {action.dest}", action


def test_folders_and_files_are_places_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    elsewhere = ("predict data", "evaluate data", " start")  # sources and settings, which the job reads
    found = [one for one in places(parser()) if not one[0].endswith(elsewhere)]
    for name, action in found:
        assert callable(action.type), name
        with pytest.raises(argparse.ArgumentTypeError, match=r"is not a .* here: .* got the address 's3://bucket/x'"):
            action.type("s3://bucket/x")
        assert action.type("~/x") == str(tmp_path / "x"), name
        with pytest.raises(argparse.ArgumentTypeError, match="is empty; name a "):
            action.type("")
    assert len(found) > 40
    assert {"fedloom run out", "fedloom run settings", "fedloom join state", "fedloom export file"} <= {
        n for n, _ in found
    }


def test_an_address_as_a_folder_is_an_error_of_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "fedavg", "--out", "s3://bucket/run"])
    assert (ended.value.code, list(tmp_path.iterdir())) == (2, [])
    assert "argument --out: is not a directory here: a folder or a file is a path on" in capsys.readouterr().err
    assert cli.main(["data", "show", "--data", "s3://bucket/t.csv?label=y"]) == 2
    assert "got the address 's3://bucket/t.csv': name a local one" in " ".join(capsys.readouterr().err.split())


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert capsys.readouterr().out == parser().format_help()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "run fedavg --roundss 3",
            "fedloom run: error: unrecognized arguments: --roundss 3 (did you mean '--rounds'?)",
        ),
        ("compare fedavg --partitoin=iid", "unrecognized arguments: --partitoin=iid (did you mean '--partition'?)"),
        ("data show --client-count 3", "fedloom data show: error: unrecognized arguments: --client-count 3"),
        ("demo --ssed 1", "fedloom demo: error: unrecognized arguments: --ssed 1 (did you mean '--seed'?)"),
        ("report runs --zzz", "fedloom report: error: unrecognized arguments: --zzz [FL-CLI-002]\n"),
        (
            "runn fedavg",
            "fedloom: error: argument COMMAND: invalid choice: 'runn' (did you mean 'run'?); there are run, ",
        ),
        (
            "data shwo",
            "invalid choice: 'shwo' (did you mean 'show'?); there are show, sources, download [FL-CLI-001]\n",
        ),
        (
            "run fedavg --engine staked",
            "--engine: invalid choice: 'staked' (did you mean 'stacked'?); there are auto, ",
        ),
        (
            "run fedavg -gr 50 -did 0",
            "arguments: -gr 50 -did 0: coming from PFLlib? docs/coming-from.md has its flags [FL-CLI-002]\n",
        ),
        ("run fedavg fedprox", "arguments: fedprox: fedloom compare trains with several algorithms [FL-CLI-002]\n"),
    ],
)
def test_a_misspelt_flag_is_told_which_was_meant(argv: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv.split())
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_interrupt_while_importing_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "import_module", interrupted)
    assert cli.main(["run", "fedavg"]) == 130
    assert capsys.readouterr().err == "interrupted; nothing is kept, since no folder was named (--out DIR)\n"
