"""`fedloom verify`, and `fedloom resume` of what was hardly begun."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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


def test_each_run_has_a_line_and_each_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "two")
    assert main(["compare", "fedavg", "local_only", *QUICK, "--threads", "1", "--out", out]) == 0
    capsys.readouterr()
    assert main(["verify", out]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}/{name}, round 2, 3 checkpoint(s): whole" for name in ("fedavg", "local_only")
    ]
    (tmp_path / "two/fedavg/settings.json").write_text("{}")
    (tmp_path / "two/fedavg/checkpoints/00000001.json").write_text("{}")
    assert main(["verify", out]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}/fedavg, round 2, 2 checkpoint(s): NOT WHOLE"
    assert "settings.json is not what manifest.json has the digest of" in lines[1]
    assert "00000001.json is not a checkpoint of this run" in lines[2]
    assert lines[3].endswith("local_only, round 2, 3 checkpoint(s): whole")
    assert main(["verify", str(tmp_path / "none")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["verify", str(tmp_path / "empty")]) == 2
    assert "there is no run in" in capsys.readouterr().err


def test_nobodys_code_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_verify.py").write_text("from fedloom import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    out = str(tmp_path / "run")
    assert main(["run", "mine_to_verify:Mine", *QUICK, "--out", out]) == 0
    del sys.modules["mine_to_verify"]
    assert main(["verify", out]) == 0
    assert "mine_to_verify" not in sys.modules


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


def test_what_was_killed_before_its_first_record_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 0
    metrics = (out / "metrics.jsonl").read_bytes()
    for path in sorted(out.rglob("*"), reverse=True):
        if path.name not in ("manifest.json", "settings.json", "federation.json"):
            path.rmdir() if path.is_dir() else path.unlink()
    capsys.readouterr()
    assert main(["verify", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: whole; killed before its first checkpoint\n"
    assert main(["run", "fedavg", *QUICK, "--out", str(out)]) == 2  # and says the same
    assert "already holds a run; continue it (resume;" in " ".join(capsys.readouterr().err.split())
    capsys.readouterr()
    assert main(["resume", str(out)]) == 0
    assert "--resume" not in capsys.readouterr().out  # what is resumed is the run that was named
    assert main(["resume", str(out.parent)]) == 0
    assert "starts the others too, with --resume" in capsys.readouterr().out
    assert (out / "metrics.jsonl").read_bytes() == metrics


def test_several_seeds_do_not_go_into_a_run_nor_a_run_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, many = str(tmp_path / "one"), str(tmp_path / "many")
    assert main(["run", "fedavg", *QUICK, "--out", one]) == 0
    assert main(["compare", "fedavg", "fedprox", *QUICK, "--seed", "0,1", "--out", many]) == 0
    for command, said in (
        (["run", "fedavg", "--out", many], "holds several runs (fedavg/seed-0, fedavg/seed-1, fedprox/seed-0, ...)"),
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
