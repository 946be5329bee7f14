"""A state folder is of one process: a second `fedloom join` is refused before it connects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.cli.main import main
from fedloom.core.errors import SettingError
from fedloom.deploy.device.join import held


def test_a_second_process_with_one_state_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notices a folder that is not held, one that stays held, and one that is held after the device has connected."""
    transport = SimpleNamespace(named_by_keys=False, check=lambda place: None, join=lambda place, new_member: False)
    monkeypatch.setattr("fedloom.deploy.device.join.transport_named", lambda name: transport)
    np.savez(tmp_path / "mine.npz", x=np.zeros((8, 4), np.float32), y=np.arange(8) % 2)
    words = ["join", "--data", f"{tmp_path}/mine.npz", "--state", f"{tmp_path}/state"]
    with held(tmp_path / "state"), held(tmp_path / "other"):
        assert main(words) == 2  # which would be 0
        said = " ".join(capsys.readouterr().err.split())
        assert "another fedloom join runs with" in said
        assert "--state of its own" in said
        with pytest.raises(SettingError, match="of one device"), held(tmp_path / "state"):
            pass
    assert main(words) == 0
