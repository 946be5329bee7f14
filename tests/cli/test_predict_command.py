"""`fedloom predict` and `fedloom evaluate`, as a person uses them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from commands import call, error
from fedloom.experiments.run_evaluation import evaluate_run
from runs_of_tables import LABEL, tables, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clinic")
    whole, _, _ = tables(made)
    trained(made, f"{whole}?{LABEL}")
    return made


def test_predictions_are_written_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["predict", str(folder / "run"), "--data", str(folder / "new.csv"), "--out", str(tmp_path / "said.csv")]
    status, out, _ = call(capsys, *argv, "--client", "Kiel", "--at", "2")
    assert (status, out) == (0, f"model of client Kiel after round 2 on 245 rows: {tmp_path / 'said.csv'}\n")
    with (tmp_path / "said.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 245
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    before = (tmp_path / "said.csv").read_bytes()
    message = f"{tmp_path}/said.csv exists; choose another name, or replace a file with overwrite=True (--overwrite)"
    assert error(capsys, *argv) == message
    assert error(capsys, "evaluate", *argv[1:]) == message
    assert (tmp_path / "said.csv").read_bytes() == before
    assert call(capsys, *argv, "--at", "0", "--overwrite")[0] == 0
    assert (tmp_path / "said.csv").read_bytes() != before


def test_without_a_file_the_table_alone_is_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["predict", str(folder / "run"), "--data", str(folder / "new.csv"), "--allow-code"]
    status, out, err = call(capsys, *argv)
    assert (status, err) == (0, "global model after round 2 on 245 rows: standard output\n")
    call(capsys, *argv, "--out", str(tmp_path / "said.csv"))
    assert out == (tmp_path / "said.csv").read_text()


@pytest.mark.usefixtures("_eighty_columns")
def test_measures_are_printed_and_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", str(folder / "run"), "--data", str(folder / "new.csv"), "--measures", "accuracy,log_loss"]
    status, out, _ = call(capsys, *argv, "--seed", "1", "--out", str(tmp_path / "measures.csv"))
    assert status == 0
    found = evaluate_run(folder / "run", folder / "new.csv", measures=["accuracy", "log_loss"], seed=1)
    accuracy, loss = found.measures.values()
    own = found.by_site["Hamburg"]["accuracy"]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "global model after round 2 on 245 rows"
    for line in (
        f"accuracy {100 * accuracy.value:.2f} % {100 * accuracy.low:.2f} % to {100 * accuracy.high:.2f} %",
        f"log loss {loss.value:.4g} {loss.low:.4g} to {loss.high:.4g}",
        "By site: accuracy",
        "By site: log loss",
        f"Hamburg 90 {100 * own.value:.2f} % {100 * own.low:.2f} % to {100 * own.high:.2f} %",
        "sites with fewer than 30 rows are not measured by themselves: Kiel (24)",
        f"measures: {tmp_path / 'measures.csv'}",
    ):
        assert line in lines
    with (tmp_path / "measures.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10


def test_a_terminal_shows_what_takes_the_time(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["evaluate", str(folder / "run"), "--measures", "accuracy", "--data", str(folder / "new.csv")]
    assert "evaluating" not in call(capsys, *argv)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")  # by which rich takes it for a terminal
    status, out, _ = call(capsys, *argv)
    assert (status, "with intervals of 1,000 resamples of its rows" in " ".join(out.split())) == (0, True)
    assert "100/100" in out


def test_training_rows_are_warned_of_and_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["evaluate", str(folder / "run"), "--measures", "accuracy", "--data"]
    status, out, err = call(capsys, *argv, str(folder / "all.csv"))
    assert status == 0
    assert "on 245 rows" in out
    assert re.match("warning: 157 of 245 rows equal training rows of the run in inputs and target", err)
    assert call(capsys, *argv, str(folder / "new.csv"))[2] == ""


def test_unknown_categories_are_counted_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all files together, beside the table that goes to standard output."""
    header, *lines = (folder / "new.csv").read_text().splitlines()
    assert header.split(",")[2] == "sex"
    for name, rows in (("a", lines[:40]), ("b", lines[40:50])):
        cells = [line.split(",") for line in rows]
        changed = [[*row[:2], "x" if k < 3 else row[2], *row[3:]] for k, row in enumerate(cells)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *map(",".join, changed)]))
    status, out, err = call(capsys, "predict", str(folder / "run"), "--data", f"{tmp_path}/*.csv?drop=patient,client")
    assert status == 0
    assert len(out.splitlines()) == 51
    said = "categories that no training row has are 0 in every feature, got of 50 rows 6 in 'sex': spell"
    assert said in err
    assert err.count("warning: ") == 1


def test_a_score_that_is_undefined_is_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "new.csv").read_text().splitlines(keepends=True)
    (tmp_path / "yes.csv").write_text("".join([lines[0], *(line for line in lines if ",yes," in line)]))
    _, out, _ = call(capsys, "evaluate", str(folder / "run"), "--data", f"{tmp_path}/yes.csv", "--measures", "auc")
    assert ["AUC", "undefined", "-"] in [line.split() for line in out.splitlines()]


@pytest.mark.slow
def test_mistakes_are_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, new, out = str(folder / "run"), str(folder / "new.csv"), str(tmp_path / "said.csv")
    assert error(capsys, "predict", run, "--data", new, "--out", out, "--at", "7").startswith(
        f"{run} has no checkpoint of"
    )
    said = error(capsys, "predict", run, "--data", new, "--out", out, "--client", "Kil")
    assert said.endswith("'Luebeck', 'Rostock', got 'Kil' (did you mean 'Kiel'?) [FL-RUN-021]")
    said = error(capsys, "evaluate", run, "--data", new, "--measures", "rmse")
    assert said.startswith("measures are some of those of the task Classification, accuracy, ")
    assert not Path(out).exists()
    for words in (["predict", run, "--data", new, "--overwrite", "--out"], ["export", run, "--overwrite"]):
        (tmp_path / "f.pt").mkdir(exist_ok=True)
        assert error(capsys, *words, f"{tmp_path}/f.pt").startswith(
            f"{tmp_path}/f.pt is a folder, and a file is written"
        )
    said = error(capsys, "export", run, f"{tmp_path}/kiel.pt", "--client", "Kil")
    assert said.endswith("got 'Kil' (did you mean 'Kiel'?) [FL-RUN-021]")
