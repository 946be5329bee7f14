"""`fedloom explain CODE`, and the line that names it below a message."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import call, error
from fedloom.cli.argument_parser import way_on
from fedloom.cli.explain import explanations


def test_a_code_is_explained_as_it_may_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    for code in ("FL-DATA-014", "fl-data-014", "[FL-DATA-014]"):
        status, out, err = call(capsys, "explain", code)
        assert (status, err) == (0, "")
        assert out == explanations()["FL-DATA-014"] + "\n"
    for part in ("FL-DATA-014: A fraction in percent\n", "got …", "\nWhy: ", "\nMend: ", "\nFails, ", "\nPasses:\n"):
        assert part in out


def test_without_a_code_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "explain")[1].splitlines()
    assert [line.partition(":")[0] for line in lines] == [*explanations()]
    assert len(lines) >= 70


def test_a_code_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "got 'FL-DATA-14' (did you mean 'FL-DATA-014'?): copy it from" in error(capsys, "explain", "FL-DATA-14")


def test_the_line_below_a_message_names_the_last_code() -> None:
    assert way_on("a [FL-DATA-001]; b [FL-RUN-002] (mine.py, line 3, in loss)") == "fedloom explain FL-RUN-002"
    assert way_on("a [FL-DATA-1], [x], FL-DATA-001") == ""


def test_warnings_and_errors_name_it_and_others_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("a,b,kind\n" + "0.1,90000,u\n0.9,10,v\n" * 8)
    (tmp_path / "s.toml").write_text('model = "logistic"\n[data]\npartition = "iid"\nclients = 2\n')
    run = ["--settings", str(tmp_path / "s.toml"), "--data", f"{tmp_path / 't.csv'}?label=kind", "--rounds", "1"]
    status, _, err = call(capsys, "run", "fedavg", *run, "--cohort", "2")
    assert status == 0
    assert "[FL-DATA-016]\nfedloom explain FL-DATA-016 tells more\n" in err
    status, _, err = call(capsys, "run", "fedavg", *run, "--cohort", "3")
    assert status == 2
    assert err.endswith("[FL-RUN-002]\nfedloom explain FL-RUN-002 tells more\n")
    said = "error: no algorithm is all of that: leave a flag out\n"  # which has no code
    assert call(capsys, "algorithms", "--global", "--one-shot", "--needs", "validation")[2] == said
