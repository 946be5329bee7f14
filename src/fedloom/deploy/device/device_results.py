"""Results of a run in a device's folder: its own numbers by round, in the end the models for `fedloom predict`.

    results/RUN/curves.jsonl            a line for each training and evaluation of this device
    results/RUN/global.safetensors      the global model, by the names of the network's own state_dict
    results/RUN/personal.safetensors    that by which this device is evaluated, where it is another one
    results/RUN/device.json             settings, source and preparation of the examples, threshold, digests of the two

RUN is the run's id, whole: servers draw their own, so no run writes into the folder of another. Whoever predicts reads
the device's own examples again, by which new rows are prepared, as for any run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fedloom.core import tree
from fedloom.core.errors import RefusedError, SettingError, StorageError
from fedloom.core.model import Model
from fedloom.core.task import ChoosesThreshold, FitsTargets, TargetMoments, Task
from fedloom.core.task_measures import values_of_sums
from fedloom.core.types import Weights
from fedloom.deploy.device.data_manager import DataManager, load_examples
from fedloom.deploy.device_statistics import read_moments, read_preparation
from fedloom.engines.message import EVALUATING, Answer, EvaluationResult, Request
from fedloom.engines.non_finite import mean_losses
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.experiments.export import export
from fedloom.experiments.prediction_rows import RowReader
from fedloom.experiments.trained_model import ModelAfterRound
from fedloom.experiments.weights_file import load_network, load_weights
from fedloom.storage import files
from fedloom.storage.strict_json import parse, pretty

Kind = Literal["global", "personal"]
KINDS: tuple[Kind, Kind] = ("global", "personal")
DOCUMENT, CURVES = "device.json", "curves.jsonl"


class DeviceResults:
    """Folder with a device's numbers and models of one run. `facts`: the content of `device.json` but for the models.

    `say`: called with a line for each round of this device, and once the models are there.
    """

    def __init__(
        self, folder: Path, run: str, task: Task, facts: Mapping[str, Any], say: Callable[[str], object]
    ) -> None:
        self.folder, self.task, self.facts, self.say = folder / run, task, facts, say
        self._models: dict[str, str] = {}

    def note(self, request: Request, answer: Answer, *, initial: bool) -> None:
        """Write the device's own numbers of a training or an evaluation, and say them.

        `initial`: whether the model is that before the first round, which counts as round 0.
        """
        call = request.call
        round = call.round + (not initial)
        numbers: dict[str, float | int | None] = {}
        if call.exchange == EVALUATING:
            if not isinstance(answer.upload, EvaluationResult):
                return
            result: EvaluationResult = tree.take(answer.upload, 0)
            if not (count := int(result.examples)):
                return
            values = values_of_sums(self.task, result.sums, count, result.scores)
            before = "val_" if call.split == "val" else ""
            numbers = {before + name: _finite(value) for name, value in values.items()} | {before + "examples": count}
        else:
            losses = mean_losses(request, answer)
            numbers = {"exchange": int(call.exchange), "train_loss": _finite(next(iter(losses.values()), math.nan))}
        try:
            self._make_folder()
            with (self.folder / CURVES).open("a", encoding="ascii") as file:
                file.write(json.dumps({"round": round, **numbers}) + "\n")
        except (OSError, StorageError) as error:  # the server gets its answer all the same
            self.say(f"{self.folder / CURVES} lacks round {round}: {error}")
        shown = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None and name != "exchange"]
        self.say(f"round {round}: {', '.join(shown) or 'trained'}")

    def _make_folder(self) -> None:
        files.make(self.folder.parent, private=True)
        files.make(self.folder)

    def keep(self, kind: Kind, model: Model, weights: Any, round: int, threshold: float | None) -> None:
        """Write a model of the finished run.

        Raises:
            RefusedError: it is none.
        """
        if not isinstance(weights, Weights):
            raise RefusedError(f"the {kind} model is {type(weights).__name__}, and no weights of {model.name}")
        self._make_folder()
        path = export(model, weights, self.folder / f"{kind}.safetensors", overwrite=True)
        self._models[kind] = files.digest(path.read_bytes())
        content = {"format": 1, "round": round, "threshold": threshold, **self.facts, "models": self._models}
        files.write(self.folder, DOCUMENT, (pretty(content) + "\n").encode())
        self.say(f"{kind} model after round {round}: {path}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def is_of_device(folder: Path) -> bool:
    """Return whether a folder has the models of a device."""
    return (folder / DOCUMENT).is_file()


def model_of_device(folder: Path, kind: Kind | None) -> tuple[ModelAfterRound, RowReader, tuple[Task, float | None]]:
    """Return a model that a device has of a finished run, the reader of new rows, and the task by which it predicts.

    `kind`: None: the personal model, where there is one.

    Raises:
        SettingError: there is no such model, it was changed, or the device's examples are gone.
    """
    try:
        content = parse((folder / DOCUMENT).read_bytes())
        models, source, name = content["models"], str(content["source"]), str(content["model"])
        experiment = Experiment.of(content["settings"])
        threshold, round = content["threshold"], int(content["round"])
        preparation, whose = content["preparation"], str(content["name"] or content["id"])
        if not isinstance(models, dict) or type(threshold) not in (float, type(None)):
            raise ValueError("models or threshold are of another kind")
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise SettingError(f"{folder / DOCUMENT} does not say what this device has ({error!s:.200})") from None
    kind = kind or ("personal" if "personal" in models else "global")
    if kind not in models:
        raise SettingError(f"this device has no {kind} model of the run in {folder}, but {', '.join(models)}")
    path = folder / f"{kind}.safetensors"
    if not path.is_file() or files.digest(path.read_bytes()) != models[kind]:
        raise SettingError(f"{path} is gone or was changed since the run has ended: bring it back")
    try:
        data = DataManager(load_examples(source), experiment.data, experiment.partition_seed)
    except (ValueError, OSError) as error:
        raise SettingError(
            f"new rows are prepared by the examples of this device, {source}, which cannot be read: call this where "
            f"fedloom join was called ({Path.cwd()} is the folder now), or bring them back ({error})"
        ) from error
    if data.is_prepared_by_all:
        data.prepare(read_preparation(preparation))
    train = data.federation.train
    task = catalogue.task(experiment.task)
    if content.get("moments") is not None and isinstance(task, FitsTargets):
        columns = train.num_classes if train.y.is_floating_point() else 0
        task = task.fit(TargetMoments(*read_moments(content["moments"], columns)))
    if threshold is not None and isinstance(task, ChoosesThreshold):
        task = task.at(threshold)
    networks = experiment.models(train)
    if name not in networks:
        raise SettingError(f"{folder / DOCUMENT} names the network {name!r:.80}, and there are {', '.join(networks)}")
    model = networks[name]
    if experiment.frozen:  # the tensors that the server had, which no seed makes again
        model = load_network(path, model)
    whose = f"{kind} model of device {whose}" if kind == "personal" else "global model"
    experiment = replace(experiment, data=replace(experiment.data, source=source))
    reader = RowReader(train, experiment, data.federation.partition.indices)
    return ModelAfterRound(name, model, load_weights(path, model), whose, round), reader, (task, threshold)
