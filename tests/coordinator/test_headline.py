"""Another measure than the task's first compares models and chooses rounds, where a run says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedloom as fl
from commands import call
from fedloom.coordinator import Job
from fedloom.coordinator.verification import verify
from fedloom.core.errors import SettingError, SettingWarning
from fedloom.data import Examples, by_lists
from fedloom.evaluate.measure import monitored
from fedloom.experiments.trials import Sweep
from tiny import LOCAL

SETTINGS = fl.RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1, compilation="none")
OF_AUC = replace(SETTINGS, headline="auc")


def network() -> torch.nn.Module:
    return torch.nn.Linear(3, 2)


def federation() -> fl.Federation:
    """Four clients with 8 % positives; the last one has none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=400) > 2.1).astype(np.int64)
    order = np.argsort(np.where(np.arange(400) < 300, 0, 1) * (1 - y), kind="stable")
    x, y = x[order], y[order]
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y), 2)
    lists = [*(np.arange(k, 310, 3) for k in range(3)), np.flatnonzero(y == 0)[-80:]]
    free = [rows[rows < 310] if k < 3 else rows[rows >= 310] for k, rows in enumerate(lists)]
    test = Examples(torch.from_numpy(x[:200]), torch.from_numpy(y[:200]), 2)
    return fl.federate(examples, by_lists(free), test=test, test_fraction=0.3, val_fraction=0.2, seed=0)


def run(settings: fl.RunSettings, **more: Any) -> fl.History:
    return fl.run(fl.PFedSD(local=LOCAL), federation(), network, settings, **more)


@pytest.mark.slow
def test_the_best_round_that_must_have_a_checkpoint_is_that_of_the_headline(tmp_path: Path) -> None:
    found = run(replace(OF_AUC, rounds=8, seed=1, keep_best=True, keep_every=100), directory=tmp_path / "run")
    best, other = (
        max(found.metrics, key=lambda m: (m[name], -m["round"]))["round"] for name in ("val_auc", "val_accuracy")
    )
    assert best not in (other, 0, 8)  # else this test would not tell one from the other
    assert verify(tmp_path / "run").notes == []
    for file in (tmp_path / "run/checkpoints").glob(f"{best:08}*"):
        file.unlink()
    problems = verify(tmp_path / "run").problems
    assert any(f"{best:08}.json" in why and "best round" in why for why in problems), problems


@pytest.mark.slow
def test_the_headline_is_that_of_records_and_of_the_best_round(tmp_path: Path) -> None:
    found = run(replace(OF_AUC, keep_best=True), directory=tmp_path / "run")
    with pytest.warns(SettingWarning, match="make another measure the headline"):
        plain = run(replace(SETTINGS, measures=("auc",)))
    assert (found.headline.name, plain.headline.name) == ("auc", "accuracy")
    for mine, other in zip(found.metrics, plain.metrics, strict=True):
        for name in ("global_auc", "global_accuracy", "class_accuracy", "personal_accuracy", "val_auc", "val_accuracy"):
            assert mine[name] == other[name]
        assert mine["personal_auc"] == pytest.approx(other["personal_auc"], abs=1e-15)
        assert mine["personal_auc_undefined"] == other["personal_auc_undefined"] == 1
        assert [*mine["personal_by_client"]] == ["0", "1", "2"]  # client 3 has no positives
        assert mine["personal_auc"] == pytest.approx(np.mean([*mine["personal_by_client"].values()]))
        assert mine["personal_auc_by_samples"] is None  # different models are not ranked together
        assert mine["personal_worst_tenth"] == min(mine["personal_by_client"].values())
    best = max(found.metrics, key=lambda m: (m["val_auc"], -m["round"]))["round"]
    assert found.validated_round == best
    assert [fl.History.read(tmp_path / "run").validated_round, found.headline.better] == [best, "high"]
    job = job_of(OF_AUC)
    test = job.federation.test
    assert test is not None
    weights = job.restore(tmp_path / "run").global_weights()
    logits = fl.module(*job.population.models.values(), *weights.values())(test.x)
    assert roc_auc_score(test.y, (logits[:, 1] - logits[:, 0]).detach().numpy()) == pytest.approx(
        found.last("global_auc"), abs=1e-9
    )


def job_of(settings: fl.RunSettings) -> Job:
    return Job(algorithm=fl.PFedSD(local=LOCAL), federation=federation(), model=network, settings=settings)


@pytest.mark.some(1)
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_numbers_of_each_client_are_null_where_the_headline_is_undefined(engine: Any, tmp_path: Path) -> None:
    settings = replace(OF_AUC, per_client=True, engine=engine, cohort_size=4)
    new = fl.NewClients((3,), judged_by=("global",))
    run(settings, directory=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/clients.jsonl").read_text().splitlines()]
    evaluated = lines[-1]["judged"]
    assert [value is None for value in evaluated["personal_auc"]] == [False, False, False, True]
    assert [value is None for value in lines[-1]["trained"]["trained"]] == [False, False, False, True]
    again = run(replace(settings, rounds=4), directory=tmp_path / "run", resume=True)
    assert again.per_client[-1]["trained"]["previous"][3] is None
    assert 0 <= again.metrics[-1]["better_than_global"] <= 1
    last = run(replace(OF_AUC, rounds=1), new=new).metrics[-1]
    assert (last["new_by_client"]["global"], last["new_global_auc"]) == ({"3": None}, None)
    assert last["new_global_auc_undefined"] == 1


def test_what_watches_and_what_chooses_settings_is_the_headline() -> None:
    job = job_of(OF_AUC)
    assert monitored(OF_AUC.monitor, job.measures).name == "global_auc"
    assert monitored("global_accuracy", job_of(SETTINGS).measures).name == "global_accuracy"
    base = fl.Experiment.of({"task": "binary", "data": {"val_fraction": 0.2}, "run": {"headline": "average_precision"}})
    assert Sweep(base, {"local.lr": [0.1, 0.2]}).by == "val_average_precision"
    assert Sweep(base.changed("run.headline", ""), {"local.lr": [0.1, 0.2]}).by == "val_accuracy"
    with pytest.raises(SettingError, match=r"measures are some of those of the task Classification, .*, got 'auk'"):
        job_of(replace(SETTINGS, headline="auk"))
    bare = fl.federate(federation().train, federation().partition, test_fraction=0.2, seed=0)
    with pytest.raises(SettingError, match="keep_best chooses a round by val_auc"):
        fl.run(fl.FedAvg(local=LOCAL), bare, network, replace(OF_AUC, keep_best=True))


@pytest.mark.slow
def test_the_command_line_takes_it_and_the_page_compares_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    x, who = rng.normal(size=300), rng.integers(0, 3, 300)
    ill = x + 0.3 * rng.normal(size=300) > 1.4
    lines = [f"{a:.3f},{w},{'yes' if i else 'no'}" for a, w, i in zip(x, who, ill, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["x,who,label", *lines]) + "\n")
    data = ["--data", f"{tmp_path}/t.csv?client=who", "--partition", "natural", "--task", "binary", "--cohort", "3"]
    more = ["--model", "logistic", "--rounds", "2", "--lr", "0.5", "--val-fraction", "0.2"]
    command = ["run", "fedavg", *data, *more]
    status, said, error = call(capsys, *command, "--headline", "auc", "--out", str(tmp_path / "run"))
    assert status == 0
    assert "accuracy says little" not in " ".join((said + error).split())
    assert "AUC" in said
    status, said, error = call(capsys, *command)
    assert "(--headline auc; or average_precision, balanced_accuracy)" in " ".join((said + error).split())
    status, said, _ = call(capsys, "report", str(tmp_path / "run"), "--out", str(tmp_path / "page"))
    assert status == 0
    assert "Global AUC" in (tmp_path / "page/report.html").read_text(encoding="utf-8")
    with pytest.warns(SettingWarning, match="^160 of 300 rows equal training rows of the run"):
        found = fl.evaluate_run(tmp_path / "run", f"{tmp_path}/t.csv", measures=["log_loss"], resamples=1)
    assert [*found.measures] == ["auc", "accuracy", "log_loss"]
