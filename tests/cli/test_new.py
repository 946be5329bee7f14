"""Files of one's own run as they are written, and overwrite nothing."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import fedloom as fl
from commands import call, error
from fedloom.cli.parser import parser


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


@pytest.mark.slow
def test_a_new_method_keeps_its_promises_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, "new", "method", "my_pull")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[:3] == ["my_pull.py", "test_my_pull.py", "python test_my_pull.py"]
    assert lines[3] == "fedloom compare fedavg my_pull:MyPull --partition dirichlet:0.1 --out runs/my_pull"
    monkeypatch.syspath_prepend(tmp_path)
    space = runpy.run_path("test_my_pull.py", run_name="__main__")
    assert capsys.readouterr().out == "MyPull keeps its promises\n"
    assert [name for name in space if name.startswith("test_")] == ["test_promises", "test_the_pull_holds_clients_back"]
    small = ["--set", "data.examples=300", "--clients", "5", "--cohort", "2", "--rounds", "1", "--model", "logistic"]
    status, _, err = call(capsys, "run", "my_pull:MyPull", *small, "--threads", "1", "--set", "mu=0.5")
    assert status == 0, err
    assert error(capsys, "new", "method", "my_pull") == (
        "fedloom new overwrites no file, and . has my_pull.py, test_my_pull.py: name the method otherwise"
    )


@pytest.mark.parametrize("words", [["mine"], ["method", "mine"]])
def test_each_printed_command_is_one(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = call(capsys, "new", *words)
    assert status == 0
    commands = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert len(commands) >= 2
    for program, *rest in commands:
        if program == "fedloom":
            parser().parse_args(rest)  # which ends the test where it refuses
        else:
            assert program in ("cd", "python")
            assert all(Path(word).exists() for word in rest)


def test_a_class_keeps_the_name_that_a_person_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "new", "method", "FedMine")[0] == 0
    assert "\nclass FedMine(fl.Algorithm" in Path("fedmine.py").read_text(encoding="utf-8")
    assert "from fedmine import FedMine" in Path("test_fedmine.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method"], "fedloom new method takes the name of the method: fedloom new method mine"),
        (["method", "my-pull"], "such as mine or FedMine, got 'my-pull'"),
        (["method", "class"], "such as mine or FedMine, got 'class'"),
        (["method", "Ditto"], "ditto is an algorithm of fedloom: name yours otherwise, such as my_ditto"),
        (["method", "json"], "json.py would hide the module json of Python: name the method my_json"),
        (["mine", "more"], "got mine more: fedloom new method more"),
    ],
)
def test_names_that_cannot_be_used_are_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error(capsys, "new", *words).endswith(said)
    assert not list(tmp_path.iterdir())
