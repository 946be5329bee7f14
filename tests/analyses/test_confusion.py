"""What models take the examples of each class for, against scikit-learn's count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from analysed import rows
from commands import call, error
from fedloom import Experiment
from fedloom.analyses import AnalysedRun, analyse, confusion
from fedloom.core.errors import SettingError
from fedloom.report import write_report
from fedloom.report.confusion_matrix import draw_confusion, shares_of
from runs_of_tables import LABEL, TARGET, linear, tables, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("confusion")
    return trained(folder, f"{tables(folder)[0]}?{LABEL}", algorithm="ditto", data={"test_fraction": 0.4})


@pytest.mark.some(1)
@pytest.mark.parametrize("client", [None, "Kiel"])
def test_counts_and_shares_are_scikit_learns(
    run: Path, client: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the global test set, or of what one client holds out, by its own model."""
    model = ["--client", client] if client else []
    status, out, _ = call(capsys, "analyse", str(run), "confusion", *model, "--out", str(tmp_path))
    assert status == 0
    call(capsys, "export", str(run), f"{tmp_path}/w.pt", *model)
    federation = Experiment.from_directory(run).federation()
    assert federation.local_test is not None
    assert federation.test is not None
    number = federation.partition.clients.index(client) if client else 0
    own = federation.train.select(federation.local_test.rows(number)) if client else federation.test
    y, said = own.y.numpy(), linear(tmp_path / "w.pt", own.x.numpy()).argmax(1)
    name = f"confusion-client-{number}" if client else "confusion"
    found = rows(tmp_path / f"{name}.csv")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert [(row["true"], row["predicted"]) for row in found] == [(a, b) for a in ("no", "yes") for b in ("no", "yes")]
    for column, norm in (("count", None), ("share_of_true", "true"), ("share_of_predicted", "pred")):
        expected = confusion_matrix(y, said, labels=[0, 1], normalize=norm).ravel()
        assert np.nan_to_num([row[column] for row in found]) == pytest.approx(expected)
    right = int((y == said).sum())
    assert 0 < right < len(y)
    assert (
        f"{right} of {len(y)} {'held-out' if client else 'test'} examples are right, {100 * right / len(y):.1f} %."
        in out
    )
    assert f"Confusion of the {'global model' if client is None else 'model of client Kiel'} after round 2" in out


@pytest.mark.slow
def test_without_a_test_set_of_what_all_hold_out_and_in_the_newest_of_the_rounds(tmp_path: Path) -> None:
    lines = ["x,y,part", *(f"{k},{'abc'[k % 3]},train" for k in range(60))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    data = {"partition": "iid", "clients": 4, "test_fraction": 0.4}
    source = f"{tmp_path}/own.csv?label=y&split=part&prepare=standard"
    directory = trained(tmp_path, source, data=data, run={"rounds": 3, "keep_every": 1})
    found, _ = analyse(AnalysedRun.of(directory, [1, 2]), "confusion", tmp_path)
    assert sum(row["count"] for row in rows(tmp_path / "confusion.csv")) == 24
    assert found.remarks[0].split(" of ")[1].startswith("24 held-out examples")
    assert found.summary.name == "Confusion of the global model after round 2"


def test_classes_that_nobody_has_or_names_have_no_share() -> None:
    """And one that the data do not have, which a network may name, is counted."""
    counts = confusion.confusion(np.array([0, 0, 2]), np.array([0, 2, 4]), 3)
    assert counts.tolist() == confusion_matrix([0, 0, 2], [0, 2, 4], labels=range(5)).tolist()
    recall, precision = shares_of(counts)
    assert recall[0].tolist() == [0.5, 0, 0.5, 0, 0]
    assert np.isnan(recall[1]).all()
    assert np.isnan(precision[:, 1]).all()
    summary = confusion._summary(counts, list("abcde"), "T").rows
    assert summary[0] == ["a", 2, 0.5, 1.0, "c", 0.5]
    assert summary[1] == ["b", 0, None, None, "-", None]
    figure = draw_confusion(counts, [*"abcd", "a very long name of a class"])
    for axes, shares in zip(figure.axes, (recall, precision), strict=False):
        (image,) = axes.images
        np.testing.assert_allclose(np.ma.filled(image.get_array(), np.nan), 100 * shares)  # type: ignore[arg-type]
        assert image.get_clim() == (0, 100)
        assert [text.get_text() for text in axes.texts] == [f"{100 * shares[i, j]:.0f}" for i, j in np.argwhere(counts)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [*"abcd", "a very l…a class"]


@pytest.mark.slow
def test_the_page_of_a_run_has_what_was_measured(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "analyse", str(run), "confusion")
    call(capsys, "analyse", str(run), "confusion", "--client", "Kiel")
    counts = [int(row["count"]) for row in rows(run / "analysis/confusion.csv")]
    page = write_report(run, tmp_path / "page").read_text(encoding="utf-8")
    right = f"after round 2: {counts[0] + counts[3]:,} of {sum(counts):,} are right."
    assert f"What the global model takes the examples of each class (rows) for {right}" in page
    assert "Confusion of the model of client " in page


def test_mistakes_are_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = error(capsys, "analyse", str(run), "consistency", "--client", "Kiel")
    assert said == (
        "consistency is of the whole run, got client 'Kiel': leave --client out; analyses of one client are "
        "confusion, gradient-inversion, membership-inference"
    )
    assert error(capsys, "analyse", str(run), "confusion", "--client", "Kil").endswith(
        "(did you mean 'Kiel'?) [FL-RUN-021]"
    )
    with pytest.raises(SettingError, match="clients are the numbers 0 to 4, got 9: name one of them"):
        analyse(AnalysedRun.of(run, client=9), "confusion", tmp_path)
    numbers = trained(tmp_path, f"{tables(tmp_path)[0]}?{TARGET}", task="regression")
    said = error(capsys, "analyse", str(numbers), "confusion")
    assert said.startswith("confusion looks at classes, and targets of this run are numbers, several labels or tokens")
