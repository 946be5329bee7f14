"""Several commands of Flower in one process."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fedloom.deploy.flower.flower_commands import END, main


def test_each_command_has_its_own_words_and_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []
    app = ModuleType("flwr.cli.app")
    app.app = lambda words, standalone_mode: seen.append([*words])  # type: ignore[attr-defined]
    for name in ("flwr", "flwr.cli"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "flwr.cli.app", app)
    main(["run", "a", END, "ls"])
    assert seen == [["run", "a"], ["ls"]]
    assert capsys.readouterr().out == f"{END}\n{END}\n"
