"""Words of a prepared table become categories with embeddings, by the name of a network: to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import SettingWarning
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from hospitals import write_table
from runs_of_tables import LABEL, tables, trained


def experiment(source: str, model: str = "category_mlp", **run: Any) -> Experiment:
    described: Any = {
        "algorithm": "fedavg", "model": model, "data": {"source": source, "partition": "natural"},
        "local": {"epochs": 3, "lr": 0.1}, "run": {"rounds": 2, "cohort_size": 5, "threads": 1, **run},
    }  # fmt: skip
    return Experiment.of(described)


@pytest.mark.parametrize("prepare", ["standard", "federated"])
def test_words_of_a_table_have_embeddings_by_name(prepare: str, tmp_path: Path) -> None:
    table, _, _ = tables(tmp_path)
    source = f"{table}?{LABEL.replace('standard', prepare)}"
    found = []
    for engine in ("loop", "stacked"):
        job = experiment(source, engine=engine, dtype="float64").job()
        found.append(job.run().metrics[-1]["global_loss"])
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    (model,) = job.population.models.values()
    made = job.federation.train.preparation
    assert made is not None
    assert made.constants is not None
    sizes = {name: len(words) for name, words in made.constants.words.items()}
    assert sizes == {"sex": 3, "diagnosis": 4}  # a gap is a word
    module = next(iter(catalogue.models("category_mlp?dropout=0.5", job.federation.train).values()))()
    assert [tuple(p.shape) for n, p in module.named_parameters() if "embeddings" in n] == [(3, 3), (4, 3)]
    assert job.federation.train.shape == (2 + 7,)
    assert model.num_params == sum(p.numel() for p in module.parameters())


@pytest.mark.slow
def test_it_predicts_new_rows_and_an_unknown_word_is_none(tmp_path: Path) -> None:
    table, new, rows = tables(tmp_path)
    run = trained(tmp_path, f"{table}?{LABEL}", model="category_mlp")
    found = predict(run, new).probabilities
    foreign = write_table(tmp_path / "other.csv", [{**row, "diagnosis": "Z99"} for row in rows])
    with pytest.warns(SettingWarning, match="got of 245 rows 245 in 'diagnosis': spell"):
        other = predict(run, foreign)
    assert other.probabilities is not None
    assert found is not None
    assert found.shape == (len(rows), 2)
    assert np.isfinite(other.probabilities).all()
    assert not np.allclose(found, other.probabilities)


def test_a_table_without_words_is_refused_with_the_remedy(tmp_path: Path) -> None:
    table, _, _ = tables(tmp_path)
    source = f"{table}?{LABEL.replace('drop=', 'drop=sex,diagnosis,')}"
    with pytest.raises(ValueError, match="columns of words of a table are categories with prepare=standard"):
        experiment(source).job()
