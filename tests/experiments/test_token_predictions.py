"""What a model of tokens says of new sequences, shorter ones among them, and what a run of tokens can be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl
from fedloom.cli.main import main
from tokens_made import LOCAL, VOCABULARY, Attending, federation, sequences


@pytest.fixture(scope="module")
def made(tmp_path_factory: Any) -> tuple[Path, Any]:
    job = fl.Job(
        algorithm=fl.FedAvg(local=LOCAL), federation=federation(24), model=Attending, task=fl.NextToken(),
        settings=fl.RunSettings(rounds=2, cohort_size=5, measures=("perplexity",)),
    )  # fmt: skip
    folder: Path = tmp_path_factory.mktemp("tokens") / "run"
    job.run(folder)
    return folder, job


@pytest.mark.parametrize("kind", ["uint8", "int16", "int64"])
def test_tokens_are_predicted_for_sequences_of_any_width_and_length(made: Any, kind: str) -> None:
    folder, job = made
    x = sequences(24).numpy()[:7]
    whole = fl.predict(folder, x, job=job)
    assert whole.values.shape == (7, 24)
    short = fl.predict(folder, x[:, :10].astype(kind), job=job)
    assert (short.values[:, :10][x[:, :10] > 0] == whole.values[:, :10][x[:, :10] > 0]).all()
    with pytest.raises(fl.SettingError, match=r"token ids are those of the run, .* got ids up to \d+: number"):
        fl.predict(folder, x.astype(kind) + 50, job=job)


def test_a_run_is_measured_on_new_sequences(made: Any) -> None:
    folder, job = made
    x = sequences(10).numpy()[100:130]  # those of the test set
    found = fl.evaluate_run(folder, fl.from_arrays(x, fl.data.next_tokens(x), num_classes=VOCABULARY), job=job)
    last = fl.History.read(folder).metrics[-1]
    for name in ("token_accuracy", "perplexity"):
        assert found.measures[name].value == pytest.approx(last[f"global_{name}"], rel=1e-5)


@pytest.mark.slow
def test_a_run_of_tokens_has_a_page_and_no_classes(made: Any, capsys: Any, tmp_path: Path) -> None:
    folder, _ = made
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "targets of a sequence" in page
    assert "perplexity" in page
    assert main(["analyse", str(folder), "forgetting"]) == 2
    assert "forgetting looks at classes, and targets of this run are numbers, several labels or tokens" in (
        " ".join(capsys.readouterr().err.split())
    )
    held = fl.History.read(folder).federation
    assert held["train"] is None
    x = federation(24).train.x[federation(24).partition.rows(0)].numpy()
    assert held["targets"]["train"][0][0][4] == ((x > 0).sum(1) - 1).max()
    assert np.isfinite(held["targets"]["train"][0][0]).all()
