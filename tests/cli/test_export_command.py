"""`fedloom export`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.cli import main as cli


@pytest.mark.slow
def test_a_file_that_is_there_is_replaced_where_the_message_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(tmp_path / "run"), tmp_path / "model.pt"
    argv = ["run", "fedavg", "--model", "logistic", "--rounds", "1", "--cohort", "2", "--epochs", "1", "--out", run]
    assert cli.main([*argv, "--threads", "1"]) == 0
    file.write_bytes(b"something else")
    assert cli.main(["export", run, str(file)]) == 2
    assert "model.pt exists; choose another name, or replace a file with overwrite=True (--overwrite)" in (
        capsys.readouterr().err
    )
    assert file.read_bytes() == b"something else"
    assert cli.main(["export", run, str(file), "--overwrite"]) == 0
    assert file.read_bytes() != b"something else"
