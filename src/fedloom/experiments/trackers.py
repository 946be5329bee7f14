"""Send the measures of a run to TensorBoard, Weights & Biases or MLflow while it runs."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from fedloom.coordinator.descriptions import plain
from fedloom.coordinator.history import History, Record
from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import FedloomError, SettingError, warn
from fedloom.storage.files import path_of
from fedloom.wording import install

T = TypeVar("T")
Status = Literal["finished", "failed"]


class Tracker(Protocol):
    """Destination of measurements. One tracker takes one run: `start` once, `log` after each round, `finish` once."""

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the run. `settings`: how it was asked for, as in settings.json."""

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of one round; rounds come in order, 0 is before training."""

    def finish(self, status: Status) -> None:
        """Close the run."""


class TrackerWarning(UserWarning):
    """A tracker failed; the run goes on without it."""


class TensorBoard:
    """Event files in the folder `directory`, one folder for each run; no network, no TensorFlow."""

    def __init__(self, directory: str | Path) -> None:
        self._tensorboard = _import("torch.utils.tensorboard", "tensorboard")
        self.directory = path_of(directory)

    def start(self, settings: Mapping[str, Any]) -> None:
        self._writer = self._tensorboard.SummaryWriter(str(self.directory))
        self._writer.add_text("settings", "    " + json.dumps(settings, indent=2, default=str).replace("\n", "\n    "))

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()  # to be seen now, and kept if the run is killed

    def finish(self, status: Status) -> None:
        self._writer.close()


class WandB:
    """A run in a project of Weights & Biases. WANDB_MODE=offline writes to a folder that `wandb sync` sends later."""

    def __init__(self, project: str) -> None:
        self._wandb = _import("wandb", "wandb")
        self.project = project

    def start(self, settings: Mapping[str, Any]) -> None:
        self._run = self._wandb.init(
            project=self.project,
            name=_title(settings),
            config=dict(settings),
            reinit="create_new",  # two runs of one program are two runs there
            settings=self._wandb.Settings(console="off", silent=True),
        )

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=round)

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """A run in an experiment of MLflow, which is made if it does not exist.

    `uri`: of the server or store; without it, MLflow's own setting (MLFLOW_TRACKING_URI).
    """

    def __init__(self, experiment: str, uri: str | None = None) -> None:
        self._mlflow = _import("mlflow", "mlflow")
        self.experiment, self.uri = experiment, uri

    def start(self, settings: Mapping[str, Any]) -> None:
        try:
            self._client = self._mlflow.MlflowClient(self.uri)
            existing = self._client.get_experiment_by_name(self.experiment)
            number = existing.experiment_id if existing else self._client.create_experiment(self.experiment)
            self._run = self._client.create_run(number, run_name=_title(settings)).info.run_id
        except self._mlflow.exceptions.MlflowException as error:
            where, reason = self.uri or self._mlflow.get_tracking_uri(), _line(error).partition(". ")[0]
            raise SettingError(
                f"MLflow does not keep runs at {where}: {reason}. Set MLFLOW_TRACKING_URI to a server, "
                "or to file:FOLDER together with MLFLOW_ALLOW_FILE_STORE=true; databases need the whole package mlflow"
            ) from error
        params = [self._mlflow.entities.Param(n, v[:_MLFLOW_VALUE]) for n, v in _flat(settings)]
        for part in _parts(params, _MLFLOW_PARAMS):
            self._client.log_batch(self._run, params=part)

    def log(self, round: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        made = [self._mlflow.entities.Metric(n, v, now, round) for n, v in metrics.items()]
        for part in _parts(made, _MLFLOW_METRICS):
            self._client.log_batch(self._run, metrics=part)

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run, status.upper())


# What MLflow takes at most: characters of a parameter's value, parameters and metrics of a message.
_MLFLOW_VALUE, _MLFLOW_PARAMS, _MLFLOW_METRICS = 500, 100, 1000
_TRACKERS: dict[str, tuple[Callable[[str], Tracker], str]] = {
    "tensorboard": (TensorBoard, "DIR"),
    "wandb": (WandB, "PROJECT"),
    "mlflow": (MLflow, "EXPERIMENT"),
}


def tracker(text: str) -> Tracker:
    """Return the tracker that a text names.

    Args:
        text: "tensorboard:DIR", "wandb:PROJECT" or "mlflow:EXPERIMENT".

    Raises:
        SettingError: there is no such tracker, or its package is missing; names the extra.
    """
    name, _, target = text.partition(":")
    if name not in _TRACKERS or not target:
        forms = ", ".join(f"{n}:{what}" for n, (_, what) in _TRACKERS.items())
        raise SettingError(f"a tracker is one of {forms}, got {text!r}")
    return _TRACKERS[name][0](target)


def track(tracker: Tracker, settings: Mapping[str, Any] | RunSettings | None = None) -> Tracking:
    """Start a tracker and return what sends it every round: `run(..., on_round=track(tracker))`.

    As a context it also closes the tracker's run, and says whether it failed: `with track(tracker, settings) as send:
    run(..., on_round=send)`.

    Args:
        tracker: such as `fl.tracker("tensorboard:logs")`.
        settings: how the run is asked for, which the tracker shows; None: nothing.

    Raises:
        SettingError: the tracker does not start. A tracker that fails later only warns.
    """
    told = {"run": plain(settings)} if isinstance(settings, RunSettings) else settings or {}
    if not isinstance(told, Mapping):
        raise SettingError(
            f"a tracker is told how a run was asked for by a mapping or its RunSettings, got {type(told).__name__}: "
            'pass {"lr": 0.1}, or nothing'
        )
    return Tracking(tracker, told)


class Tracking:
    """Way of what is new in a history to a tracker; made by `track`."""

    def __init__(self, tracker: Tracker, settings: Mapping[str, Any]) -> None:
        self.tracker = tracker
        self._sent = -1  # last round
        self._failed = False
        try:
            tracker.start(settings)
        except FedloomError:
            raise
        except Exception as error:
            raise SettingError(
                f"{type(tracker).__name__} does not start: {_line(error)}. Repair it, or run without this tracker"
            ) from error

    def __call__(self, history: History) -> None:
        """Send the rounds that were not sent yet."""
        for record in history.metrics:
            if record["round"] > self._sent and not self._failed:
                self._attempt(self.tracker.log, record["round"], scalars(record))
                self._sent = record["round"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attempt(self.tracker.finish, "finished" if kind is None else "failed")

    def _attempt(self, send: Callable[..., None], *values: Any) -> None:
        """Call the tracker, and only warn if it fails: a lost network costs the curves there, not the run here.

        After the first failure no further round is sent.
        """
        try:
            send(*values)
        except Exception as error:
            if not self._failed:
                warn(
                    f"{type(self.tracker).__name__} failed and gets no further rounds: {_line(error)}. "
                    "The run goes on; its own files have every round",
                    TrackerWarning,
                )
            self._failed = True


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers of a record by name.

    `class_accuracy` becomes class_accuracy/0 and so on; other nested values are left out.
    """
    out = {
        name: float(value)
        for name, value in record.items()
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool)
    }
    for c, accuracy in enumerate(record.get("class_accuracy") or ()):
        if accuracy is not None:
            out[f"class_accuracy/{c}"] = float(accuracy)
    return out


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(f"this tracker needs {extra} ({error}): {install(extra)}") from error


def _title(settings: Mapping[str, Any]) -> str | None:
    """Return the name of a run at the tracker; None leaves it to the tracker."""
    run = settings.get("run")
    seed = run.get("seed") if isinstance(run, Mapping) else None
    algorithm = settings.get("algorithm")
    return None if algorithm is None else f"{algorithm}" if seed is None else f"{algorithm} seed {seed}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting and its value as text, those of settings as local.lr and so on."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
