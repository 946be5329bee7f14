"""`fedloom analyse`, as a person uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from commands import call
from fedloom import analyses
from fedloom.analyses import analyse_run
from fedloom.analyses.analysis_result import AnalysisResult, summary_table
from fedloom.cli.main import main
from fedloom.display.terminal import Terminal


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("analyse")
    rng, y = np.random.default_rng(0), np.arange(120) % 3
    x = (rng.normal(size=(3, 6))[y] + rng.normal(size=(120, 6))).astype(np.float32)
    np.savez(folder / "own.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    common = ["--clients", "6", "--cohort", "3", "--rounds", "3", "--epochs", "2", "--partition", "shards:2"]
    argv = ["run", "fedavg", "--data", str(folder / "own.npz"), "--model", "mlp", *common, "--out", str(folder / "run")]
    assert main(argv) == 0
    return folder / "run"


pytestmark = pytest.mark.usefixtures("_eighty_columns")


def test_the_list_names_all_and_what_they_measure(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "analyse", "--list")
    assert status == 0
    assert set(analyses.every()) <= {line.split()[0] for line in out.splitlines() if line.strip()}
    assert "Hessian eigenvectors" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_a_table_is_shown_and_files_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out_folder = tmp_path / "found"
    argv = ["consistency", "local-accuracy", "--rounds", "1,3", "--out", str(out_folder)]
    status, out, err = call(capsys, "analyse", str(run), *argv)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.strip()[:1] in ("1", "3")][-2:] == ["1", "3"]
    assert max(len(line) for line in lines if not line.startswith("files:")) <= 80
    assert (
        f"files: {out_folder / 'local-accuracy.png'}, local-accuracy.svg, local-accuracy.pdf, local-accuracy.csv" in out
    )
    found = (out_folder / "consistency.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in found] == ["round", "3"]  # round 1 has none before it


def test_a_table_shows_its_first_rows_and_says_how_many_more_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    for count, told in ((12, False), (13, True)):
        made = AnalysisResult(None, summary_table("T", {"n": None}, [[100 + i] for i in range(count)]), [])  # type: ignore[arg-type]
        analyse_run._show(made, [Path("t.png"), Path("t.csv")], Terminal())
        out = capsys.readouterr().out
        assert ("1 more rows are in the CSV file" in out) is ("more rows" in out) is told
        assert [str(n) in out for n in (111, 112)] == [True, False]


def test_which_rounds_are_asked_for() -> None:
    asked = [(None, None), (2, None), (None, "all"), (None, "1,3")]
    found = [analyse_run._rounds(argparse.Namespace(round=one, rounds=several)) for one, several in asked]
    assert found == [None, [2], [], [1, 3]]


@pytest.mark.slow
def test_by_default_files_go_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "analyse", str(run), "weight-divergence", "--round", "2")[0] == 0
    lines = (run / "analysis" / "weight-divergence.csv").read_text(encoding="utf-8").splitlines()
    assert {line.split(",")[0] for line in lines[1:]} == {"2"}


@pytest.mark.slow
def test_a_round_cuts_what_was_logged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "analyse", str(run), "forgetting", "--round", "2", "--out", str(tmp_path))
    assert status == 0
    assert "Forgetting after round 2" in out
    found = (tmp_path / "forgetting.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in found[1:]] == ["1", "2"]


@pytest.mark.parametrize(("argv", "named"), [(("",), "directory"), (("RUN", "forgetting", "--out", ""), "--out")])
def test_empty_folders_are_refused(
    argv: tuple[str, ...], named: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable of the shell that is not set."""
    with pytest.raises(SystemExit) as stopped:
        call(capsys, "analyse", *(str(run) if part == "RUN" else part for part in argv))
    assert stopped.value.code == 2
    assert f"argument {named}: is empty; name a directory" in capsys.readouterr().err


@pytest.mark.slow
def test_all_says_what_does_not_apply(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "analyse", str(run), "all", "--round", "2", "--out", str(tmp_path))
    assert status == 0
    told = " ".join(out.split())
    assert "not measured: hypersphere: the circle needs features of 2 units" in told
    assert "not measured: recovery: FedAvg evaluates clients by the global model" in told
    assert {path.stem for path in tmp_path.glob("*.png")} == set(analyses.every()) - {
        "audit",
        "coefficients",
        "distillation",
        "hypersphere",
        "recovery",
        "synthetic-images",
    }


@pytest.mark.slow
def test_a_branch_is_analysed_from_where_it_begins(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rounds before it are those of another run."""
    branch = tmp_path / "branch"
    assert call(capsys, "branch", str(run), "--at", "2", "--out", str(branch), "--rounds", "5")[0] == 0
    status, out, _ = call(capsys, "analyse", str(branch), "weight-divergence", "--out", str(tmp_path / "files"))
    assert status == 0, out
    rows = (tmp_path / "files/weight-divergence.csv").read_text().splitlines()[1:]
    assert sorted({row.split(",")[0] for row in rows}) == ["3", "4", "5"]
    argv = ["weight-divergence", "forgetting", "--round", "1", "--out", str(tmp_path / "first")]
    status, out, err = call(capsys, "analyse", str(branch), *argv)
    assert (status, "Forgetting after round 1" in out) == (2, True)
    assert "not measured: weight-divergence: " in err
    assert "has no checkpoint up to round 0" in err


@pytest.mark.slow
def test_one_that_does_not_apply_costs_no_other(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["hypersphere", "consistency", "forgetting", "--round", "1", "--out", str(tmp_path)]
    status, out, err = call(capsys, "analyse", str(run), *argv)
    assert status == 2
    assert "Forgetting after round 1" in out
    assert "error: not measured: hypersphere: the circle needs features of 2 units" in err
    assert "not measured: consistency: consistency compares rounds with the one before" in err
    assert {path.stem for path in tmp_path.glob("*.png")} == {"forgetting"}


@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "needs a run and the names of analyses"),
        (["RUN"], "needs a run and the names of analyses"),
        (["RUN", "alignmnt"], "there is no analysis 'alignmnt' (did you mean 'alignment'?)"),
        (["RUN", "alignment", "--round", "9"], "has the rounds 1 to 3, got 9"),
        (["RUN", "alignment", "--rounds", "1,x"], "--rounds must be of type int, got 'x'"),
        (["RUN", "alignment", "--rounds", "all,2"], "takes numbers, as in 1,50,100, or all alone, got all,2"),
        (
            ["RUN", "all", "forgetting"],
            "all stands alone, got all forgetting: fedloom analyse RUN all",
        ),
        (["RUN", "forgetting", "--model", "nonsense"], "the run has no model 'nonsense'; it has mlp"),
        (["RUN", "consistency", "--round", "1"], "compares rounds with the one before: name one after 1"),
        (["RUN", "hypersphere"], "the circle needs features of 2 units"),
        (["nowhere", "alignment"], "nowhere"),
    ],
)
def test_errors(argv: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "analyse", *(str(run) if a == "RUN" else a for a in argv))
    assert status == 2
    assert message in err
