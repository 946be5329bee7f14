"""Tell the targets of a federation, and check that a task can learn them."""

from __future__ import annotations

import numpy as np

from fedloom.core.errors import SettingError
from fedloom.core.task import ChoosesThreshold, TargetMoments, Task, targets_of
from fedloom.data import Federation
from fedloom.tasks.regression import mean_in_order, target_columns


def check_targets(federation: Federation, task: Task) -> None:
    """Raise SettingError where the targets are of another kind than the task learns."""
    kind, y, name = targets_of(task), federation.train.y, type(task).__name__
    given = f"{str(y.dtype).removeprefix('torch.')} of shape {('N', *y.shape[1:])}".replace("'", "")
    if kind == "classes" and y.is_floating_point():
        raise SettingError(
            f"targets of the task {name} are class numbers (integers), got {given}: take a task for numbers (--task "
            "regression) or for several labels (--task multi_label), or read classes (?label=COLUMN) [FL-TASK-003]"
        )
    if (kind == "pixels") != federation.train.has_pixels:
        remedy = (
            "give from_arrays(images, masks), integers of the shape of the images, or folders of both "
            "(images:FOLDER?masks=FOLDER)"
            if kind == "pixels"
            else "take task=fedloom.Segmentation() (--task segmentation), or give one class, number or set of labels "
            "of each image"
        )
        of_pixels = "a class for each pixel of an image"
        raise SettingError(
            f"the task {name} learns {of_pixels}, got {given} for inputs of {tuple(federation.train.shape)}: {remedy}"
            if kind == "pixels"
            else f"the task {name} learns no masks, got {of_pixels}, {given}: {remedy}"
        )
    if kind == "pixels":
        if federation.train.augment is not None:
            raise SettingError(
                f"augmentation changes inputs and no targets, and those of the task {name} are of their pixels, got "
                f"{federation.train.augment}: leave augment out (--augment none)"
            )
        return
    if kind != "tokens" and not y.is_floating_point() and y.ndim > 1:
        raise SettingError(
            f"the task {name} learns one class, number or set of labels of an example, got a target for each of "
            f"{y.shape[1]} places, {given}: take task=fedloom.NextToken() (--task next_token), or give the class of "
            "each sequence, (N,)"
        )
    if kind == "tokens" and (y.is_floating_point() or not federation.train.has_tokens):
        raise SettingError(
            f"targets of the task {name} are token ids (integers) of sequences of tokens, got {given} for inputs of "
            f"{str(federation.train.x.dtype).removeprefix('torch.')}: give "
            "from_arrays(tokens, fedloom.data.next_tokens(tokens)), tokens of integers (N, T)"
        )
    if kind not in ("classes", "tokens") and not y.is_floating_point():
        raise SettingError(
            f"targets of the task {name} are floating point numbers, got class numbers, {given}: read the column as a "
            "number (?target=COLUMN, or from_arrays(x, y.astype(numpy.float32))), or take a task for classes (--task "
            "classification) [FL-TASK-004]"
        )
    for part in ("train", "test", "public"):
        examples = getattr(federation, part)
        if kind == "labels" and examples is not None and not bool(((examples.y == 0) | (examples.y == 1)).all()):
            other = examples.y[(examples.y != 0) & (examples.y != 1)][0]
            raise SettingError(
                f"labels of the task {name} are 0 or 1, got {float(other):g} in {part}: give one column of 0 and 1 for "
                "each label"
            )


def check_validation(federation: Federation, task: Task) -> None:
    """Raise SettingError where validation examples are to choose a threshold, and none can."""
    if not isinstance(task, ChoosesThreshold) or task.chosen_by is None:
        return
    remedy = "hold more out (val_fraction, --val-fraction 0.2), or set a threshold, such as threshold = 0.5"
    if federation.local_val is None or not len(federation.local_val.indices):
        raise SettingError(
            f"the task {type(task).__name__} chooses its threshold on validation examples of clients, got none: "
            f"{remedy}"
        )
    train = federation.train
    if train.remote is not None:  # whose labels stay with devices
        return
    y = train.y.cpu().numpy()[federation.local_val.indices]
    if not (y == 1).any():
        raise SettingError(
            f"the task {type(task).__name__} chooses its threshold on validation examples, got none of class 1 among "
            f"{len(y):,}: {remedy}"
        )


def target_moments(federation: Federation) -> TargetMoments:
    """Return mean and deviation of each target over the training examples of all clients.

    Sums are added in the order of the clients, first those of the targets, then those of their squared distances from
    the mean. Devices have sent these when they registered.
    """
    if federation.train.remote is not None:
        if (known := federation.train.remote.get("moments")) is None:
            raise SettingError(
                "a task that standardises its targets needs their sums, which devices send when they register, got "
                "none of this run: begin it anew, or set task = 'regression?standardise=false'"
            )
        return TargetMoments(tuple(known["mean"]), tuple(known["deviation"]))
    columns = target_columns(federation.train.y.cpu().numpy())
    own = [columns[federation.partition.rows(k)] for k in range(federation.num_clients)]
    count = sum(map(len, own))
    mean = mean_in_order([rows.sum(0) for rows in own], count)
    squares = mean_in_order([np.square(rows - mean).sum(0) for rows in own], count)
    return TargetMoments(tuple(map(float, mean)), tuple(map(float, np.sqrt(squares))))
