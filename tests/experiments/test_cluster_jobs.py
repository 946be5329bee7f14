"""Scripts for clusters: what a cell is given, what a cancelled one does, and that the bits are those of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from commands import call, error
from fedloom.core.errors import SettingError
from fedloom.experiments.cluster_jobs import Cell, read_script, run_cells, script_of
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.settings_file import read_settings

Bash = Callable[..., subprocess.Popen[str]]
_STUB = """#!/bin/bash
printf '%s\\0' "$@" >>"{place}/seen"
[ "$3" != fails ] || exit 3
[ "$3" != waits ] || {{ touch "{place}/waiting"; exec sleep 60; }}
"""


@pytest.fixture
def bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bash:
    """Begin a script whose Python writes down what it is given; `scontrol` does too."""
    for name, text in (
        ("python", _STUB.format(place=tmp_path)),
        ("scontrol", f'#!/bin/bash\necho "$@" >"{tmp_path}/asked"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.chdir(tmp_path)

    def begin(cells: Sequence[Cell], text: str = "slurm", **variables: str) -> subprocess.Popen[str]:
        (tmp_path / "job.sh").write_text(script_of(cells, text, str(tmp_path / "runs")))
        place = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
        return subprocess.Popen(
            ["bash", "job.sh"], env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return begin


def seen(folder: Path) -> list[str]:
    """The words that Python was given, those of one cell after those of the one before."""
    return (folder / "seen").read_text().split("\0")[:-1]


def wait_for(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.01)


def test_a_cell_is_given_its_words_as_they_are(bash: Bash, tmp_path: Path) -> None:
    words = ("it's", 'a "b"', "$HOME $(touch hacked) `touch hacked`", "*", "", "two\nlines", "--x=;touch hacked", "%a")
    begun = bash([Cell("a b/it's $(touch hacked)", words)])
    out, err = begun.communicate()
    assert (begun.returncode, err) == (0, "")
    assert seen(tmp_path) == ["-m", "fedloom", *words]
    assert (tmp_path / "runs/cells/a b/it's $(touch hacked).log").exists()
    assert "status 0" in out
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("text", "index", "cells", "status"),
    [
        ("slurm", "", "abcde", 0),
        ("slurm", "3", "d", 0),
        ("slurm:cells=2", "1", "cd", 0),
        ("slurm:cells=2", "2", "e", 0),
        ("slurm:cells=2", "3", "", 1),
    ],
)
def test_the_index_of_the_array_chooses(
    bash: Bash, tmp_path: Path, text: str, index: str, cells: str, status: int
) -> None:
    begun = bash([Cell(name, (name,)) for name in "abcde"], text, SLURM_ARRAY_TASK_ID=index)
    _, err = begun.communicate()
    assert begun.returncode == status
    assert ([w for w in seen(tmp_path) if len(w) == 1] if cells else []) == list(cells)
    assert err == ("" if cells else "there is no cell 6: 0 to 4\n")


def test_a_cell_that_fails_stops_no_other(bash: Bash, tmp_path: Path) -> None:
    begun = bash([Cell("first", ("fails",)), Cell("second", ("goes",))])
    out, _ = begun.communicate()
    assert begun.returncode == 1
    assert seen(tmp_path) == ["-m", "fedloom", "fails", "-m", "fedloom", "goes"]
    assert [line.partition(",")[0] for line in out.splitlines()] == ["first: status 3", "second: status 0"]


@pytest.mark.parametrize(
    ("sent", "restarts", "status", "requeued"),
    [
        (signal.SIGTERM, "0", 143, False),  # Slurm itself queues again what it preempts
        (signal.SIGUSR1, "49", 143, True),
        (signal.SIGUSR1, "50", 1, False),
    ],
)
def test_a_job_whose_time_is_up_is_queued_again(
    bash: Bash, tmp_path: Path, sent: int, restarts: str, status: int, requeued: bool
) -> None:
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_RESTART_COUNT": restarts}
    begun = bash([Cell("a", ("waits",)), Cell("b", ("never",))], "slurm:cells=2", **variables)
    wait_for(tmp_path / "waiting")
    started = time.monotonic()
    begun.send_signal(sent)
    begun.communicate()
    assert time.monotonic() - started < 30  # the cell was ended, not waited for
    assert begun.returncode == status
    assert "never" not in seen(tmp_path)
    assert (tmp_path / "asked").exists() == requeued
    assert not requeued or (tmp_path / "asked").read_text() == "requeue 7_0\n"


def test_what_slurm_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "50% done"
    asked = "slurm:time=1-02:00:00,cpus=2,mem=4G,gpus=a100:1,partition=short,at_once=8,cells=2"
    lines = script_of([Cell(str(k), ("run",)) for k in range(5)], asked, str(out)).splitlines()
    logs = str(out / "cells").replace("%", "%%")
    assert lines[0] == "#!/bin/bash"
    assert [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")] == [
        "job-name=fedloom-50-done", "array=0-2%8", "cpus-per-task=2", "time=1-02:00:00", "mem=4G", "gpus=a100:1",
        "partition=short", "signal=B:USR1@120", "open-mode=append", f"output='{logs}/job-%a.log'", "requeue",
    ]  # fmt: skip
    assert "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pbs:time=1", "a script is written for slurm, got 'pbs:time=1'"),
        ("slurm:tiem=2:00:00", "got 'tiem=2:00:00' (did you mean 'time'?): sbatch takes all others itself"),
        ("slurm:time=two", "got 'time=two': write it as in slurm:time=2:00:00"),
        ("slurm:cpus=0", "got 'cpus=0'"),
        ("slurm:partition=a b", "got 'partition=a b'"),
        ("slurm:time=1,time=2", "got 'time=2'"),
    ],
)
def test_other_words_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError) as raised:
        read_script(text)
    assert message in str(raised.value)


def test_no_name_of_a_folder_ends_a_line_of_the_head(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has a name of printable characters, got"):
        script_of([Cell("a", ("run",))], "slurm", str(tmp_path / "a\ntouch hacked"))
    with pytest.raises(SettingError, match="nothing is left to run: leave --script out"):
        script_of([], "slurm", str(tmp_path))


def test_the_settings_of_a_cell_are_those_of_its_run(tmp_path: Path) -> None:
    one = Experiment.of({"algorithm": "fedntd", "fedntd": {"beta": 0.3}, "local": {"optimiser": "adam", "lr": 0.002}})
    one = one.with_all({"data.clients": 7, "run.mirror": "file:///m/a/seed-1", "run.seed": 1})
    (cell,) = run_cells({"a/seed-1": one}, str(tmp_path), ["tensorboard:boards", "wandb:mine"])
    file = tmp_path / "cells/a/seed-1.json"
    assert Experiment.of(read_settings(file)).described() == one.described()
    assert cell.words == (
        "run", "--settings", str(file), "--out", str(tmp_path / "a/seed-1"), "--resume",
        "--track", "tensorboard:boards/a/seed-1", "--track", "wandb:mine",
    )  # fmt: skip
    for engine in ("gloo", "mpi"):
        with pytest.raises(SettingError, match=f"a command of one process, got engine {engine}: launch each run"):
            run_cells({".": one.changed("run.engine", engine)}, str(tmp_path), [])


# ---- commands

QUICK = ["--model", "logistic", "--clients", "6", "--cohort", "3", "--epochs", "1", "--partition", "iid"]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words for small data of one's own."""
    monkeypatch.chdir(tmp_path)
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    x = (100 * np.eye(3)[y][:, :, None] + rng.integers(0, 99, (120, 3, 3))).astype(np.uint8)
    np.savez("own.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    return [*QUICK, "--threads", "1", "--data", "own.npz"]


def test_scripts_of_what_is_not_known_before_are_refused(own: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", "fedavg", "fedprox", *own, "--val-fraction", "0.2", "--script", "slurm"]
    said = error(capsys, *argv, "--out", "runs", "--tuned", "2")
    assert "--script writes runs that are known before any has ended, and --tuned chooses" in said
    assert "meet in a folder: name it with --out DIR" in error(capsys, *argv)
    assert "a script is written for slurm, got 'sge'" in error(capsys, *argv, "--out", "runs", "--script", "sge")
    pytest.importorskip("optuna")
    argv = ["sweep", "fedavg", *argv[3:], "--out", "s", "--over", "local.lr=log:0.1:1", "--search", "2"]
    assert "a search picks each trial by the results of earlier ones, got search = 2: list the values" in error(
        capsys, *argv
    )


@pytest.mark.slow
def test_a_comparison_is_checked_and_printed_and_not_run(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", "fedavg", "fedprox", *own, "--rounds", "2", "--test-fraction", "0", "--out", "runs"]
    status, out, err = call(capsys, *argv, "--script", "slurm")
    assert (status, out.partition("\n")[0]) == (0, "#!/bin/bash")  # so it can be sent to a file
    assert "local_only is left out" in err
    assert [line.split()[2] for line in out.splitlines() if ") run " in line] == ["fedavg", "fedprox"]
    assert not list(tmp_path.rglob("metrics.jsonl"))
    assert json.loads((tmp_path / "runs/comparison.json").read_text())["methods"] == ["fedavg", "fedprox"]


@pytest.mark.slow
def test_other_settings_than_those_of_the_folder_are_refused(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", "fedavg", *own, "--out", "runs", "--rounds", "1"]
    assert call(capsys, *argv)[0] == 0
    assert call(capsys, *argv, "--script", "slurm")[0] == 0  # goes on with it
    assert "holds a run with other settings or data: " in error(capsys, *argv, "--script", "slurm", "--lr", "0.5")
    argv = ["sweep", "fedavg", *own, "--val-fraction", "0.2", "--out", "s", "--script", "slurm"]
    assert call(capsys, *argv, "--over", "local.lr=0.1,0.2")[0] == 0
    assert call(capsys, *argv, "--over", "local.lr=0.1,0.2")[0] == 0
    assert "s holds another sweep: space.local.lr" in error(capsys, *argv, "--over", "local.lr=0.1,0.3")


def _logs(folder: Path, name: str = "metrics.jsonl") -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob(name))}


@pytest.mark.slow
def test_cancelled_cells_go_on_bit_for_bit_and_the_sweep_reports(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["sweep", "fedntd", *own, "--rounds", "60", "--checkpoint-every", "2", "--val-fraction", "0.2"]
    argv += ["--eval-every", "20", "--over", "local.lr=0.001,0.1"]
    assert call(capsys, *argv, "--out", "once")[0] == 0
    status, script, _ = call(capsys, *argv, "--out", "parts", "--script", "slurm:cells=2")
    assert status == 0
    (tmp_path / "job.sh").write_text(script)
    source = Path(__file__).parents[2] / "src"
    place = {**os.environ, "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}
    place = {name: value for name, value in place.items() if not name.startswith("SLURM_")}
    last = tmp_path / "parts/trial-001/seed-0/checkpoints"
    for how, path in ((signal.SIGTERM, tmp_path / "parts/trial-000/seed-0/checkpoints"), (signal.SIGKILL, last)):
        begun = subprocess.Popen(["bash", "job.sh"], env=place, stdout=subprocess.DEVNULL, start_new_session=True)
        while not list(path.glob("*[1-9]*.json")):
            assert begun.poll() is None
            time.sleep(0.01)
        if how == signal.SIGTERM:
            begun.send_signal(how)  # to the script alone, which ends its cell
            assert begun.wait() == 143
        else:
            os.killpg(begun.pid, how)
            begun.wait()
    done = _logs(tmp_path / "parts/trial-000", "timing.jsonl")
    assert 0 < _logs(tmp_path / "parts")["trial-001/seed-0/metrics.jsonl"].count(b"\n") < 61
    assert subprocess.run(["bash", "job.sh"], env=place, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert _logs(tmp_path / "parts/trial-000", "timing.jsonl") == done  # not run again
    before = _logs(tmp_path / "parts", "timing.jsonl")
    status, out, _ = call(capsys, *argv, "--out", "parts", "--resume")
    assert (status, out.splitlines()[-1].startswith("once more: ")) == (0, True)
    assert _logs(tmp_path / "parts", "timing.jsonl") == before  # nothing was run to report
    assert _logs(tmp_path / "parts") == _logs(tmp_path / "once")
    assert _logs(tmp_path / "parts", "*.csv") == _logs(tmp_path / "once", "*.csv")
