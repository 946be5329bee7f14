"""From words to things: algorithms, data, partitions and models by the names that people type."""

from __future__ import annotations

import dataclasses
import difflib
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
from torch import nn

from fedloom.algorithms import ALGORITHMS
from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import SettingError
from fedloom.core.optimiser import Local
from fedloom.core.random import generator
from fedloom.data import Examples, Partition, dirichlet, fashion_mnist_small, from_arrays, iid, load, shards
from fedloom.data.sources import SOURCES
from fedloom.models import MODELS, build

DATA = "fashion_mnist_small"


def algorithm(name: str, local: Local, settings: Mapping[str, str]) -> Algorithm[Any, Any]:
    """An algorithm by name, with settings as typed (`{"beta": "0.5"}`)."""
    if name not in ALGORITHMS:
        raise SettingError(f"unknown algorithm {name!r}{_meant(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}")
    kind = ALGORITHMS[name]
    types = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind) if f.name != "local"]
    values: dict[str, Any] = {}
    for key, text in settings.items():
        field, _, part = key.partition(".")
        if field not in known:
            raise SettingError(f"{name} has no setting {key!r}{_meant(key, known)}; it has {', '.join(known)}")
        if part:  # e.g. distill.lr of KT-pFL
            base = values.get(field, hyper_parameters(name)[field])
            if not isinstance(base, Local):
                raise SettingError(f"{name}.{field} has no parts; give it as {field}=VALUE")
            values[field] = _with_local(base, f"{name}.{field}", part, text)
        elif types[field] is Local:
            raise SettingError(f"{name}.{field} has parts: set {field}.lr, {field}.epochs or {field}.batch_size")
        else:
            values[field] = _parse(text, types[field], f"{name}.{field}")
    return kind(local=local, **values)


def hyper_parameters(name: str) -> dict[str, Any]:
    """An algorithm's own settings and their defaults."""
    own = vars(ALGORITHMS[name]())
    return {key: value for key, value in own.items() if key != "local"}


def data(source: str) -> tuple[Examples, Examples]:
    """(train, test) of `fashion_mnist_small`, of original files, or of a .npz file.

    Original files are named `NAME:FOLDER`, for example `cifar10:data` (`fedloom.data.load`). A .npz file holds x_train,
    y_train, x_test, y_test.

    x: images (N, H, W) or (N, H, W, 3) of uint8, images (N, C, H, W), or features (N, D); y: class labels (N,).
    """
    if source == DATA:
        return fashion_mnist_small()
    name, colon, folder = source.partition(":")
    if colon and name in SOURCES:
        loaded = load(name, folder)
        if loaded.test is None:
            raise SettingError(f"{source} has no test examples")
        return loaded.train, loaded.test
    path, names = Path(source), ("x_train", "y_train", "x_test", "y_test")
    if path.suffix != ".npz":
        raise SettingError(f"data must be {DATA!r} or a .npz file with {', '.join(names)}; got {source!r}")
    if not path.is_file():
        raise SettingError(f"there is no file {source!r}; give the path of a .npz file with {', '.join(names)}")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise SettingError(f"{source} must hold {', '.join(names)}; {', '.join(missing)} is missing")
            arrays = {name: file[name] for name in names}
    except SettingError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SettingError(
            f"{source} must hold plain arrays {', '.join(names)}, written by numpy.savez: {error}"
        ) from None
    for name, array in arrays.items():
        kinds, rule = ("iu", "integer class labels") if name[0] == "y" else ("uf", "numbers, uint8 or floating point")
        if array.dtype.kind not in kinds or not array.size:
            raise SettingError(f"{name} of {source} must hold {rule}, got {array.dtype} of shape {array.shape}")
    classes = int(max(arrays["y_train"].max(), arrays["y_test"].max())) + 1
    train = from_arrays(arrays["x_train"], arrays["y_train"], num_classes=classes, name=path.stem)
    test = from_arrays(
        arrays["x_test"], arrays["y_test"], num_classes=classes, normalise=train.normalise, name=path.stem
    )
    return train, test


def partition(text: str, labels: Any, num_clients: int, seed: int) -> Partition:
    """`iid`, `shards:S` (S shards a client) or `dirichlet:ALPHA`."""
    name, _, value = text.partition(":")
    makers: dict[str, Callable[[], Partition]] = {
        "iid": lambda: iid(labels, num_clients, seed),
        "shards": lambda: shards(labels, num_clients, _parse(value or "2", int, "partition shards:S"), seed),
        "dirichlet": lambda: dirichlet(
            labels, num_clients, _parse(value or "0.1", float, "partition dirichlet:A"), seed
        ),
    }
    if name not in makers:
        raise SettingError(
            f"unknown partition {text!r}{_meant(name, makers)}; there are iid, shards:S, dirichlet:ALPHA"
        )
    if name == "iid" and value:
        raise SettingError(f"partition iid takes no value, got {text!r}; there are iid, shards:S, dirichlet:ALPHA")
    return makers[name]()


def models(names: str, train: Examples) -> dict[str, Callable[[], nn.Module]]:
    """Builders of the architectures in a comma-separated list."""
    out: dict[str, Callable[[], nn.Module]] = {}
    for name in names.split(","):
        if name not in MODELS:
            raise SettingError(f"unknown model {name!r}{_meant(name, MODELS)}; there are {', '.join(MODELS)}")
        if name in out:
            raise SettingError(f"each model is named once, got {names!r}; clients get them in turn")
        out[name] = lambda name=name: build(name, tuple(train.shape), train.num_classes)  # type: ignore[misc]
    return out


def take_out(train: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """(the others, `count` random examples to be public)."""
    if not 0 < count < len(train):
        raise SettingError(f"public takes between 1 and {len(train) - 1} of the training examples, got {count}")
    order = generator(seed, "public").permutation(len(train))
    return train.select(np.sort(order[count:])), train.select(np.sort(order[:count]))


def _with_local(local: Local, owner: str, part: str, text: str) -> Local:
    """A `Local` with one of its (or its optimiser's) settings changed."""
    optimiser = local.optimiser
    own, inner = get_type_hints(Local), get_type_hints(type(optimiser))
    choices = [f.name for f in dataclasses.fields(local) if f.name != "optimiser"]
    choices += [f.name for f in dataclasses.fields(optimiser)]
    if part not in choices:
        raise SettingError(f"{owner} has no setting {part!r}{_meant(part, choices)}; it has {', '.join(choices)}")
    if part in own and part != "optimiser":
        return dataclasses.replace(local, **{part: _parse(text, own[part], f"{owner}.{part}")})
    changed = dataclasses.replace(optimiser, **{part: _parse(text, inner[part], f"{owner}.{part}")})
    return dataclasses.replace(local, optimiser=changed)


def _parse(text: str, kind: Any, name: str) -> Any:
    if type(None) in get_args(kind):
        if text.lower() == "none":
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_args(kind):  # Literal: the class itself says what it allows
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        value = kind(text)
    except (ValueError, KeyError, TypeError):
        raise SettingError(f"{name} must be of type {getattr(kind, '__name__', kind)}, got {text!r}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{name} must be finite, got {text!r}")
    return value


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
