"""Algorithms, data, partitions, samplers, models and tasks by the names that people type."""

from __future__ import annotations

from fedloom.experiments.catalogue.algorithms_by_name import (
    algorithm,
    hyper_parameters,
    kind,
    label,
    lacking,
    setting_keys,
    written,
)
from fedloom.experiments.catalogue.attacks_by_name import ATTACKS, attack
from fedloom.experiments.catalogue.data_by_name import (
    data,
    is_own_data,
    is_sites,
    is_table,
    names_clients,
    own_tokeniser,
)
from fedloom.experiments.catalogue.data_changes import (
    augment,
    changes,
    cut,
    first_classes,
    normalise,
    numbered,
    public,
    public_of_server,
    take_out,
)
from fedloom.experiments.catalogue.models_and_tasks import TASKS, models, task
from fedloom.experiments.catalogue.partitions import PARTITIONS, handed_out, partition
from fedloom.experiments.catalogue.parts_by_name import part, schedule
from fedloom.experiments.catalogue.samplers import ARRIVING, SAMPLERS, sampler

__all__ = [
    "ARRIVING",
    "ATTACKS",
    "PARTITIONS",
    "SAMPLERS",
    "TASKS",
    "algorithm",
    "attack",
    "augment",
    "changes",
    "cut",
    "data",
    "first_classes",
    "handed_out",
    "hyper_parameters",
    "is_own_data",
    "is_sites",
    "is_table",
    "kind",
    "label",
    "lacking",
    "models",
    "names_clients",
    "normalise",
    "numbered",
    "own_tokeniser",
    "part",
    "partition",
    "public",
    "public_of_server",
    "sampler",
    "schedule",
    "setting_keys",
    "take_out",
    "task",
    "written",
]
