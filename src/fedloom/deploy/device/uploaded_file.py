"""File of weights that a device uploads instead of training."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedloom.coordinator.part import gradients_of
from fedloom.core import tree
from fedloom.core.errors import SettingError
from fedloom.core.model import Model
from fedloom.core.types import Weights
from fedloom.deploy.device.data_manager import DataManager
from fedloom.experiments import catalogue
from fedloom.experiments.bought_models import BoughtModel, check_method
from fedloom.experiments.experiment import Experiment
from fedloom.storage.files import path_of


def weights_in(
    file: str, name: str, experiment: Experiment, models: Mapping[str, Model], data: DataManager
) -> tuple[str, Weights]:
    """Return the network of a file and its weights, which are read and tried before the device registers.

    Args:
        file: where it is.
        name: of the network; "" where there is but one.
        experiment: the settings of the server.
        models: the networks of the settings, by name.
        data: of the device.

    Raises:
        SettingError: the run takes no such model, it is not said of which network it is, or the file is refused.
        CodecError: it has not the tensors of the network.
    """
    check_method(catalogue.kind(experiment.algorithm))
    if gradients_of(experiment.run) is not None:
        raise SettingError(
            f"privacy = {experiment.run.privacy!r} counts the noise of training, which a file that was trained "
            "elsewhere does not have: leave --upload out, or do not join"
        )
    name = name or (next(iter(models)) if len(models) == 1 else "")
    if name not in models:
        raise SettingError(
            f"--upload {file} has the weights of one of the networks {', '.join(models)}, got --model {name!r}: name it"
        )
    train, found = data.federation.train, BoughtModel(str(path_of(file).absolute()), name)
    weights = found.tried(models[name], train.shape, train.num_classes).read(models[name])
    return name, tree.cast(weights, dtype=getattr(torch, experiment.run.dtype))
