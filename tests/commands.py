"""Commands as a person types them, and Ctrl-C at a known moment."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from fedloom import History
from fedloom.cli.main import main
from fedloom.coordinator.rounds import OnHistory


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """What a command gives: (exit status, stdout, stderr), without what was printed before."""
    capsys.readouterr()
    status = main(list(argv))
    return status, *capsys.readouterr()


def without_warnings(err: str) -> str:
    """What standard error has besides warnings, and besides the lines that say where codes are explained."""
    besides = ("warning: ", "fedloom explain FL-")
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith(besides))


def error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command that must fail says."""
    status, _, err = call(capsys, *argv)
    assert status == 2
    err = without_warnings(err)
    assert err.startswith("error: ")
    return err.removeprefix("error: ").strip()


def interrupted(*args: Any, **more: Any) -> NoReturn:
    """In place of a function that takes long: Ctrl-C."""
    raise KeyboardInterrupt


def stop_after(round: int) -> OnHistory:
    """An `on_round` that presses Ctrl-C after a round."""

    def on_round(history: History) -> None:
        if history.metrics[-1]["round"] == round:
            raise KeyboardInterrupt

    return on_round
