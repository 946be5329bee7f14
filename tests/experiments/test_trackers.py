"""Trackers get every number of every round, and cannot stop a run."""

from __future__ import annotations

import json
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedloom import FedAvg, History, RunSettings, run
from fedloom.core.errors import SettingError
from fedloom.experiments.trackers import (
    MLflow,
    TensorBoard,
    TrackerWarning,
    WandB,
    _flat,
    _parts,
    scalars,
    track,
    tracker,
)
from tiny import LOCAL, federation, linear

SETTINGS = {
    "algorithm": "fedavg",
    "data": {"source": "clouds", "partition": None},
    "local": {"lr": 0.1, "epochs": 2},
    "run": {"seed": 3, "rounds": 3},
}
Curves = dict[str, list[tuple[int, float]]]


class Kept:
    """A tracker that keeps what it gets, and breaks in one round."""

    def __init__(self, breaks_in: int | None = None) -> None:
        self.breaks_in = breaks_in
        self.calls: list[Any] = []

    def start(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(("start", dict(settings)))

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        self.calls.append((round, dict(metrics)))
        if round == self.breaks_in:
            raise ConnectionError("no route to host\nand much more")

    def finish(self, status: str) -> None:
        self.calls.append(("finish", status))


def train(on_round: Callable[[History], None]) -> History:
    settings = RunSettings(rounds=3, cohort_size=2, seed=3)
    return run(FedAvg(local=LOCAL), federation(), linear, settings, on_round=on_round)


def curves(history: History) -> Curves:
    """What every tracker must have."""
    out: Curves = {}
    for record in history.metrics:
        for name, value in scalars(record).items():
            out.setdefault(name, []).append((record["round"], value))
    return out


def test_scalars_of_a_record() -> None:
    record = {
        "round": 4,
        "clients": [3, 1],
        "failed": {"2": "lost"},
        "train_loss": 0.5,
        "bytes_up": 1200,
        "forgetting": None,
        "class_accuracy": [0.25, None, 1.0],
        "personal_by_client": {"0": 0.5},
        "flag": True,
    }
    assert scalars(record) == {
        "train_loss": 0.5,
        "bytes_up": 1200.0,
        "class_accuracy/0": 0.25,
        "class_accuracy/2": 1.0,
    }
    assert scalars({"round": 0, "class_accuracy": None}) == {}


def test_every_round_is_sent_once_and_in_order() -> None:
    kept = Kept()
    with track(kept, SETTINGS) as send:
        history = train(send)
        send(history)  # nothing is new
    assert kept.calls == [
        ("start", SETTINGS),
        *((r["round"], scalars(r)) for r in history.metrics),
        ("finish", "finished"),
    ]
    assert [call[0] for call in kept.calls[1:-1]] == [0, 1, 2, 3]
    assert {"global_accuracy", "personal_accuracy", "class_accuracy/2"} <= set(kept.calls[2][1])


def test_without_a_context_the_run_stays_open() -> None:
    kept = Kept()
    train(track(kept))
    assert [call[0] for call in kept.calls] == ["start", 0, 1, 2, 3]


def test_a_tracker_is_told_run_settings_too() -> None:
    kept = Kept()
    track(kept, RunSettings(rounds=3, seed=7))
    ((_, told),) = kept.calls
    assert (told["run"]["rounds"], told["run"]["seed"]) == (3, 7)
    with pytest.raises(SettingError, match=r"by a mapping or its RunSettings, got FedAvg: pass \{"):
        track(Kept(), FedAvg())  # type: ignore[arg-type]


def test_a_failed_run_is_marked() -> None:
    kept = Kept()
    with pytest.raises(RuntimeError, match="mine"), track(kept):
        raise RuntimeError("mine")
    assert kept.calls[-1] == ("finish", "failed")


def test_a_tracker_that_breaks_warns_once_and_the_run_goes_on() -> None:
    class Lost(Kept):
        def finish(self, status: str) -> None:
            super().finish(status)
            raise ConnectionError("still no route to host")

    kept = Lost(breaks_in=1)
    message = r"Lost failed and gets no further rounds: no route to host\. "
    with pytest.warns(TrackerWarning, match=message) as seen, track(kept) as send:
        history = train(send)
    assert len(seen) == 1
    assert len(history.metrics) == 4
    assert [call[0] for call in kept.calls] == ["start", 0, 1, "finish"]


def test_settings_bear_their_place_and_long_lists_come_in_parts() -> None:
    told = {"a": {"b": {"c": 0.1}, "text": "x"}, "d": [1, None]}
    assert dict(_flat(told)) == {"a.b.c": "0.1", "a.text": "x", "d": "[1, null]"}
    assert [list(part) for part in _parts(range(5), 2)] == [[0, 1], [2, 3], [4]]


def test_a_tracker_that_does_not_start_is_an_error_before_the_run() -> None:
    class Down(Kept):
        def start(self, settings: Mapping[str, Any]) -> None:
            raise ConnectionError("no route to host")

    with pytest.raises(SettingError, match=r"Down does not start: no route to host\. .* without this tracker"):
        track(Down())


# ---- the real ones, offline


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with track(tracker(f"tensorboard:{tmp_path / 'events'}"), SETTINGS) as send:
        history = train(send)
    read = EventAccumulator(str(tmp_path / "events")).Reload()
    found = {n: [(e.step, e.value) for e in read.Scalars(n)] for n in read.Tags()["scalars"]}
    assert set(found) == set(curves(history))
    for name, points in curves(history).items():
        assert found[name] == [(t, pytest.approx(value, rel=1e-6)) for t, value in points], name  # float32 there
    (text,) = read.Tensors("settings/text_summary")
    assert json.loads(text.tensor_proto.string_val[0]) == SETTINGS


def test_tensorboard_has_each_round_at_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen: list[int] = []
    send = track(TensorBoard(tmp_path))

    def look(history: History) -> None:
        send(history)
        seen.append(len(EventAccumulator(str(tmp_path)).Reload().Scalars("global_accuracy")))

    train(look)
    send.tracker.finish("finished")
    assert seen == [2, 3, 4]


@pytest.mark.slow
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = (tmp_path / "store").as_uri()
    settings = {**SETTINGS, "note": "x" * 900, "many": {str(i): i for i in range(150)}}
    for _ in range(2):  # the second run finds the experiment
        with track(MLflow("fashion", store), settings) as send:
            history = train(send)
    with pytest.raises(RuntimeError), track(MLflow("fashion", store)):
        raise RuntimeError

    import mlflow

    client = mlflow.MlflowClient(store)
    runs = client.search_runs([client.get_experiment_by_name("fashion").experiment_id])
    assert sorted(r.info.status for r in runs) == ["FAILED", "FINISHED", "FINISHED"]
    found = next(r for r in runs if r.info.status == "FINISHED")
    assert found.info.run_name == "fedavg seed 3"
    params = found.data.params
    assert params["local.lr"] == "0.1"
    assert params["data.partition"] == "null"
    assert params["note"] == "x" * 500
    assert params["many.149"] == "149"
    for name, points in curves(history).items():
        assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] == points, name


@pytest.mark.slow
def test_mlflow_says_where_runs_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(SettingError, match=r"does not keep runs at nowhere://x: .*MLFLOW_TRACKING_URI to a server"):
        track(tracker("mlflow:fashion"), SETTINGS)


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run, a log in LevelDB's format: blocks of 32 KiB, records with a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes(), 7, b""  # after the header of the file
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


@pytest.mark.slow
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    import wandb

    try:
        with track(WandB("fashion"), SETTINGS) as send:
            history = train(send)
        with pytest.raises(RuntimeError), track(tracker("wandb:fashion"), SETTINGS):
            raise RuntimeError
    finally:
        wandb.teardown()
    found: Curves = {}
    exits = []
    runs = []
    for folder in sorted((tmp_path / "wandb").glob("offline-run-*")):
        (file,) = folder.glob("run-*.wandb")
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                runs.append(record.run)
            elif kind == "exit":
                exits.append(record.exit.exit_code)
            elif kind == "history":
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                for name, value in items.items():
                    if not name.startswith("_"):
                        found.setdefault(name, []).append((items["_step"], value))
    assert found == curves(history)
    assert sorted(exits) == [0, 1]
    assert {(r.project, r.display_name) for r in runs} == {("fashion", "fedavg seed 3")}
    config = {u.key: json.loads(u.value_json) for u in runs[0].config.update}
    assert config["local"] == SETTINGS["local"]


# ---- by name


@pytest.mark.slow
def test_trackers_by_name(tmp_path: Path) -> None:
    made = tracker("tensorboard:C:/runs/first")
    assert isinstance(made, TensorBoard)
    assert made.directory == Path("C:/runs/first")
    assert isinstance(tracker("wandb:fashion"), WandB)
    assert isinstance(tracker("mlflow:fashion"), MLflow)


@pytest.mark.parametrize("text", ["", "tensorboard", "tensorboard:", "comet:x"])
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=f"tensorboard:DIR, wandb:PROJECT, mlflow:EXPERIMENT, got '{text}'"):
        tracker(text)


@pytest.mark.parametrize(
    ("text", "package"), [("tensorboard:x", "torch.utils.tensorboard"), ("wandb:x", "wandb"), ("mlflow:x", "mlflow")]
)
def test_a_missing_package_names_the_extra(text: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = text.partition(":")[0]
    with pytest.raises(
        SettingError, match=rf"needs {extra} .*pip install '<PATH>\[{extra}\]', where <PATH> is fedloom's"
    ):
        tracker(text)


def test_warnings_may_be_errors() -> None:
    """Whoever asks for it is stopped by a tracker's failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TrackerWarning):
            train(track(Kept(breaks_in=0)))
