"""Runs of tokens: every algorithm that needs only a loss learns them, engines agree, padding changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedloom as fl
from fedloom.algorithms import ALGORITHMS
from fedloom.core.batch import probe
from fedloom.core.errors import SettingError
from fedloom.data.inputs import IGNORED
from tokens_made import LOCAL, VOCABULARY, Attending, Recurrent, classifier, federation

BY_CLASS = sorted(name for name, kind in ALGORITHMS.items() if "tokens" not in (kind().requires.targets or ["tokens"]))
OTHERS = {"fedalign": "slims", "fedmd": "one answer to each public example, got one for each of 10", "moon": "features"}
TASK = fl.NextToken()


@pytest.mark.some(3)
@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in {*BY_CLASS, *OTHERS}])
def test_algorithms_that_need_only_a_loss_learn_tokens(name: str) -> None:
    settings = fl.RunSettings(rounds=2, cohort_size=5, measures=("perplexity",))
    history = fl.run(ALGORITHMS[name](local=LOCAL), federation(), Attending, settings, task=TASK)
    series = [history.series(f"{whose}_perplexity") for whose in ("global", "personal")]
    (first, *_, last), *_ = [values for values in series if len(values)]
    assert np.isfinite([*series[0], *series[1]]).all()
    assert last < first < 2 * VOCABULARY


@pytest.mark.some(2)
@pytest.mark.parametrize("name", BY_CLASS)
def test_those_that_compare_classes_are_refused_before_the_run(name: str) -> None:
    made = ALGORITHMS[name]()
    with pytest.raises(SettingError, match=f"{type(made).__name__} compares .* the task NextToken are tokens"):
        fl.Job(algorithm=made, federation=federation(), model=Attending, task=TASK)


@pytest.mark.parametrize("name", OTHERS)
def test_those_that_need_more_of_a_network_are_refused_before_the_run(name: str) -> None:
    settings = fl.RunSettings(rounds=1, cohort_size=5)
    with pytest.raises(SettingError, match=OTHERS[name]):
        fl.Job(
            algorithm=ALGORITHMS[name](), federation=federation(), model=Attending, task=TASK, settings=settings
        ).check()


@pytest.mark.some(1)
@pytest.mark.parametrize("name", [n for n in BY_CLASS if n not in {"dense", "fed_adi", "fed_dafl"}])
def test_they_learn_classes_of_sequences(name: str) -> None:
    settings = fl.RunSettings(rounds=2, cohort_size=5)
    history = fl.run(ALGORITHMS[name](local=LOCAL), federation(classes=True), classifier, settings)
    assert np.isfinite(history.series("personal_accuracy")).all()


@pytest.mark.parametrize("name", ["dense", "fed_adi"])
def test_those_that_generate_examples_refuse_token_ids(name: str) -> None:
    job = fl.Job(
        algorithm=ALGORITHMS[name](), federation=federation(classes=True), model=classifier,
        settings=fl.RunSettings(rounds=1, cohort_size=5),
    )  # fmt: skip
    with pytest.raises(SettingError, match="makes examples by a generator, whose outputs are numbers"):
        job.check()


def records(federation: fl.Federation, model: Any = Attending, engine: Any = "loop", **settings: Any) -> Any:
    method = fl.Scaffold(local=fl.Local(optimiser=fl.SGD(lr=0.1), batch_size=4, epochs=2))
    task = fl.Classification() if model is classifier else TASK
    measures = () if model is classifier else ("perplexity",)
    settings = {"rounds": 2, "cohort_size": 4, "dtype": "float64", "seed": 1, "measures": measures} | settings
    found = fl.run(method, federation, model, fl.RunSettings(engine=engine, **settings), task=task).metrics
    return [
        {n: v for n, v in record.items() if isinstance(v, float) and not n.startswith(("seconds", "time"))}
        for record in found
    ]


def check_alike(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert len([*one]) > 5
        for name, value in one.items():
            assert value == pytest.approx(other[name], rel=1e-9, abs=1e-9), name


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["stacked", "workers"])
@pytest.mark.parametrize("model", [Attending, classifier])
def test_engines_agree(engine: str, model: Any) -> None:
    whole = federation(classes=model is classifier)
    check_alike(records(whole, model), records(whole, model, engine))


@pytest.mark.some(1)
@pytest.mark.parametrize("model", [Attending, Recurrent, classifier])
@pytest.mark.parametrize("cut", [True, False])
def test_longer_padding_changes_nothing(model: Any, cut: bool) -> None:
    classes = model is classifier
    check_alike(
        records(federation(classes=classes, cut=cut), model), records(federation(23, classes=classes, cut=cut), model)
    )


def test_loss_and_measures_are_means_over_the_places_that_count() -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(4, 5, 7, dtype=torch.float64), torch.randint(7, (4, 5))
    y[0, 1:], y[1, 3:], y[2] = IGNORED, IGNORED, IGNORED
    flat, targets = logits.reshape(-1, 7), y.reshape(-1)
    expected = F.cross_entropy(flat, targets)  # PyTorch's own mean leaves ignored places out
    assert TASK.loss(logits, probe(logits, y)).item() == pytest.approx(expected.item(), abs=1e-12)
    total = {m.name: m.value(m.rows(logits, y).sum(0), 4) for m in TASK.measures}  # type: ignore[attr-defined]
    counted = targets != IGNORED
    right = (flat.argmax(1) == targets)[counted].double().mean()
    assert total["log_loss"] == pytest.approx(expected.item(), abs=1e-12)
    assert total["perplexity"] == pytest.approx(expected.exp().item(), abs=1e-12)
    assert total["token_accuracy"] == pytest.approx(right.item(), abs=1e-12)
    assert TASK.loss(logits[2:3], probe(logits[2:3], y[2:3])).item() == 0.0


def test_global_loss_is_the_mean_over_all_places_of_the_test_set(monkeypatch: Any) -> None:
    monkeypatch.setattr("fedloom.data.examples._LOGITS", 4 * 10 * VOCABULARY)  # of four sequences at a time
    whole = federation()
    assert whole.train.at_once(500) == 4
    found = fl.run(
        fl.FedAvg(local=LOCAL), whole, Attending,
        fl.RunSettings(rounds=1, cohort_size=5, measures=("log_loss",), per_client=True, seed=3), task=TASK,
    )  # fmt: skip
    last = found.metrics[-1]
    assert last["global_loss"] == pytest.approx(last["global_log_loss"], abs=1e-6)


@pytest.mark.slow
def test_records_are_small_whatever_the_vocabulary(tmp_path: Path) -> None:
    sizes = {}
    for vocabulary in (VOCABULARY, 50_000):
        whole = federation()
        parts = {
            name: fl.data.Examples(e.x, e.y, vocabulary, e.normalise)
            for name in ("train", "test", "public") if (e := getattr(whole, name)) is not None
        }  # fmt: skip

        class Large(Attending):
            def __init__(self, vocabulary: int = vocabulary) -> None:
                super().__init__()
                self.head = torch.nn.Linear(8, vocabulary)

        made = fl.Federation(**{n: getattr(whole, n) for n in ("partition", "local_test", "local_val")}, **parts)
        out = tmp_path / str(vocabulary)
        fl.run(fl.FedAvg(local=LOCAL), made, Large, fl.RunSettings(rounds=1, cohort_size=2), task=TASK, directory=out)
        record = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
        assert not {"class_accuracy", "forgetting", "in_local_accuracy"} & set(record)
        small = (p for p in out.rglob("*.json*") if p.is_file())
        sizes[vocabulary] = sum(p.stat().st_size for p in small)
    assert sizes[50_000] < sizes[VOCABULARY] + 500
