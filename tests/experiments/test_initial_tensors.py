"""What a network with frozen parts begins with is in its run's directory once, so that it needs no file beside it."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedloom as fl
from fedloom import models, verify
from fedloom.analyses.analysed_run import AnalysedRun
from fedloom.cli.main import main
from fedloom.coordinator import Job, directory
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.rounds import Coordinator
from fedloom.core.errors import DamageError, SettingError, StorageWarning
from fedloom.core.model import Model
from fedloom.core.network_copies import stored_names
from fedloom.experiments.experiment import Experiment
from fedloom.storage import codec, files
from tiny import LOCAL, federation

KEPT = "initial-0.safetensors"


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """A run in words: a network that begins with a file but for its last layer, which alone is trained."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 1, 4, 4)).astype(np.float32), np.arange(120) % 3
    np.savez(tmp_path / "data.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    torch.manual_seed(5)
    save_file(models.build("mlp", (1, 4, 4), 7).state_dict(), tmp_path / "backbone.safetensors")
    run = {"rounds": 2, "cohort_size": 2, "engine": "loop", "threads": 1, "seed": 3}
    return {
        "model": "mlp", "frozen": "* !last:1", "start": str(tmp_path / "backbone.safetensors"),
        "start_only": "* !last:1", "run": run, "local": {"epochs": 1, "batch_size": 10},
        "data": {"source": str(tmp_path / "data.npz"), "clients": 3, "partition": "iid"},
    }  # fmt: skip


def begun(asked: dict[str, Any], folder: Path, **run: Any) -> fl.History:
    job = Experiment.of({**asked, "run": {**asked["run"], **run}}).job()
    return job.run(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:not taken from")
def test_a_folder_alone_is_resumed_replayed_exported_and_analysed(asked: dict[str, Any], tmp_path: Path) -> None:
    """With the bits of a run whose backbone is still there; and it stays what it was asked for."""
    whole = begun(asked, tmp_path / "whole", rounds=3)
    begun(asked, tmp_path / "run")
    kept, manifest = (tmp_path / "run" / KEPT).read_bytes(), json.loads((tmp_path / "run/manifest.json").read_text())
    backbone = load_file(asked["start"])
    Path(asked["start"]).unlink()
    shutil.move(tmp_path / "run", tmp_path / "given")
    out = tmp_path / "given"

    job = Experiment.from_directory(out).job()
    assert job.replay(out, 2).clients == whole.metrics[2]["clients"]
    assert main(["export", str(out), str(tmp_path / "net.safetensors")]) == 0
    exported = load_file(tmp_path / "net.safetensors")
    frozen = [name for name in backbone if not name.startswith([*backbone][-1].partition(".")[0])]
    assert all(torch.equal(exported[name], backbone[name]) for name in frozen)
    assert (tmp_path / "net.safetensors").stat().st_size < sum(t.nbytes for t in exported.values()) + 2000
    assert AnalysedRun.of(out).past.replay(1).clients == whole.metrics[1]["clients"]
    assert main(["branch", str(out), "--out", str(tmp_path / "branch"), "--at", "1", "--rounds", "3"]) == 0
    assert (tmp_path / "branch" / KEPT).read_bytes() == kept

    assert main(["resume", str(out), "--rounds", "3"]) == 0
    assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert (out / KEPT).read_bytes() == kept
    after, settings = (json.loads((out / f"{name}.json").read_text()) for name in ("manifest", "settings"))
    assert (after["start"], after["initial"]) == (manifest["start"], manifest["initial"])
    assert (settings["start"], settings["start_only"]) == (asked["start"], asked["start_only"])
    verdict = verify(out)
    assert verdict.whole
    assert verdict.notes == [f"{asked['start']}, the weights that it started from, is not here"]


@pytest.mark.filterwarnings("ignore:not taken from")
def test_frozen_tensors_are_in_a_folder_once(asked: dict[str, Any], tmp_path: Path) -> None:
    begun(asked, tmp_path / "run", rounds=4)
    tensors = load_file(tmp_path / "run" / KEPT)
    largest = max((t for t in tensors.values()), key=lambda t: t.nbytes).numpy().tobytes()
    assert [name for name, data in contents(tmp_path / "run").items() if largest in data] == [KEPT]
    before = (tmp_path / "run" / KEPT).stat()
    Experiment.from_directory(tmp_path / "run").changed("run.rounds", 6).job().run(tmp_path / "run", resume=True)
    after = (tmp_path / "run" / KEPT).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    begun({**asked, "frozen": ""}, tmp_path / "unfrozen")
    assert not (tmp_path / "unfrozen" / KEPT).exists()


@pytest.mark.filterwarnings("ignore:not taken from")
def test_runs_of_a_comparison_and_branches_have_links_of_one_file(asked: dict[str, Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        begun(asked, tmp_path / name)
    Experiment.from_directory(tmp_path / "one").job().branch(tmp_path / "one", tmp_path / "three", at=1)
    paths = [tmp_path / name / KEPT for name in ("one", "two", "three")]
    assert len({path.stat().st_ino for path in paths}) == 1
    paths[0].write_bytes(b"damaged")  # all of them: none is believed, and a new run writes its own
    begun(asked, tmp_path / "four")
    assert load_file(tmp_path / "four" / KEPT).keys() == load_file(asked["start"]).keys()
    assert [verify(tmp_path / name).whole for name in ("one", "three", "four")] == [False, False, True]


@pytest.mark.filterwarnings("ignore:not taken from")
def test_a_branch_from_another_process_has_a_link_too(asked: dict[str, Any], tmp_path: Path) -> None:
    begun(asked, tmp_path / "one")
    directory._written.clear()
    Experiment.from_directory(tmp_path / "one").job().branch(tmp_path / "one", tmp_path / "two", at=1)
    assert len({(tmp_path / name / KEPT).stat().st_ino for name in ("one", "two")}) == 1


@pytest.mark.filterwarnings("ignore:not taken from")
def test_where_there_are_no_links_it_is_a_copy(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError("no links here")

    begun(asked, tmp_path / "one")
    monkeypatch.setattr(os, "link", refuse)
    begun(asked, tmp_path / "two")
    one, two = (tmp_path / name / KEPT for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert one.stat().st_ino != two.stat().st_ino


@pytest.mark.filterwarnings("ignore:not taken from")
@pytest.mark.parametrize("how", ["flipped", "cut", "another network"])
def test_damage_is_refused_in_words_and_nothing_is_changed(asked: dict[str, Any], how: str, tmp_path: Path) -> None:
    out, path = tmp_path / "run", tmp_path / "run" / KEPT
    begun(asked, out)
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "flipped":
        data[-5] ^= 1
    elif how == "cut":
        del data[-4:]
    else:
        data = bytearray(Path(asked["start"]).read_bytes())
    path.write_bytes(data)
    before, words = contents(out), f"{KEPT} is not what manifest.json has the digest of: it was damaged or changed"
    for gone in (False, True):
        if gone:
            Path(asked["start"]).unlink()
        with pytest.raises(DamageError, match=words):
            Experiment.from_directory(out).job().restore(out)
        with pytest.raises(DamageError, match=words):
            Experiment.from_directory(out).job().run(out, resume=True)
        assert any(words in problem for problem in verify(out).problems)
    assert contents(out) == before


@pytest.mark.filterwarnings("ignore:not taken from")
def test_without_the_copy_a_run_goes_on_from_the_file_and_has_a_copy_again(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    begun(asked, out)
    kept = (out / KEPT).read_bytes()
    (out / KEPT).unlink()
    assert verify(out).problems == [f"{out / KEPT} is missing: no such file"]
    Experiment.from_directory(out).changed("run.rounds", 3).job().run(out, resume=True)
    assert (out / KEPT).read_bytes() == kept
    assert verify(out).whole
    (out / KEPT).unlink()
    Path(asked["start"]).unlink()
    with pytest.raises(SettingError, match=r"backbone\.safetensors is no file"):
        Experiment.from_directory(out).job()


@pytest.mark.filterwarnings("ignore:not taken from")
def test_another_file_in_its_place_is_refused_and_the_remedy_holds(asked: dict[str, Any], tmp_path: Path) -> None:
    out, start = tmp_path / "run", Path(asked["start"])
    begun(asked, out)
    torch.manual_seed(6)
    save_file(models.build("mlp", (1, 4, 4), 7).state_dict(), start)
    words = rf"Start from what it began with \(.*backbone\.safetensors as it was, or move it away: {KEPT} here has it\)"
    with pytest.raises(SettingError, match=words):
        Experiment.from_directory(out).job().restore(out)
    start.unlink()
    assert Experiment.from_directory(out).job().restore(out).round == 2
    with pytest.raises(SettingError, match=r"nowhere\.safetensors is no file"):  # what is asked for is not replaced
        Experiment.from_directory(out).changed("start", "nowhere.safetensors").job()


@pytest.mark.filterwarnings("ignore:not taken from")
@pytest.mark.parametrize("moment", ["before the manifest", "before the first checkpoint"])
def test_a_kill_at_the_start_loses_nothing(
    asked: dict[str, Any], moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        before_manifest = moment == "before the manifest"
        owner, name = (RunDirectory, "_write_manifest") if before_manifest else (Coordinator, "_start")
        patched.setattr(owner, name, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begun(asked, out)
    kept = (out / KEPT).read_bytes()
    if moment == "before the manifest":
        begun(asked, out)
    else:
        assert verify(out).whole
        Path(asked["start"]).unlink()
        Experiment.from_directory(out).job().run(out, resume=True)
    assert (out / KEPT).read_bytes() == kept
    assert not (out / "set-aside").exists()
    assert verify(out).whole


def test_a_file_of_that_name_of_somebody_else_is_set_aside(asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / KEPT).write_bytes(b"mine")
    seeded = {name: value for name, value in asked.items() if not name.startswith("start")}
    with pytest.warns(StorageWarning, match="have names that a run needs"):
        begun(seeded, tmp_path / "run")
    assert (tmp_path / "run/set-aside/1" / KEPT).read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": None}, r"start_only = '\* !last:1' says what is taken from a file: set start too"),
        ({"model": "mlp,logistic"}, "start takes the weights of one model, and model = 'mlp,logistic' names 2"),
        ({"factors": "first"}, "factors must be one of second, both, got 'first'"),
    ],
)
def test_what_does_not_go_with_a_start_is_refused(asked: dict[str, Any], change: dict[str, Any], words: str) -> None:
    described = {name: value for name, value in (asked | change).items() if value is not None}
    with pytest.raises(SettingError, match=words):
        Experiment.of(described).job()


# ---- runs from Python, and the file itself


class Tied(nn.Module):
    """Two names of one tensor, a constant that no file has, and one number."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.other = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("places", torch.arange(4), persistent=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.other(self.norm(self.one(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_module_from_python_is_kept_and_read_by_load_network(dtype: str, tmp_path: Path) -> None:
    """For several architectures one file each, by their order; those that are trained whole have none."""
    torch.manual_seed(0)
    given = {
        "plain": Model(nn.Linear(4, 3), name="plain"),
        "tied": Model(Tied(), name="tied", frozen="one other norm"),
        "seeded": Model(lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), name="seeded", frozen="0"),
    }
    settings = fl.RunSettings(rounds=1, cohort_size=3, engine="loop", dtype=dtype)
    job = Job(algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=given, settings=settings)
    job.run(tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").glob("*.safetensors")) == [
        "initial-1.safetensors", "initial-2.safetensors",
    ]  # fmt: skip
    again = dict(given)
    for i, name in ((1, "tied"), (2, "seeded")):
        blank = Model(Tied, name=name, frozen="one other norm") if name == "tied" else given[name]
        again[name] = fl.load_network(tmp_path / f"run/initial-{i}.safetensors", blank)
    settings = fl.replace(settings, rounds=2)
    other = Job(algorithm=fl.FedAvg(local=LOCAL), federation=federation(), model=again, settings=settings)
    assert other.run(tmp_path / "run", resume=True).metrics[-1]["round"] == 2


def test_the_file_is_what_safetensors_writes() -> None:
    """Types, a number without axes, and a tensor that is no contiguous one."""
    model = Model(Tied(), frozen="one other norm")
    tensors = {
        **{n: t for n, t in model.whole(0).items() if n in stored_names(model.skeleton())},
        "half": torch.arange(6).bfloat16().reshape(2, 3).T, "flag": torch.tensor([True, False]), "none": torch.zeros(0),
    }  # fmt: skip
    assert "other.weight" not in tensors
    assert "places" not in tensors
    data = b"".join(codec.pieces(tensors))
    read = safetensors.torch.load(data)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[n], t) and read[n].dtype == t.dtype for n, t in tensors.items())


def test_writing_it_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    tensors = {str(i): torch.zeros(1 << 20) for i in range(4)}
    tracemalloc.start()
    try:
        file = files.write(tmp_path, "net.safetensors", codec.pieces(tensors))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert file.digest == files.digest_of(tmp_path / "net.safetensors")
    assert peak < 1 << 20
