"""A model of a finished run: the global one or a client's own, after the last round or another that was kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedloom.coordinator import descriptions as facts
from fedloom.coordinator.directory import RunDirectory
from fedloom.coordinator.history import History
from fedloom.coordinator.job import Job
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.task import ChoosesThreshold, Task
from fedloom.core.types import Weights
from fedloom.data.federation import Federation
from fedloom.experiments.experiment import Experiment
from fedloom.wording import did_you_mean, some_of

_SHOWN = 8  # names in a message


@dataclass(frozen=True)
class ModelAfterRound:
    """A model of a run."""

    name: str
    """The architecture."""
    model: Model
    weights: Weights
    whose: str
    """"global model", or "model of client 3"."""
    round: int


@dataclass(frozen=True)
class TrainedModel(ModelAfterRound):
    """A model of a run, and the job that trained it."""

    job: Job


def validated_round(directory: str | os.PathLike[str]) -> int:
    """Return the best round of a run on validation data.

    Raises:
        SettingError: no round was evaluated on validation data.
    """
    history = History.read(directory)
    best, main = history.validated_round, history.headline
    best_end = "highest" if main.better == "high" else "lowest"
    if best is None:
        raise SettingError(
            f"the best round is that with the {best_end} val_{main.name}, which no round of {directory} has, and test "
            "data choose no round: name one by its number, or hold validation examples out in another run "
            "(--val-fraction)"
        )
    return best


def client_number(federation: Federation, client: int | str) -> int:
    """Return the number of a client that is named by its number or its name.

    A text is a name first; where no client is called so, and names are not all numbers, it may be a number.

    Raises:
        SettingError: there is no client of this name.
    """
    if isinstance(client, int):
        return client
    names = federation.partition.clients
    if client in names:
        return names.index(client)
    if client.isdecimal() and not (names and all(name.isdecimal() for name in names)):
        return int(client)
    there = (
        f"the clients are {some_of(map(repr, names), _SHOWN)}"
        if names
        else f"clients are the numbers 0 to {federation.num_clients - 1}"
    )
    raise SettingError(
        f"a client is named by its name or number, and {there}, got {client!r}"
        f"{did_you_mean(client, names)} [FL-RUN-021]"
    )


def trained_model(
    directory: str | os.PathLike[str],
    job: Job,
    *,
    client: int | str | None = None,
    at: int | str | None = None,
    model: str | None = None,
) -> TrainedModel:
    """Return a model of the run in a directory.

    Args:
        directory: of the run.
        job: what it ran.
        client: whose personal model; None: the global one.
        at: a round that has a checkpoint, or "best": the best round on validation data; None: the newest.
        model: which architecture of the global model, where there are several.

    Raises:
        SettingError: there is no such model or round, or the run in `directory` is another one.
        StorageError: a file of the run is damaged, or the round has no checkpoint.
    """
    round = _round(directory, at)
    restored = job.restore(directory, round)
    p = job.population
    if client is not None:
        number = client_number(job.federation, client)
        if model is not None:
            raise SettingError(f"a client has one model: give --client {client} or --model {model}, not both")
        weights, name = restored.personal_weights(number), p.assignment[number]
        names = job.federation.partition.clients
        whose = f"model of client {names[number] if names else number}"
        return TrainedModel(name, p.models[name], weights, whose, restored.round, job)
    models = restored.global_weights()
    if not models:
        raise SettingError(f"{type(job.algorithm).__name__} has no global model; name a client with --client 0")
    if model is None and len(models) > 1:
        raise SettingError(f"the run has the models {', '.join(models)}; choose one with --model")
    name = model or next(iter(models))
    if name not in models:
        raise SettingError(f"the run has no model {name!r}; it has {', '.join(models)}")
    return TrainedModel(name, p.models[name], models[name], "global model", restored.round, job)


def _round(directory: str | os.PathLike[str], at: int | str | None) -> int | None:
    if at is None or isinstance(at, int):
        return at
    if at != "best":
        raise SettingError(f"at is the number of a round that was kept, or 'best', got {at!r}")
    best = validated_round(directory)
    if best not in RunDirectory(directory).checkpoints.rounds():
        raise SettingError(
            f"round {best} is the best of {directory} on validation data, and has no checkpoint: start runs with "
            f"--keep-best; fedloom replay {directory} best computes what its clients trained again"
        )
    return best


def task_of(found: TrainedModel, directory: str | os.PathLike[str]) -> tuple[Task, float | None]:
    """Return the task by which a model of a run predicts, and the threshold that validation chose after its round.

    Where nothing was to be chosen, it is the run's task and None.

    Raises:
        SettingError: no threshold was chosen after this round.
    """
    task = found.job.task
    if not isinstance(task, ChoosesThreshold) or task.chosen_by is None:
        return task, None
    records = [record for record in History.read(directory).metrics if record["round"] == found.round]
    threshold = records[0].get("threshold") if records else None
    if threshold is None:
        raise SettingError(
            f"validation examples chose no threshold after round {found.round} of {directory}: name another round "
            "(--at)"
        )
    return task.at(threshold), threshold


def job_of(experiment: Experiment, directory: str | os.PathLike[str]) -> Job:
    """Return the job of a run, with its data read again.

    Raises:
        SettingError: the data cannot be read, or have changed since.
    """
    recorded = RunDirectory(directory).manifest()["federation"].get("parts", {})
    source = experiment.data.source
    try:
        federation = experiment.federation()
    except (ValueError, OSError) as error:
        raise SettingError(
            f"the run in {directory} was trained on {source}, by which new rows are prepared, and it cannot be read: "
            f"{error}; bring it back, or call this where the run was started ({Path.cwd()} is the folder now)"
        ) from error
    found = facts.parts(federation)["parts"]
    if changed := sorted(name for name in {*recorded, *found} if recorded.get(name) != found.get(name)):
        raise SettingError(
            f"{source} has changed since the run in {directory} was trained on it ({', '.join(changed)}), so new rows "
            "would be prepared in another way: bring it back as it was, or train again"
        )
    return experiment.job(federation)
