"""What devices have in their folders: their own numbers while a run goes on, and the models of its last round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import call, error
from fedloom.core import tree
from fedloom.core.errors import RefusedError, SettingError
from fedloom.deploy.device import Membership
from fedloom.deploy.device.device_results import DeviceResults, model_of_device
from fedloom.deploy.server.serve import hand_out_models
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.predictions import predict
from fedloom.testing.in_process import InProcess
from site_devices import audit, members, serve, settings, simulated, source_of_server, write_sites

pytest.importorskip("sklearn")
pytestmark = pytest.mark.filterwarnings("ignore:.*with nothing here, which the other rows fill")


def run(folder: Path, words: dict[str, Any]) -> tuple[list[Membership], list[list[str]], str]:
    """Return the devices after a run, what each has printed, and what the server says of their models."""
    devices, said = members(folder), list[list[str]]()
    for device in devices:
        said.append([])
        device.say = said[-1].append
    job = serve(folder, words, InProcess(devices), source_of_server(folder))
    history = job.run(folder / "out")
    assert job.fleet is not None
    ask, sizes = job.fleet.ask, list[int]()

    def noted(*args: Any) -> Iterator[tuple[str, Any]]:
        for name, answer in ask(*args):
            sizes.append(len(answer))
            yield name, answer

    job.fleet.ask = noted  # type: ignore[method-assign]
    end = hand_out_models(job, folder / "out", history)
    assert max(sizes) < 300  # no model goes back
    job.fleet.close()  # type: ignore[attr-defined]
    return devices, said, end


def results(device: Membership) -> Path:
    (folder,) = (device.folder / "results").iterdir()
    return folder


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("algorithm", "more", "models"),
    [
        ("ditto", {}, {"global", "personal"}),
        ("ditto", {"run.stateless": True}, {"global", "personal"}),
        ("fedavg", {}, {"global"}),
        ("local_only", {}, {"personal"}),
    ],
)
def test_a_device_has_its_models_and_its_curves(
    algorithm: str, more: dict[str, Any], models: set[str], tmp_path: Path, capsys: Any
) -> None:
    """They are those of the simulation, bit for bit, and predict what the server's run predicts."""
    write_sites(tmp_path)
    words = settings(algorithm, **{"run.eval_every": 1, "run.cohort_size": 5})
    devices, said, end = run(tmp_path, words | more)
    assert end == "5 of 5 devices have their models of round 3 in their folders"
    simulated(tmp_path, words)
    restored = Experiment.from_directory(tmp_path / "simulated").job().restore(tmp_path / "simulated")
    for k, device in enumerate(devices):
        folder = results(device)
        assert {path.stem for path in folder.glob("*.safetensors")} == models
        for kind in models:
            found, _, (task, _) = model_of_device(folder, kind)  # type: ignore[arg-type]
            want = restored.personal_weights(k) if kind == "personal" else restored.global_weights()["mlp"]
            assert all(torch.equal(a, b) for a, b in zip(tree.leaves(found.weights), tree.leaves(want), strict=True))
            assert found.round == 3
            assert task == restored.engine.population.task
        curves = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
        trained = [each["round"] for each in curves if "train_loss" in each]
        assert trained == [1, 2, 3]
        shown = {each["round"]: each for each in curves if "rmse" in each}
        personal = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
        assert shown[0]["rmse"] == personal[0]["personal_by_client"][str(k)]  # before training
        assert shown[3]["rmse"] == personal[3]["personal_by_client"][str(k)]
        assert set(shown) == {0, 1, 2, 3}
        assert said[k][0].startswith(f"joined as client {k}: {algorithm}, 3 rounds, mlp")
        assert any(line.startswith("round 2: train_loss ") for line in said[k])
        assert any(line.startswith("round 3: rmse ") for line in said[k])
        assert said[k][-1].split(":")[0] == f"{sorted(models)[-1]} model after round 3"
    kept = [line for line in audit(tmp_path) if line["event"] == "kept"]
    assert len(kept) == 5 * len(models)
    new = tmp_path / "test.csv"
    if "global" in models:
        here = predict(tmp_path / "out", f"{new}")
        words_of = ["predict", str(results(devices[1])), "--data", str(new), "--out"]
        _, out, _ = call(capsys, *words_of, f"{tmp_path}/p.csv", "--client", "global")
        assert "global model after round 3 on" in out
        assert (tmp_path / "p.csv").read_text() == here.csv(tmp_path / "q.csv").read_text()
        scored = ["--data", str(new), "--measures", "mae", "--out"]
        call(capsys, "evaluate", str(results(devices[1])), *scored, f"{tmp_path}/a.csv", "--client", "global")
        call(capsys, "evaluate", f"{tmp_path}/out", *scored, f"{tmp_path}/b.csv")
        assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    if "personal" in models:
        theirs = predict(tmp_path / "simulated", f"{new}", client=1)
        _, out, _ = call(capsys, "predict", str(results(devices[1])), "--data", str(new), "--out", f"{tmp_path}/r.csv")
        assert f"personal model of device {devices[1].name} after round 3" in out
        assert (tmp_path / "r.csv").read_text() == theirs.csv(tmp_path / "s.csv").read_text()


@pytest.mark.slow
def test_what_is_refused_in_words(tmp_path: Path, capsys: Any) -> None:
    write_sites(tmp_path)
    devices, _, _ = run(tmp_path, settings("fedavg", **{"run.rounds": 1}))
    folder, new = results(devices[0]), ["--data", f"{tmp_path}/test.csv", "--out", f"{tmp_path}/p.csv"]
    with pytest.raises(SettingError, match=r"this device has no personal model of the run in .*, but global"):
        model_of_device(folder, "personal")
    for more in (["--at", "1"], ["--client", "3"], ["--model", "mlp"]):
        for command in ("predict", "evaluate"):
            assert "has the models of the last round: leave --at" in error(capsys, command, str(folder), *new, *more)
    assert "of a device, and a model is measured there on new rows" in error(capsys, "evaluate", str(folder))
    source = Path(devices[0].source.partition("?")[0])
    aside = source.rename(tmp_path / "aside")
    assert "new rows are prepared by the examples of this device" in error(capsys, "predict", str(folder), *new)
    aside.rename(source)
    right = (folder / "device.json").read_text()
    for entry, value in {"preparation": None, "name": None, "models": 3, "threshold": "x", "model": "other"}.items():
        content = json.loads(right)
        if value is None:
            del content[entry]
        (folder / "device.json").write_text(json.dumps(content | ({} if value is None else {entry: value})))
        said = error(capsys, "predict", str(folder), *new)
        assert f"{folder}/device.json " in said, entry
    (folder / "device.json").write_text(right)
    (folder / "global.safetensors").write_bytes(b"x")
    assert "is gone or was changed since the run has ended" in error(capsys, "predict", str(folder), *new)
    (folder / "device.json").write_text("{}")
    assert "does not say what this device has" in error(capsys, "predict", str(folder), *new)


def joined(folder: Path) -> list[Membership]:
    """Return a device that has joined."""
    write_sites(folder)
    devices = members(folder)[:1]
    serve(folder, settings("fedavg", **{"run.cohort_size": 1}), InProcess(devices), source_of_server(folder))
    return devices


@pytest.mark.parametrize("final", [3, {}, {"kind": "../x"}, {"kind": "global", "threshold": "0"}, {"kind": ["global"]}])
def test_a_server_brings_two_kinds_of_models(final: Any, tmp_path: Path) -> None:
    (device,) = joined(tmp_path)
    assert device.controller is not None
    with pytest.raises(RefusedError, match="a model of a finished run is the global or the personal one"):
        device.controller._keep(final, {"exchange": "evaluate", "round": 0}, {})
    with pytest.raises(RefusedError, match="a model of a finished run"):  # of a training
        device.controller._keep({"kind": "global", "threshold": None}, {"exchange": 0, "round": 0}, {})


@pytest.mark.slow
def test_the_rounds_of_a_device_that_comes_later(tmp_path: Path) -> None:
    """What it measures first is of the model of that round, and not of the initial one."""
    write_sites(tmp_path)
    words = settings("fedavg", **{"run.rounds": 1, "run.cohort_size": 5, "run.eval_every": 1})
    devices, _, _ = run(tmp_path, words)
    shutil.rmtree(devices[3].folder / "results")
    again = members(tmp_path)
    job = serve(tmp_path, words | {"run.rounds": 3}, InProcess(again), source_of_server(tmp_path))
    metrics = job.run(tmp_path / "out", resume=True).metrics
    curves = [json.loads(line) for line in (results(again[3]) / "curves.jsonl").read_text().splitlines()]
    shown = {each["round"]: each["rmse"] for each in curves if "rmse" in each}
    assert shown == {t: metrics[t]["personal_by_client"]["3"] for t in (2, 3)}
    assert [each["round"] for each in curves if "train_loss" in each] == [2, 3]


def test_a_folder_that_takes_no_numbers_costs_no_answer(tmp_path: Path) -> None:
    write_sites(tmp_path)
    devices, said = members(tmp_path), list[str]()
    devices[0].say = said.append
    (devices[0].folder / "results").write_text("")  # in the place of the folder
    job = serve(tmp_path, settings("fedavg", **{"run.rounds": 1}), InProcess(devices), source_of_server(tmp_path))
    history = job.run(tmp_path / "out")
    assert "lost" not in history.metrics[-1]
    assert any("curves.jsonl lacks round 1: cannot write in" in line for line in said)
    assert hand_out_models(job, tmp_path / "out", history).startswith("4 of 5 devices have their models")


@pytest.mark.slow
def test_a_device_that_was_away_gets_its_models_of_the_finished_run(tmp_path: Path) -> None:
    """`fedloom serve --resume` of a finished run computes nothing, and hands out the same models."""
    write_sites(tmp_path)
    words = settings("ditto", **{"run.rounds": 2, "run.cohort_size": 5})
    devices, _, _ = run(tmp_path, words)
    before = {path.name: path.read_bytes() for path in results(devices[3]).glob("*.safetensors")}
    log = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    shutil.rmtree(devices[3].folder / "results")
    (late,) = members(tmp_path)[3:4]
    job = serve(tmp_path, words, InProcess([late]), source_of_server(tmp_path), min_devices=1)
    end = hand_out_models(job, tmp_path / "out", job.run(tmp_path / "out", resume=True))
    assert end.startswith("1 of 5 devices have their models of round 2 in their folders; --resume gives the others")
    assert {path.name: path.read_bytes() for path in results(late).glob("*.safetensors")} == before
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == log


def test_runs_of_two_servers_whose_ids_begin_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    """Which nobody else on the host may open; those of an earlier version are shut too."""
    write_sites(tmp_path)
    device = members(tmp_path)[1]
    for name in ("runs", "results"):
        (device.folder / name).mkdir(mode=0o755)
    runs = ("0" * 31 + "1", "0" * 31 + "2")
    for run in runs:
        kept = DeviceResults(device.folder / "results", run, None, {"id": run}, print)  # type: ignore[arg-type]
        assert kept.folder == device.folder / "results" / run
    words = settings("fedavg", **{"run.cohort_size": 1, "run.rounds": 1})
    serve(tmp_path, words, InProcess([device]), source_of_server(tmp_path)).run(tmp_path / "out")
    (run,) = {each.name for each in (device.folder / "runs").iterdir()}
    assert run == json.loads((tmp_path / "devices.json").read_text())["run"] == results(device).name
    for name in ("runs", "results"):
        assert (device.folder / name).stat().st_mode & 0o777 == 0o700
