"""Change data as settings say before clients get them: fewer examples, public ones, other inputs, other classes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedloom.core.augment import Augment
from fedloom.core.errors import SettingError
from fedloom.core.grammar import Named, by_name, make_named
from fedloom.core.random import generator
from fedloom.data import (
    Arrival,
    Dataset,
    Drift,
    Examples,
    Growing,
    LabelDrift,
    Normalise,
    OffsetDrift,
    RotationDrift,
    Window,
    pooled,
    split,
)
from fedloom.experiments.catalogue.data_by_name import data
from fedloom.tables.targets import class_numbers
from fedloom.wording import some_of

_WHOLE = re.compile(r"0|[1-9][0-9]*")  # as a table spells whole numbers


AUGMENTATIONS = by_name(
    (
        Named(
            ("crop:PIXELS", "crop:PIXELS:reflect"),
            lambda crop, *padding: {"crop": crop, **({"padding": padding[0]} if padding else {})},
            (int, Literal["zero", "reflect"]),
        ),
        Named(("flip",), lambda: {"flip": True}),
        Named(("cutout:PIXELS",), lambda cutout: {"cutout": cutout}, (int,)),
    )
)
"""Each makes arguments of `Augment`."""


def augment(text: str, train: Examples) -> Examples:
    """Return the same examples, changed at random while training.

    `text`: `none`, or parts as in `crop:4:reflect,flip,cutout:16`.
    """
    if text == "none":
        return train
    settings: dict[str, Any] = {"crop": 0, "flip": False, "cutout": 0}
    for part in text.split(","):
        settings |= make_named("augmentation", part, AUGMENTATIONS, before="none")
    if train.x.ndim != 4 or not isinstance(train.normalise, Normalise):
        raise SettingError(
            f"data.augment = {text!r} needs images, and {train.name} holds examples of {tuple(train.shape)}"
        )
    return dataclasses.replace(train, augment=Augment.of(train.normalise, **settings))


ARRIVALS = by_name(
    (Named(("growing:START:BY",), Growing, (float, int)), Named(("window:SHARE:BY",), Window, (float, int)))
)


def _drift(form: str, kind: type[Any], of: type[Any]) -> Named:
    """Name a drift of all clients, or of a share of them."""
    return Named((form, f"{form}:SHARE"), lambda by, share=1.0, *, seed: kind(by, share=share, seed=seed), (of, float))


DRIFTS = by_name(
    (
        _drift("labels:EVERY", LabelDrift, int),
        _drift("rotation:EVERY", RotationDrift, int),
        _drift("offset:STEP", OffsetDrift, float),
    )
)


def changes(arrives: str, drift: str, seed: int) -> tuple[Arrival | None, Drift | None]:
    """Return the rules by which data arrive and drift, by their names; None for `all` and `none`.

    Raises:
        SettingError: there is no such rule, or a value is missing, malformed or out of range.
    """
    arrival = None if arrives == "all" else make_named("arrival", arrives, ARRIVALS, before="all", seed=seed)
    return arrival, None if drift == "none" else make_named("drift", drift, DRIFTS, before="none", seed=seed)


def take_out(dataset: Dataset, count: int, seed: int) -> tuple[Dataset, Examples]:
    """Take out `count` random training examples to be public, and return (the others, these)."""
    train = dataset.train
    if train.groups is not None:
        raise SettingError(
            f"public examples are drawn row by row, which parts the groups of {train.name}, got data.public = {count}: "
            "name other data with data.public_source, or leave group out"
        )
    free = np.arange(len(train)) if dataset.held_out is None else np.flatnonzero(~dataset.held_out)
    if not 0 < count < len(free):
        raise SettingError(f"public takes between 1 and {len(free) - 1} of the training examples, got {count}")
    taken = np.sort(free[generator(seed, "public").permutation(len(free))[:count]])
    return dataset.select(np.setdiff1d(np.arange(len(train)), taken)), train.select(taken)


def public(source: str, like: Examples, count: int, seed: int) -> Examples:
    """Return `count` random training examples of other data (0: all), which networks are to see as those of `like`."""
    found = data(source, whole=True).train
    if like.preparation is not None or found.preparation is not None:
        raise SettingError(
            f"public examples of a prepared table are rows of it, got data.public_source = {source!r}: set data.public "
            "alone, or leave prepare out"
        )
    if found.shape != like.shape or found.x.dtype != like.x.dtype:
        raise SettingError(
            f"public examples must be like the clients', {tuple(like.shape)} of {like.x.dtype}, got "
            f"{tuple(found.shape)} of {found.x.dtype} from data.public_source = {source!r}: name other data"
        )
    if not 0 <= count <= len(found):
        raise SettingError(f"data.public takes 0 (all) to {len(found)} of the examples of {source}, got {count}")
    rows = generator(seed, "public").permutation(len(found))[: count or len(found)]
    return dataclasses.replace(found.select(np.sort(rows)), normalise=like.normalise)


def public_of_server(source: str, like: Examples, count: int, seed: int, normalised: str) -> Examples:
    """Return public examples where the clients' examples are elsewhere.

    It is the same as `public`, but networks see the examples as the source or `normalised` says.
    """
    own = normalise(normalised, data(source, whole=True)).train.normalise
    return public(source, dataclasses.replace(like, normalise=own), count, seed)


def cut(dataset: Dataset, count: int, seed: int) -> Dataset:
    """Return the data with `count` random training examples, in their order; classes keep their shares."""
    y, available = dataset.train.y, len(dataset.train)
    if not 0 < count <= available:
        raise SettingError(f"data.examples takes 1 to {available} of the training examples, got {count}")
    if count == available:
        return dataset
    classes = torch.zeros(available, dtype=torch.int64) if y.is_floating_point() else y
    return dataset.select(split(pooled(available), classes, count / available, seed, stream=2)[1].indices)


def first_classes(dataset: Dataset, count: int) -> Dataset:
    """Return the data with the first `count` classes alone, such as the letters a to j, and no other class."""
    C = dataset.train.num_classes
    if not 1 < count <= C or dataset.train.y.is_floating_point():
        raise SettingError(f"data.classes takes 2 to {C} of the {C} classes of {dataset.train.name}, got {count}")
    return dataset.first_classes(count)


def numbered(dataset: Dataset, count: int, names: Sequence[str] = ()) -> Dataset:
    """Return the data with classes numbered as on all devices; some classes may have no example here.

    `count`: data.classes, 0 for the classes that the data have. Where labels are numbers, label v is class v. Where
    they are words, all classes are named here, unless `names` says what devices call them.
    """
    train = dataset.train
    if train.y.is_floating_point():
        if count:
            raise SettingError(
                f"data.classes counts classes, got {count} and targets that are numbers in {train.name}: leave it out"
            )
        return dataset
    named = train.classes or (class_numbers(train.num_classes) if train.columns else ())
    counted = bool(named) and all(map(_WHOLE.fullmatch, named))
    if 0 < count < train.num_classes and not counted:
        dataset = first_classes(dataset, count)
    if names or (count and (counted or not train.classes)):
        return _called(dataset, names or class_numbers(count))
    if count > train.num_classes:
        raise SettingError(
            f"labels that are words name each class, and data.classes = {count}, got {train.num_classes} in "
            f"{train.name}, {', '.join(map(repr, train.classes[:12]))}: name all classes on each device (folders of "
            "images, values of the label column), or number them from 0"
        )
    return dataset


def _called(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Return the data with classes of these names, in this order; its own classes must be among them."""
    train, places = dataset.train, {name: k for k, name in enumerate(names)}
    own = train.classes or class_numbers(train.num_classes)
    if unknown := [name for name in own if name not in places]:
        listed = some_of(map(repr, names), 12)
        raise SettingError(
            f"on all devices the classes are {listed}, got {unknown[0]!r} in {train.name}: name or number classes "
            "alike, or set data.classes to how many there are, counted from 0"
        )
    renumbered = torch.tensor([places[name] for name in own])
    kept = () if tuple(names) == class_numbers(len(names)) else tuple(names)

    def of(part: Examples) -> Examples:
        return dataclasses.replace(part, y=renumbered[part.y], num_classes=len(names), classes=kept)

    return dataset._replace(train=of(train), test=dataset.test and of(dataset.test))


def normalise(text: str, dataset: Dataset) -> Dataset:
    """Return the data with other network inputs.

    `text`: `source`, `places`, or means and standard deviations as in `0.5/0.5`.
    """
    if text == "source":
        return dataset
    if dataset.train.has_tokens:
        raise SettingError(
            f"token ids are given to a network as they are, and data.normalise = {text!r} would make numbers of those "
            f"of {dataset.train.name}: leave it out"
        )
    if text == "places":
        return dataset.standardised()
    form = "source, places, or MEANS/STDS by channel, with commas, of values that are 0 to 1 for images, as in 0.5/0.5"
    try:
        means, stds = (tuple(float(number) for number in part.split(",")) for part in text.split("/"))
        made = Normalise(means, stds, 1 / 255 if dataset.train.x.dtype == torch.uint8 else 1.0)
    except ValueError as error:
        raise SettingError(f"data.normalise must be {form}, got {text!r}: {error}") from error
    channels = dataset.train.shape[0] if len(dataset.train.shape) == 3 else 1
    if len(means) not in (1, channels):
        raise SettingError(
            f"data.normalise needs 1 mean or {channels}, as many as {dataset.train.name} has channels, got {text!r}"
        )
    test = dataset.test and dataclasses.replace(dataset.test, normalise=made)
    return dataset._replace(train=dataclasses.replace(dataset.train, normalise=made), test=test)
