"""A run that begins as another did: the same bits up to where it leaves that one, its own settings from there on."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from test_resume import same_end
from torch import nn

from fedloom import SGD, FedAvg, FedProx, History, Job, Local, PFedSD, RunSettings, Scaffold, verify
from fedloom.coordinator.directory import RunDirectory
from fedloom.core.errors import SettingError, StorageError
from fedloom.storage import files
from small import ONE_SHOT
from tiny import CLASSES, LOCAL, federation, linear, mlp

SETTINGS = RunSettings(rounds=3, cohort_size=3, engine="loop", threads=1, keep_every=2)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


def job(algorithm: Any, rounds: int = 3, model: Any = mlp, **settings: Any) -> Job:
    run = dataclasses.replace(SETTINGS, rounds=rounds, **settings)
    return Job(algorithm=algorithm, federation=federation(), model=model, settings=run)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("algorithm", [Scaffold(local=LOCAL), PFedSD(local=LOCAL)])
def test_with_the_same_settings_it_is_the_run_that_went_on(algorithm: Any, engine: Any, tmp_path: Path) -> None:
    job(algorithm, engine=engine).run(tmp_path / "first")
    before = everything(tmp_path / "first")
    longer = job(algorithm, 6, engine=engine)
    assert longer.branch(tmp_path / "first", tmp_path / "second") == 3
    assert verify(tmp_path / "second").whole
    whole = longer.run()
    assert same_end(whole, longer.run(tmp_path / "second", resume=True))
    assert same_end(whole, longer.run(tmp_path / "second", resume=True))  # nothing is left to do
    assert everything(tmp_path / "first") == before
    assert History.read(tmp_path / "second").metrics == whole.metrics
    assert verify(tmp_path / "second").whole


def test_a_client_without_a_model_of_its_own_has_none_to_take(tmp_path: Path) -> None:
    """The student of DENSE is of one architecture, and clients of the other are not evaluated."""
    mixed = Job(
        algorithm=dataclasses.replace(ONE_SHOT["dense"], local=LOCAL), federation=federation(),
        model={"a": normed, "b": mlp}, settings=dataclasses.replace(SETTINGS, rounds=2),
    )  # fmt: skip
    mixed.run(tmp_path)
    restored = mixed.restore(tmp_path)
    with pytest.raises(SettingError, match=r"DENSE has no model to evaluate client 1 by .*: take the global one"):
        restored.personal_weights(1)
    assert restored.personal_weights(0).params


@pytest.mark.slow
def test_its_first_checkpoint_is_kept(tmp_path: Path) -> None:
    """Nothing before it can be computed again."""
    job(FedAvg(local=LOCAL)).run(tmp_path / "first")
    longer = job(FedAvg(local=LOCAL), 9, keep_every=1000)
    longer.branch(tmp_path / "first", tmp_path / "second")
    longer.run(tmp_path / "second", resume=True)
    assert RunDirectory(tmp_path / "second").checkpoints.rounds() == [3, 8, 9]
    for round in (4, 6):
        assert longer.replay(tmp_path / "second", round).round == round


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "fed_adi"])
def test_what_comes_after_has_the_new_settings_alone(name: str, tmp_path: Path) -> None:
    """Settings that do not matter before the branch: so it is the run that had the new ones from its beginning."""
    old, new = (dataclasses.replace(ONE_SHOT[name], local=LOCAL, T=T) for T in (2.0, 9.0))
    dense = dataclasses.replace(ONE_SHOT["dense"], local=LOCAL)
    job(dense, 1, model=normed).run(tmp_path / "upload")
    other = job(new, 4, model=normed)
    other.branch(tmp_path / "upload", tmp_path / "new")
    found = other.run(tmp_path / "new", resume=True)
    assert same_end(other.run(), found)
    assert not same_end(job(old, 4, model=normed).run(), found)


@pytest.mark.slow
def test_it_may_have_another_algorithm_and_another_rate(tmp_path: Path) -> None:
    job(FedAvg(local=LOCAL), 4).run(tmp_path / "first")
    still = dataclasses.replace(LOCAL, optimiser=SGD(lr=1e-30))
    slow = job(FedProx(local=still, mu=0.1), 4)
    assert slow.branch(tmp_path / "first", tmp_path / "second", at=2) == 2
    slow.run(tmp_path / "second", resume=True)
    first, second = (History.read(tmp_path / name).metrics for name in ("first", "second"))
    assert second[:3] == first[:3]
    accuracies = [m["personal_accuracy"] for m in second]
    assert accuracies[2] == accuracies[3] == accuracies[4] != accuracies[0]  # from round 3 on nobody learns anything
    stored = json.loads((tmp_path / "second/manifest.json").read_text())
    assert (stored["algorithm"], stored["branch"]["round"]) == ("FedProx", 2)
    assert stored["hyper_parameters"]["mu"] == 0.1


@pytest.mark.slow
def test_what_makes_the_data_and_the_rounds_must_be_the_same(tmp_path: Path) -> None:
    job(FedAvg(local=LOCAL)).run(tmp_path / "first")
    before = everything(tmp_path)
    for other, what in [
        (job(FedAvg(local=LOCAL), seed=1), "run.seed was 0 and is 1"),
        (job(FedAvg(local=LOCAL), cohort_size=2), "run.cohort_size was 3 and is 2"),
        (dataclasses.replace(job(FedAvg(local=LOCAL)), federation=federation(5)), "federation.clients was 6 and is 5"),
        (dataclasses.replace(job(FedAvg(local=LOCAL)), model=linear), "models"),
    ]:
        with pytest.raises(SettingError, match=f"first holds a run with other settings or data: .*{what}"):
            other.branch(tmp_path / "first", tmp_path / "second")
    with pytest.raises(StorageError, match="first has no checkpoint of round 1, only of 0, 2, 3"):
        job(FedAvg(local=LOCAL)).branch(tmp_path / "first", tmp_path / "second", at=1)
    with pytest.raises(StorageError, match="does not fit this algorithm and model"):
        job(Scaffold(local=LOCAL)).branch(tmp_path / "first", tmp_path / "second")
    with pytest.raises(SettingError, match="first already holds a run"):
        job(FedAvg(local=LOCAL)).branch(tmp_path / "first", tmp_path / "first")
    assert everything(tmp_path) == before


@pytest.mark.slow
def test_states_of_clients_must_fit_too(tmp_path: Path) -> None:
    """PFedSD's server keeps what FedAvg's does, its clients what FedAvg's do not."""
    job(PFedSD(local=LOCAL)).run(tmp_path / "first")
    with pytest.raises(StorageError, match="does not hold the state of client 0"):
        job(FedAvg(local=LOCAL)).branch(tmp_path / "first", tmp_path / "second")
    assert not (tmp_path / "second").exists()


@pytest.mark.slow
def test_a_branch_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = job(PFedSD(local=LOCAL))
    again.run(tmp_path / "first")
    before = everything(tmp_path)
    real, left = files.write, 0

    def fail(*args: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise StorageError("the disk is full")
        return real(*args, **more)

    for left in (1, 3, 6, 9):  # noqa: B007 (`fail` counts it down)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write", fail)
            with pytest.raises(StorageError, match="the disk is full"):
                again.branch(tmp_path / "first", tmp_path / "second")
        assert everything(tmp_path) == before
    damaged = next((tmp_path / "first/checkpoints/clients").iterdir())
    os.truncate(damaged, damaged.stat().st_size - 1)
    with pytest.raises(StorageError, match="damaged"):
        again.branch(tmp_path / "first", tmp_path / "second")
    assert not (tmp_path / "second").exists()


@pytest.mark.slow
def test_more_epochs_from_the_branch_on(tmp_path: Path) -> None:
    job(FedAvg(local=LOCAL), 2).run(tmp_path / "first")
    long = job(FedAvg(local=Local(epochs=3, batch_size=LOCAL.batch_size, optimiser=SGD(lr=0.1))), 3)
    long.branch(tmp_path / "first", tmp_path / "second")
    history = long.run(tmp_path / "second", resume=True)
    assert history.metrics[3] != job(FedAvg(local=LOCAL), 3).run().metrics[3]
