"""`keep_best`: the checkpoint of the round that is best on validation data stays, whatever happens to the run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_resume import interrupted, same, same_end

from fedloom import FedAvg, PFedSD, RunSettings, run, verify
from fedloom.coordinator import Job
from fedloom.coordinator.part import Running
from fedloom.coordinator.personal_models import PersonalModels
from fedloom.core.errors import SettingError, SettingWarning, StorageWarning
from fedloom.storage import files
from tiny import LOCAL, federation, linear

SETTINGS = RunSettings(
    rounds=8, cohort_size=3, engine="loop", threads=1, keep_every=100, checkpoint_every=2, keep_best=True
)
VALIDATION = (0.1, 0.1, 0.5, 0.9, 0.3, 0.9, 0.2, 0.7, 0.1, 0.3, 0.2, 0.95, 0.4)  # by round; 3 and 5 are equal


def job(**more: Any) -> Job:
    return Job(
        algorithm=PFedSD(local=LOCAL),
        federation=federation(val_fraction=0.25),
        model=linear,
        settings=dataclasses.replace(SETTINGS, **more),
    )


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation accuracies are those above; before training and after round 1 they are the same."""
    original = PersonalModels.due

    def due(self: PersonalModels, run: Running) -> dict[str, Any]:
        found = original(self, run)
        return {**found, "val_accuracy": VALIDATION[run.round + 1]} if "val_accuracy" in found else found

    monkeypatch.setattr(PersonalModels, "due", due)


def kept(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "checkpoints").glob("*.json"))


def bits(directory: Path) -> dict[str, bytes]:
    """The states of all checkpoints, and the log that the seed determines."""
    states = {p.name: p.read_bytes() for p in (directory / "checkpoints").rglob("*.safetensors")}
    return {**states, "metrics.jsonl": (directory / "metrics.jsonl").read_bytes()}


@pytest.mark.slow
def test_the_best_round_is_kept_beside_the_last(tmp_path: Path) -> None:
    """Also between two checkpoints of the schedule; of equal rounds it is the first."""
    history = job().run(tmp_path)
    assert kept(tmp_path) == [0, 3, 6, 8]
    assert history.validated_round == 3
    found = verify(tmp_path)
    assert (found.whole, found.notes, found.checkpoints) == (True, [], 4)
    paths = sorted((tmp_path / "checkpoints").glob("*.json"))
    for one, after in itertools.pairwise(paths):
        assert [one.name, files.digest(one.read_bytes())] in json.loads(after.read_bytes())["before"]
    restored, then = job().restore(tmp_path, history.validated_round), job(rounds=3, keep_best=False).run()
    assert same(restored.server, then.server)
    assert sorted(restored.engine.clients) == sorted(then.clients)
    for client in then.clients:
        assert same(restored.personal_weights(client), then.clients[client].v.value)


@pytest.mark.slow
def test_it_changes_no_number_and_without_it_the_best_is_deleted_like_others(tmp_path: Path) -> None:
    history = job(keep_best=False).run(tmp_path / "without")
    assert kept(tmp_path / "without") == [0, 6, 8]
    assert same_end(history, job().run(tmp_path / "with"))


@pytest.mark.slow
def test_a_better_round_takes_the_place_of_the_best(tmp_path: Path) -> None:
    job(rounds=12).run(tmp_path)
    assert kept(tmp_path) == [0, 11, 12]
    assert verify(tmp_path).notes == []


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 3, 4, 8, 11])
def test_a_run_that_was_stopped_keeps_the_same(after: int, tmp_path: Path) -> None:
    one = job(rounds=12, checkpoint_every=5)
    one.run(tmp_path / "whole")
    interrupted(one, tmp_path / "cut", after=after)
    one.run(tmp_path / "cut", resume=True)
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole") == [0, 11, 12]
    assert bits(tmp_path / "cut") == bits(tmp_path / "whole")
    assert verify(tmp_path / "cut").notes == []


@pytest.mark.slow
def test_a_run_that_was_killed_at_any_step_keeps_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.VALIDATION", (0.1, 0.1, 0.8, 0.2, 0.3, 0.9, 0.1))
    one, kills = job(rounds=6), 0
    one.run(tmp_path / "whole")
    assert kept(tmp_path / "whole") == [0, 5, 6]
    original = {name: getattr(files, name) for name in ("write", "rename", "remove")}
    for stop in range(4, 100, 3):  # from the manifest on
        steps, folder = itertools.count(), tmp_path / str(stop)

        def counted(do: Callable[..., Any], steps: Any = steps, stop: int = stop) -> Callable[..., Any]:
            def step(*args: Any, **more: Any) -> Any:
                if next(steps) >= stop:
                    raise KeyboardInterrupt
                return do(*args, **more)

            return step

        with monkeypatch.context() as patch:
            for name, do in original.items():
                patch.setattr(files, name, counted(do))
            try:
                one.run(folder)
            except KeyboardInterrupt:
                kills += 1
            else:
                break
        found = verify(folder)
        assert found.whole, found.problems
        one.run(folder, resume=True)
        assert set(kept(folder)) - {0, 5, 6} <= {4}  # which a run that was done leaves, as without the best
        assert bits(tmp_path / "whole").items() <= bits(folder).items()
        assert not (folder / "set-aside").exists()
        assert verify(folder).notes == []
    else:
        pytest.fail("the run has more steps")
    assert kills > 10


@pytest.mark.slow
def test_the_weights_before_training_may_be_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.VALIDATION", (0.9,) * 2 + (0.1,) * 7)
    history = job().run(tmp_path)
    assert history.validated_round == 0
    assert kept(tmp_path) == [0, 6, 8]


def test_what_it_needs_is_said_before_any_work(tmp_path: Path) -> None:
    message = (
        r"keep_best chooses a round by val_accuracy, on validation examples, which this federation lacks, and test "
        r"examples choose no round: hold validation examples out \(val_fraction, --val-fraction 0.1\), or leave"
    )
    with pytest.raises(SettingError, match=message):
        run(FedAvg(local=LOCAL), federation(), linear, SETTINGS, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match=r"keeps a checkpoint, and a run without a directory has none: give .*--out"):
        job().run()


@pytest.mark.slow
def test_a_run_that_begins_to_keep_it_says_what_it_lacks(tmp_path: Path) -> None:
    job(keep_best=False).run(tmp_path)
    with pytest.warns(SettingWarning, match="round 3 is the best on validation data so far, and .* no checkpoint of i"):
        job(rounds=10).run(tmp_path, resume=True)
    assert kept(tmp_path) == [0, 8, 10]
    found = verify(tmp_path)
    assert (found.whole, found.notes) == (True, ["no checkpoint of round 3, the best on validation data"])
    with pytest.warns(SettingWarning, match="round 3 is the best"):
        job(rounds=12).run(tmp_path, resume=True)
    assert kept(tmp_path) == [0, 11, 12]
    assert verify(tmp_path).notes == []


@pytest.mark.slow
def test_a_run_that_goes_back_counts_the_rounds_that_it_has(tmp_path: Path) -> None:
    one = job(rounds=12)
    one.run(tmp_path)
    assert kept(tmp_path) == [0, 11, 12]
    with pytest.warns(StorageWarning, match="goes on from round 0"):
        job(rounds=8).run(tmp_path, resume=True, at=0)
    assert kept(tmp_path) == [0, 3, 6, 8]
    one.run(tmp_path, resume=True)
    assert kept(tmp_path) == [0, 11, 12]


@pytest.mark.slow
def test_a_branch_says_that_the_best_round_is_not_its_own(tmp_path: Path) -> None:
    one = job(rounds=10)
    one.run(tmp_path / "first")
    one.branch(tmp_path / "first", tmp_path / "second", at=8)
    with pytest.warns(SettingWarning, match="round 3 is the best .* is a branch"):
        job(rounds=12).run(tmp_path / "second", resume=True)
    assert kept(tmp_path / "second") == [8, 11, 12]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "client", "index"])
def test_damage_of_the_best_is_found(kind: str, tmp_path: Path) -> None:
    job().run(tmp_path)
    folder = tmp_path / "checkpoints"
    others = {f[0] for t in (0, 6, 8) for f in json.loads((folder / f"{t:08d}.json").read_bytes())["clients"].values()}
    clients = [f for f, _ in json.loads((folder / "00000003.json").read_bytes())["clients"].values()]
    path = {
        "server": folder / "00000003-server.safetensors",
        "client": folder / "clients" / next(f for f in clients if f not in others),
        "index": folder / "00000003.json",
    }[kind]
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    (problem,) = verify(tmp_path).problems
    assert str(path) in problem


@pytest.mark.slow
def test_a_best_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    """Also with all that only it names; nothing else tells then."""
    job().run(tmp_path / "whole")
    folder = tmp_path / "run/checkpoints"
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for path in folder.glob("00000003*"):
        path.unlink()
    others = {f[0] for t in (0, 6, 8) for f in json.loads((folder / f"{t:08d}.json").read_bytes())["clients"].values()}
    for path in (folder / "clients").iterdir():
        if path.name not in others:
            path.unlink()
    (problem,) = verify(tmp_path / "run").problems
    assert problem == (
        f"{folder / '00000003.json'} is missing, the checkpoint of the best round on validation data: bring it back"
    )
