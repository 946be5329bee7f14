"""What a person types is understood without importing what does it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator

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
                yield from functions(inner)


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


def test_every_command_does_something() -> None:
    found = set(functions(parser()))
    assert {"train.compare", "data_sets.show", "demo.run"} <= found
    assert all(callable(cli._load_function(name)) for name in found)


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
        ("report runs --zzz", "fedloom report: error: unrecognized arguments: --zzz\n"),
        (
            "runn fedavg",
            "fedloom: error: argument COMMAND: invalid choice: 'runn' (did you mean 'run'?); there are run, ",
        ),
        ("data shwo", "invalid choice: 'shwo' (did you mean 'show'?); there are show, sources, download\n"),
        (
            "run fedavg --engine staked",
            "--engine: invalid choice: 'staked' (did you mean 'stacked'?); there are auto, ",
        ),
        ("run fedavg fedprox", "arguments: fedprox: fedloom compare trains with several algorithms\n"),
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
    assert capsys.readouterr().err == "interrupted\n"
