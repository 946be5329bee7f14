"""`fedloom verify`, and `fedloom resume` of what was hardly begun."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedloom import models
from fedloom.cli.main import main

QUICK = [
    "--rounds",
    "2",
    "--clients",
    "5",
    "--cohort",
    "2",
    "--set",
    "local.steps=1",
    "--model",
    "logistic",
    "--engine",
    "loop",
]


@pytest.mark.slow
def test_each_run_has_a_line_and_each_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "two")
    assert main(["compare", "fedavg", "local_only", *QUICK, "--threads", "1", "--out", out]) == 0
    capsys.readouterr()
    assert main(["verify", out]) == 0
    *lines, root = capsys.readouterr().out.splitlines()
    assert lines == [f"{out}/{name}, round 2, 3 checkpoint(s): whole" for name in ("fedavg", "local_only")]
    assert re.fullmatch("root: [0-9a-f]{32}", root)
    assert main(["verify", out, "--expect", root.removeprefix("root: ")]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines, root]
    assert main(["verify", f"{out}/fedavg", "--expect", root.removeprefix("root: ")]) == 1
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith(f"NOT THE EXPECTED ROOT {root.removeprefix('root: ')}: the")
    )
    assert main(["verify", out, "--expect", "1234"]) == 2
    assert "--expect takes a root as fedloom verify prints it" in capsys.readouterr().err
    (tmp_path / "two/fedavg/settings.json").write_text("{}")
    (tmp_path / "two/fedavg/checkpoints/00000001.json").write_text("{}")
    assert main(["verify", out]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}/fedavg, round 2, 2 checkpoint(s): NOT WHOLE"
    assert "settings.json is not what manifest.json has the digest of" in lines[1]
    assert "00000001.json is not a checkpoint of this run" in lines[2]
    assert lines[3].endswith("local_only, round 2, 3 checkpoint(s): whole")
    assert len(lines) == 4  # there is no root
    assert main(["verify", out, "--expect", root.removeprefix("root: ")]) == 1
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "none")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["verify", str(tmp_path / "empty")]) == 2
    assert "there is no run in" in capsys.readouterr().err


def test_names_of_folders_do_nothing_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor make a line of their own, by which one could be forged; in errors neither."""
    odd = tmp_path / "runs" / "\x1b]0;mine\x07\x9b31m\nwhole"
    odd.mkdir(parents=True)
    (odd / "metrics.jsonl").write_text('{"round": 0}\n')
    assert main(["verify", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().out
    assert "]0;mine" in said
    assert all(c.isprintable() or c == "\n" for c in said)
    assert not any(line.startswith("whole") for line in said.splitlines())
    (odd / "metrics.jsonl").write_text("{")
    for command in (["report", str(odd)], ["resume", str(odd)], ["export", str(odd), "m.pt"]):
        assert main(command) == 2
        said = "".join(capsys.readouterr())
        assert "]0;mine" in said, command
        assert all(c.isprintable() or c == "\n" for c in said), command


@pytest.mark.slow
def test_weights_to_start_from_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another file between a run and its resume gave other numbers, and verify called the directory whole."""
    start, out = tmp_path / "start.safetensors", tmp_path / "run"
    for seed in (0, 7):
        torch.manual_seed(seed)
        save_file(models.build("logistic", (1, 28, 28), 10).state_dict(), tmp_path / f"{seed}.safetensors")
    shutil.copy(tmp_path / "0.safetensors", start)
    asked = [*QUICK, "--start", str(start), "--threads", "1"]
    assert main(["run", "local_only", *asked, "--out", str(out)]) == 0
    assert main(["resume", str(out), "--rounds", "3"]) == 0
    shutil.copy(tmp_path / "7.safetensors", start)
    for command in (["resume", str(out), "--rounds", "4"], ["replay", str(out), "1"]):
        capsys.readouterr()
        assert main(command) == 2
        said = " ".join("".join(capsys.readouterr()).split())
        assert "began with other weights of logistic: their digest was" in said
        assert f"Start from what it began with ({start} as it was)" in said
    assert main(["verify", str(out)]) == 1
    assert f"{start} is not the file of weights that the run started from" in capsys.readouterr().out


@pytest.mark.slow
def test_nobodys_code_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_verify.py").write_text("from fedloom import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = str(tmp_path / "run")
    assert main(["run", "mine_to_verify:Mine", *QUICK, "--out", out]) == 0
    del sys.modules["mine_to_verify"]
    assert main(["verify", out]) == 0
    assert "mine_to_verify" not in sys.modules


@pytest.mark.slow
def test_a_changed_settings_file_is_refused_before_it_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 0
    text = (out / "settings.json").read_text()
    (out / "settings.json").write_text(text.replace('"cohort_size": 2', '"cohort_size": 9'))
    for command in (["resume", str(out)], ["replay", str(out), "1"], ["export", str(out), str(tmp_path / "m.pt")]):
        assert main(command) == 2
        assert "settings.json is not what manifest.json has the digest of" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_run_of_another_format_is_refused_by_every_command_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 0
    text = (out / "manifest.json").read_text()
    (out / "manifest.json").write_text(text.replace('"format": 2', '"format": 1'))
    (out / "settings.json").write_text("{}")  # as the format of that time had it
    message = f"{out} holds a run of format 1, and format 2 is read: run it again; its metrics.jsonl is plain text"
    for command in (
        ["resume", str(out)],
        ["replay", str(out), "1"],
        ["branch", str(out), "--at", "1", "--out", str(tmp_path / "branch")],
        ["export", str(out), str(tmp_path / "model.pt")],
        ["analyse", str(out), "forgetting"],
        ["report", str(out)],
        ["summary", str(out)],
        ["run", "fedavg", *QUICK, "--out", str(out), "--resume"],
    ):
        capsys.readouterr()
        assert main(command) == 2, command
        assert message in " ".join(capsys.readouterr().err.split()), command
    assert main(["verify", str(out)]) == 1
    assert capsys.readouterr().out == f"{out}: NOT WHOLE\n  {message}\n"


@pytest.mark.slow
def test_what_was_killed_before_its_first_record_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 0
    metrics = (out / "metrics.jsonl").read_bytes()
    for path in sorted(out.rglob("*"), reverse=True):
        if path.name not in ("manifest.json", "settings.json", "federation.json"):
            path.rmdir() if path.is_dir() else path.unlink()
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{out}: whole; killed before its first checkpoint"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 2  # and says the same
    assert "already holds a run; continue it (resume;" in " ".join(capsys.readouterr().err.split())
    capsys.readouterr()
    assert main(["resume", str(out)]) == 0
    assert "--resume" not in capsys.readouterr().out  # what is resumed is the run that was named
    assert main(["resume", str(out.parent)]) == 0
    assert "if others had not, repeat their command with --resume" in capsys.readouterr().out
    assert (out / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.slow
def test_several_seeds_do_not_go_into_a_run_nor_a_run_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, many = str(tmp_path / "one"), str(tmp_path / "many")
    assert main(["run", "fedavg", *QUICK, "--out", one]) == 0
    assert main(["compare", "fedavg", "fedprox", *QUICK, "--seed", "0,1", "--out", many]) == 0
    for command, said in (
        (
            ["run", "fedavg", "--out", many],
            "holds several runs (fedavg/seed-0, fedavg/seed-1, fedprox/seed-0 and 3 more)",
        ),
        (["run", "fedavg", "--seed", "0,1", "--out", one], "is inside of a run"),
        (["compare", "fedavg", "fedprox", "--out", one], "is inside of a run"),
        (["run", "fedavg", "--out", f"{many}/fedavg"], "holds several runs (seed-0, seed-1)"),
    ):
        for more in ([], ["--resume"]):
            capsys.readouterr()
            assert main([*command, *QUICK, *more]) == 2, command
            assert said in " ".join(capsys.readouterr().err.split())


def test_no_memory_is_an_error_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def greedy(*_: object) -> None:
        raise MemoryError("Unable to allocate 7.45 GiB for an array")

    monkeypatch.setattr("fedloom.experiments.catalogue.data", greedy)
    assert main(["run", "fedavg", *QUICK]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "not enough memory (Unable to allocate 7.45 GiB for an array): lower panel" in said
