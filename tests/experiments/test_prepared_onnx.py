"""ONNX files of runs over prepared tables take columns as tables have them, and say what `fedloom predict` says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from commands import call
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export
from fedloom.experiments.predictions import predict
from fedloom.experiments.trained_model import trained_model
from fedloom.tables.preparation import Preparation
from hospitals import Row, write_table
from runs_of_tables import LABEL, TARGET, tables, trained

GAPS = ("", "NA")


def exported(run: Path, file: Path) -> onnxruntime.InferenceSession:
    job = Experiment.from_directory(run).job()
    found, train = trained_model(run, job), job.federation.train
    export(found.model, found.weights, file, normalise=train.normalise, preparation=train.preparation, task=job.task)
    return onnxruntime.InferenceSession(file)


def inputs(session: onnxruntime.InferenceSession, rows: Sequence[Row]) -> dict[str, Any]:
    """What somebody without fedloom makes of rows, by the file's metadata alone."""
    told = session.get_modelmeta().custom_metadata_map
    out: dict[str, Any] = {}
    if "columns" in told:
        columns = json.loads(told["columns"])
        out["x"] = np.array([[float("nan") if row[c] in GAPS else float(row[c]) for c in columns] for row in rows])
    if "words" in told:
        lists = json.loads(told["words"])

        def place(column: str, cell: str) -> int:
            word = "missing" if cell in GAPS else cell
            return lists[column].index(word) if word in lists[column] else -1

        out["words"] = np.array([[place(c, row[c]) for c in lists] for row in rows], np.int64)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "model"), [("standard", "logistic"), ("federated", "category_mlp")])
def test_classes_are_those_that_predict_says(prepare: str, model: str, tmp_path: Path) -> None:
    whole, _, rows = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}".replace("standard", prepare), model=model)
    session = exported(run, tmp_path / "model.onnx")
    rows = [*rows[:-1], {**rows[-1], "diagnosis": "Z99", "age": "NA"}]  # a word that no training row has
    given, new = inputs(session, rows), write_table(tmp_path / "new.csv", rows)
    assert {i.name: i.shape[1] for i in session.get_inputs()} == {"x": 2, "words": 2}
    assert np.isnan(given["x"]).any()
    (logits,) = session.run(["logits"], given)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    with pytest.warns(SettingWarning, match="of 245 rows 1 in 'diagnosis'"):
        said = predict(run, new)
    np.testing.assert_allclose(p, np.asarray(said.probabilities), atol=1e-6, rtol=0)
    alone = session.run(["logits"], {name: of[-1:] for name, of in given.items()})[0]  # any number of rows
    np.testing.assert_allclose(alone, logits[-1:], atol=1e-6)
    assert -1 in given["words"]


@pytest.mark.slow
def test_numbers_are_in_the_unit_of_the_target_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, new, rows = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{TARGET}", task="regression")
    status, out, _ = call(capsys, "export", str(run), str(tmp_path / "model.onnx"))
    assert status == 0
    assert (
        "the file takes columns as the table has them: 2 columns of numbers as x and 2 columns of words as words, each "
        "by its place in its list; its metadata name them in order"
    ) in " ".join(out.split())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (days,) = session.run(["prediction"], inputs(session, rows))
    wanted = predict(run, new).values
    np.testing.assert_allclose(days, wanted, rtol=1e-6, atol=1e-6)
    assert wanted.mean() > 1.5  # days, not deviations


@pytest.mark.slow
def test_of_two_classes_the_logit_is_the_one_that_predict_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, new, rows = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}", task="binary?threshold=validation", data={"val_fraction": 0.2})
    assert call(capsys, "export", str(run), str(tmp_path / "model.onnx"))[0] == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (logits,) = session.run(["logits"], inputs(session, rows))
    said, facts = predict(run, new), session.get_modelmeta().custom_metadata_map
    assert logits.shape == (len(rows), 1)  # the network has two
    assert said.probabilities is not None
    np.testing.assert_allclose(1 / (1 + np.exp(-logits[:, 0])), said.probabilities[:, 1], atol=1e-6, rtol=0)
    assert json.loads(facts["classes"]) == ["no", "yes"]
    assert float(facts["threshold"]) == said.threshold


@pytest.mark.slow
def test_gaps_of_columns_that_a_site_lacked_are_masks(tmp_path: Path) -> None:
    _, new, rows = tables(tmp_path)
    (tmp_path / "sites").mkdir()
    lacks = ("age", "diagnosis")
    write_table(tmp_path / "sites" / "a.csv", rows[:120])
    write_table(
        tmp_path / "sites" / "b.csv", [{c: of for c, of in row.items() if c not in lacks} for row in rows[120:]]
    )
    said = "label=readmitted&drop=patient,los_days,client&prepare=federated&columns=union"
    run = trained(tmp_path, f"{tmp_path}/sites/*.csv?{said}", model="category_mlp")
    session = exported(run, tmp_path / "model.onnx")
    (logits,) = session.run(["logits"], inputs(session, rows))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(p, np.asarray(predict(run, new).probabilities), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_a_table_of_numbers_alone_has_one_input(tmp_path: Path) -> None:
    whole, new, rows = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}".replace("drop=patient,los_days", "drop=patient,los_days,sex,diagnosis"))
    session = exported(run, tmp_path / "model.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"]
    (logits,) = session.run(["logits"], inputs(session, rows))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    said = predict(run, f"{new}?drop=sex,diagnosis")
    np.testing.assert_allclose(p, np.asarray(said.probabilities), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_places_that_are_standardised_are_said_to_stay_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _, _ = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}", data={"normalise": "places"})
    status, out, _ = call(capsys, "export", str(run), str(tmp_path / "model.onnx"))
    assert status == 0
    assert "(normalise = places), which ONNX does not hold" in " ".join(out.split())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [i.name for i in session.get_inputs()] == ["x"]


class Doubles:
    """A transformer of one's own."""

    def transform(self, frame: Any) -> Any:
        return 2 * frame


def test_what_onnx_does_not_hold_is_said(tmp_path: Path) -> None:
    whole, _, _ = tables(tmp_path)
    run = trained(tmp_path, f"{whole}?{LABEL}")
    found = trained_model(run, Experiment.from_directory(run).job())
    own = Preparation(None, Doubles())
    with pytest.raises(
        SettingError, match=r"ONNX holds the preparation 'standard' or 'federated' .*, not .* Doubles: "
    ):
        export(found.model, found.weights, tmp_path / "model.onnx", preparation=own)
    with pytest.raises(SettingError, match="preparation and task are written to ONNX only, not to a state_dict file"):
        export(found.model, found.weights, tmp_path / "model.pt", preparation=own)
