"""Files of one's own run as they are written, and overwrite nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedloom as fl
from commands import call, error


@pytest.mark.slow
def test_what_new_writes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    status, out, _ = call(capsys, "new", str(folder))
    assert status == 0
    names = {"my_data.py", "my_model.py", "settings.toml", "settings.schema.json"}
    assert {path.name for path in folder.iterdir()} == names
    lines = [line.split() for line in out.splitlines() if line.startswith("  fedloom")]
    assert [words[1] for words in lines] == ["run", "compare", "report"]
    monkeypatch.chdir(folder)
    assert call(capsys, *lines[0][1:], "--rounds", "3", "--threads", "1")[0] == 0
    history = fl.History.read("runs/first")
    assert history.federation["class_names"] == ["no", "yes"]
    assert history.metrics[-1]["round"] == 3
    said = error(capsys, "new", str(folder))
    assert said.startswith("fedloom new overwrites no file, and ")
    assert said.endswith("has my_data.py, my_model.py, settings.toml, settings.schema.json: name another directory")
