"""From words to things: algorithms, data, partitions, models and tasks by the names that people type."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedloom.algorithms import ALGORITHMS
from fedloom.algorithms.shared.ldam import LDAM
from fedloom.core.algorithm import Algorithm
from fedloom.core.augment import Augment
from fedloom.core.choices import field_types, settable
from fedloom.core.errors import SettingError
from fedloom.core.naming import by_python_name, did_you_mean, is_python_name, plain
from fedloom.core.optimiser import Local
from fedloom.core.random import generator
from fedloom.core.task import SVM, Classification, Hinge, Task, check_task
from fedloom.data import (
    Dataset,
    Examples,
    Normalise,
    Partition,
    balanced_dirichlet,
    by_lists,
    dirichlet,
    fashion_mnist_small,
    from_huggingface,
    iid,
    label_blocks,
    load,
    lognormal,
    lognormal_sizes,
    natural,
    pathological,
    pooled,
    read_csv,
    read_npz,
    shards,
    split,
)
from fedloom.data.download import DOWNLOADS
from fedloom.data.formats import FormatError
from fedloom.data.sources import SOURCES
from fedloom.data.tables import NoColumnError
from fedloom.experiments.parts import parts, with_parts
from fedloom.experiments.words import coerce
from fedloom.models import MODELS, build
from fedloom.wire.registration import class_numbers

DATA = "fashion_mnist_small"
_WHOLE = re.compile(r"0|[1-9][0-9]*")  # as a table spells whole numbers
TASKS: dict[str, Callable[[], Task]] = {
    "classification": Classification,
    "hinge": Hinge,
    "svm": SVM,
    "svm_mean": functools.partial(SVM, reduction="mean", ridge=0.01),
    "ldam": LDAM,
    "ldam_drw": functools.partial(LDAM, drw=0.8),
}

# ---- algorithms

# Of other libraries, and often asked for: of these nothing is meant by a name that looks like theirs.
_NOT_HERE = {
    "ditto", "fedrep", "fedbabu", "fedrod", "fedbn", "fedamp", "fedphp", "fedala", "fedproto", "feddistill",
    "fedgen", "fedkd", "fml", "fedgh", "fedpcl", "fedcp", "gpfl", "fedpac", "fedcac", "fedgc", "fedas",
    "feddbe", "fedavgdbe", "fedmtl", "mocha", "apple", "fedadam", "fedyogi", "fedadagrad", "fedlc", "fedlaw",
}  # fmt: skip


def label(name: str) -> str:
    """Return the name of an algorithm's settings and results: its own, without the module of one from outside."""
    return name.rpartition(":")[2]


def kind(name: str) -> type[Algorithm[Any, Any]]:
    """Return the class of an algorithm, by its name or by `module:Class`."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name == "apfl":
        raise SettingError(
            "algorithm 'apfl' may mean that of Ni, Shen and Zhang (2022, decomposed weights) or that of Deng, Kamani "
            "and Mahdavi (2020, mixed models): write apfl_ni for the first; the second is not there"
        )
    if plain(name) in _NOT_HERE:
        raise SettingError(
            f"an algorithm is one that `fedloom algorithms` lists or your own as module:Class, got {name!r}, which is "
            "not built in: docs/coming-from.md says what comes near, docs/algorithms.md how to write it"
        )
    if "," in name:
        raise SettingError(
            f"an algorithm is one name, got {name!r}: put spaces between several, fedloom compare "
            f"{' '.join(name.split(','))}"
        )
    if ":" not in name:
        raise SettingError(
            f"unknown algorithm {name!r}{did_you_mean(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}, "
            "and your own as module:Class"
        )
    found = by_python_name(name, "algorithm")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise SettingError(f"algorithm {name!r} must be a class derived from fedloom.Algorithm, got {found!r}")
    if lacks := sorted(getattr(found, "__abstractmethods__", ())):
        raise SettingError(
            f"an algorithm must say what init, a client's work and a round are, got {name!r} without "
            f"{', '.join(lacks)}: write {'it' if len(lacks) == 1 else 'them'}, or derive it from fedloom.FedAvg, which "
            "has them"
        )
    return found


def algorithm(name: str, local: Local, settings: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Make an algorithm by name, with settings as typed or as in a file (`{"beta": "0.5"}`, `{"distill.lr": 0.01}`).

    Raises:
        SettingError: a setting is unknown or of another type, or has neither a value nor a default.
    """
    owner, known, types = label(name), _own(name), field_types(kind(name))
    defaults = hyper_parameters(name)
    values: dict[str, Any] = {}
    changed: dict[str, dict[str, Any]] = {}  # parts, for example lr of KT-pFL's distill
    for key, value in settings.items():
        field, _, part = key.partition(".")
        whole = defaults.get(field)
        if field not in known:
            raise SettingError(
                f"{owner} has no setting {key!r}{did_you_mean(key, known)}; it has {', '.join(known) or 'none'}"
            )
        if dataclasses.is_dataclass(whole):
            if not part:
                raise SettingError(f"{owner}.{field} has parts: set {', '.join(f'{field}.{n}' for n in parts(whole))}")
            changed.setdefault(field, {})[part] = value
        elif part:
            raise SettingError(f"{owner}.{field} has no parts; give it as {field}=VALUE")
        else:
            values[field] = coerce(value, types[field], f"{owner}.{field}")
    values |= {field: with_parts(defaults[field], f"{owner}.{field}", given) for field, given in changed.items()}
    if missing := lacking(name, values):
        raise SettingError(
            f"{owner} has settings without a default: give {', '.join(f'{key}=VALUE' for key in missing)} (--set)"
        )
    return kind(name)(local=local, **values)


def lacking(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the names of an algorithm's settings that have neither a default nor a value in `settings`."""
    return [key for key in _own(name) if key not in settings and key not in hyper_parameters(name)]


def hyper_parameters(name: str) -> dict[str, Any]:
    """Return an algorithm's own settings that have a default, with their defaults."""
    out: dict[str, Any] = {}
    for key, field in _own(name).items():
        if field.default is not dataclasses.MISSING:
            out[key] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            out[key] = field.default_factory()
    return out


def _own(name: str) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind(name)) if field.init and field.name != "local"}


def written(algorithm: Algorithm[Any, Any]) -> dict[str, Any]:
    """Return an algorithm's own settings as a settings file has them: all that words can set."""
    out: dict[str, Any] = {}
    derived = {field.name for field in dataclasses.fields(algorithm) if not field.init}
    for key, its in field_types(type(algorithm)).items():
        if key in (own := vars(algorithm)) and key not in {"local", *derived}:
            if dataclasses.is_dataclass(own[key]):
                out[key] = parts(own[key])
            elif settable(its):
                out[key] = own[key]
    return out


# ---- data


def data(source: str, *, whole: bool = False) -> Dataset:
    """Return the data set that a source names.

    `whole`: no random test rows are drawn from a table without `split`.

    | written | is |
    |---|---|
    | `fashion_mnist_small` | the embedded subset |
    | `NAME:FOLDER` | original files (`fedloom.data.load`), for example `cifar10:data` |
    | `FILE.npz` | `fedloom.data.read_npz` |
    | `FILE.csv`, `FILE.tsv`, `FILE.csv?label=y&prepare=standard` | `fedloom.data.read_csv`, arguments by name |
    | `huggingface:NAME` | `fedloom.data.from_huggingface` |
    | `module:name` | a `Dataset`, or a function that returns one |
    """
    name, colon, rest = source.partition(":")
    if source == DATA:
        return Dataset(*fashion_mnist_small())
    if colon and name in SOURCES:
        return _published(name, rest)
    if name == "huggingface" and rest:
        return from_huggingface(rest)
    path, question, arguments = source.partition("?")
    if is_table(source):
        return _table(path, arguments if question else None, whole)
    if source.endswith(".npz"):
        return read_npz(source, every_class=not whole)
    if is_own_data(source) and not (did_you_mean(name, SOURCES) and _unknown_module(name)):
        found = by_python_name(source, "data")
        found = found() if callable(found) else found
        if isinstance(found, Dataset):
            return found
        if isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Examples) for part in found):
            return Dataset(*found)
        raise SettingError(
            f"data {source!r} must give a fedloom.data.Dataset, or (train, test), got {type(found).__name__}"
        )
    if source in SOURCES:
        raise SettingError(f"data {source!r} needs the folder with its files: {source}:FOLDER")
    if Path(source).is_dir():
        raise SettingError(
            f"a folder is read as NAME:FOLDER, where NAME says what is in it, got {source!r}: write images:{source} "
            "for {train,test}/<class>/*.png; `fedloom data sources` lists the others; of clients that another library "
            "has written: docs/coming-from.md"
        )
    raise SettingError(
        f"unknown data {source!r}{did_you_mean(name, [DATA, *SOURCES])}; there are {DATA}, original files as "
        f"NAME:FOLDER with one of {', '.join(SOURCES)}, FILE.npz, FILE.csv, huggingface:NAME, and your own as "
        "module:name"
    )


def is_own_data(source: str) -> bool:
    """Return whether a source is somebody's own module:name, and not a data set of a registry."""
    return is_python_name(source) and source.partition(":")[0] not in (*SOURCES, "huggingface")


def is_table(source: str) -> bool:
    """Return whether a source is a table in a text file."""
    return source.partition("?")[0].endswith((".csv", ".tsv"))


def _published(name: str, folder: str) -> Dataset:
    try:
        return load(name, folder)
    except FormatError:
        raise
    except ValueError as error:
        if name not in DOWNLOADS:
            raise
        raise ValueError(f"{error}; fedloom data download {name} {folder or 'FOLDER'} fetches them") from error


def _unknown_module(name: str) -> bool:
    """Return whether no module here has this name, which is then the misspelt name of a data set."""
    return not Path(f"{name.partition('.')[0]}.py").exists() and find_spec(name.partition(".")[0]) is None


_ARGUMENTS = {"label": str, "client": str, "split": str, "prepare": str, "drop": list, "categories": list, "gaps": list}


def _table(path: str, written: str | None, whole: bool) -> Dataset:
    """Read a table, with the arguments that follow its path."""
    form = f"{path}?label=y&client=c&split=s&drop=a,b&categories=d&gaps=none&prepare=standard"
    given: dict[str, Any] = {}
    for pair in [] if written is None else written.split("&"):
        key, _, value = pair.partition("=")
        if key not in _ARGUMENTS or not value or key in given:
            raise SettingError(
                f"of a table one says, each once, {form}, got {pair!r}{did_you_mean(key, _ARGUMENTS.keys() - {key})}"
            )
        given[key] = value.split(",") if _ARGUMENTS[key] is list else value
    if whole and "split" not in given:
        given["test_fraction"] = 0.0
    try:
        return read_csv(path, **given)
    except NoColumnError as error:
        if "label" in given or "label" not in error.columns:
            raise
        raise SettingError(
            f"{error.rule}: say which column is the label: {path}?label=NAME; what else columns may be is said as "
            f"{form}"
        ) from error
    except ValueError as error:
        if written is not None or not Path(path).exists():
            raise
        raise SettingError(f"{error}; what columns are is said as {form}") from error


@dataclass(frozen=True)
class _Partition:
    """Declare a partition that has a name: its form, and types and defaults of what stands behind the name."""

    form: str
    make: Callable[..., Partition]  # (dataset, number of clients, seed, *what stands behind the name)
    kinds: tuple[Any, ...] = ()
    defaults: tuple[Any, ...] = ()


def _by_labels(make: Callable[..., Partition], **more: Any) -> Callable[..., Partition]:
    """Make a partition by the labels of the training examples."""
    return lambda data, clients, seed, *given: make(data.train.y, clients, *given, seed=seed, **more)


def _natural(data: Dataset, clients: int, seed: int) -> Partition:
    if data.owners is None:
        raise SettingError(
            f"partition natural needs data with natural clients, and {data.train.name} has none; "
            f"use another: {PARTITIONS}"
        )
    return natural(data.owners, data.train.owners)


def _disjoint_sizes(data: Dataset, clients: int, seed: int, per_client: int, kind: str) -> Partition:
    rows = lognormal_sizes(data.train.y, clients, seed, per_client)
    return Partition.from_lists(rows, f"lognormal sizes s={per_client}", seed)


_PARTITIONS = {
    "iid": _Partition("iid", _by_labels(iid)),
    "shards": _Partition("shards:S", _by_labels(shards), (int,), (2,)),
    "dirichlet": _Partition("dirichlet:ALPHA", _by_labels(dirichlet), (float,), (0.1,)),
    "plain_dirichlet": _Partition(
        "plain_dirichlet:ALPHA", _by_labels(dirichlet, min_size=2, capped=False), (float,), (0.1,)
    ),
    "balanced_dirichlet": _Partition("balanced_dirichlet:BETA", _by_labels(balanced_dirichlet), (float,), (0.1,)),
    "pathological": _Partition("pathological:S", _by_labels(pathological), (int,), (2,)),
    "lognormal": _Partition(
        "lognormal:SIGMA:S:LEAST",
        lambda data, clients, seed, *given: lognormal(data.train.y, clients, seed, *given),
        (float, int, int),
        (2.0, 2, 5),
    ),
    "lognormal_sizes": _Partition(
        "lognormal_sizes:S:disjoint|overlapping",
        _disjoint_sizes,
        (int, Literal["disjoint", "overlapping"]),
        (3, "disjoint"),
    ),
    "label_blocks": _Partition("label_blocks:S", _by_labels(label_blocks), (int,), (2,)),
    "natural": _Partition("natural", _natural),
    "lists": _Partition("lists:FILE.json", lambda data, clients, seed, path: by_lists(_lists(path)), (str,), ("",)),
}
PARTITIONS = ", ".join(kind.form for kind in _PARTITIONS.values())


def handed_out(text: str, dataset: Dataset, num_clients: int, seed: int) -> tuple[Dataset, Partition]:
    """Return the data and a partition of them; where clients share examples, each has a copy of its own."""
    name, *values = text.split(":")
    if name != "lognormal_sizes" or "overlapping" not in values:
        return dataset, partition(text, dataset, num_clients, seed)
    per_client, _ = _parameters(text)
    rows = lognormal_sizes(dataset.train.y, num_clients, seed, per_client, overlapping=True)
    owners = np.repeat(np.arange(num_clients), [len(own) for own in rows])
    dataset = dataset.select(np.concatenate(rows))
    return dataset, dataclasses.replace(natural(owners), name=f"{text}, with copies", seed=seed)


def _parameters(text: str) -> list[Any]:
    """Return the values that follow a partition's name, with defaults for those that are missing."""
    name, colon, rest = text.partition(":")
    if name not in _PARTITIONS:
        raise SettingError(f"unknown partition {text!r}{did_you_mean(name, _PARTITIONS)}; there are {PARTITIONS}")
    found = _PARTITIONS[name]
    if not found.kinds and colon:
        raise SettingError(f"partition {name} takes no value, got {text!r}; there are {PARTITIONS}")
    given = rest.split(":", len(found.kinds) - 1) if rest else []
    read = [coerce(value, kind, f"partition {found.form}") for value, kind in zip(given, found.kinds, strict=False)]
    return [*read, *found.defaults[len(read) :]]


def partition(text: str, dataset: Dataset, num_clients: int, seed: int) -> Partition:
    """Make a partition by name.

    `natural` has as many clients as the data have owners, `lists:FILE.json` as many as the file has lists.
    """
    given = _parameters(text)
    return _PARTITIONS[text.partition(":")[0]].make(dataset, num_clients, seed, *given)


def _lists(path: str) -> list[list[int]]:
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(
            f"partition lists:FILE.json must name a file of lists of rows, got {path!r}: {error}"
        ) from None
    if not isinstance(found, list) or not all(isinstance(rows, list) for rows in found):
        raise SettingError(f"{path} must hold one list of rows for each client, [[0, 5], [1, 2, 3], ...]")
    if any(not isinstance(row, int) or isinstance(row, bool) for rows in found for row in rows):
        raise SettingError(f"{path} must hold rows as whole numbers, counted from 0")
    return found


def augment(text: str, train: Examples) -> Examples:
    """Return the same examples, changed at random while training.

    `text`: `none`, or parts as in `crop:4:reflect,flip,cutout:16`.
    """
    if text == "none":
        return train
    settings: dict[str, Any] = {"crop": 0, "flip": False, "cutout": 0}
    form = "none, or some of crop:PIXELS, crop:PIXELS:reflect, flip, cutout:PIXELS with commas between them"
    for part in text.split(","):
        name, *values = part.split(":")
        if name == "flip" and not values:
            settings["flip"] = True
        elif name in ("crop", "cutout") and 1 <= len(values) <= (2 if name == "crop" else 1):
            settings[name] = coerce(values[0], int, f"data.augment {name}")
            if values[1:]:
                settings["padding"] = coerce(values[1], Literal["zero", "reflect"], "data.augment crop")
        else:
            raise SettingError(f"data.augment must be {form}, got {part!r} in {text!r}")
    if train.x.ndim != 4:
        raise SettingError(
            f"data.augment = {text!r} needs images, and {train.name} holds examples of {tuple(train.shape)}"
        )
    return dataclasses.replace(train, augment=Augment.of(train.normalise, **settings))


def take_out(dataset: Dataset, count: int, seed: int) -> tuple[Dataset, Examples]:
    """Take out `count` random training examples to be public, and return (the others, these)."""
    train = dataset.train
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
        listed = ", ".join(map(repr, names[:12])) + ", ..." * (len(names) > 12)
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


# ---- models and tasks


def models(names: str, train: Examples) -> dict[str, Callable[[], nn.Module]]:
    """Return builders of the architectures in a comma-separated list, by name; your own as `module:name`."""
    out: dict[str, Callable[[], nn.Module]] = {}
    for name in names.split(","):
        if name in out or label(name) in out:
            raise SettingError(f"each model is named once, got {names!r}; clients get them in turn")
        if name in MODELS:
            out[name] = lambda name=name: build(name, tuple(train.shape), train.num_classes)  # type: ignore[misc]
        elif ":" in name:
            found = by_python_name(name, "model")
            if not callable(found):
                raise SettingError(f"model {name!r} must be a function or class that makes an nn.Module, got {found!r}")
            out[label(name)] = found
        else:
            raise SettingError(
                f"unknown model {name!r}{did_you_mean(name, MODELS)}; there are {', '.join(MODELS)}, "
                "and your own as module:name"
            )
    return out


def task(text: str) -> Task:
    """Return a task by name.

    It is `classification` (cross-entropy), `hinge`, `svm` or `svm_mean` (hinge and ridge), `ldam` or `ldam_drw`
    (margins by label counts), or a `module:name`.
    """
    if text in TASKS:
        return TASKS[text]()
    if ":" not in text:
        raise SettingError(
            f"unknown task {text!r}{did_you_mean(text, TASKS)}; there are {', '.join(TASKS)}, and module:name"
        )
    found = by_python_name(text, "task")
    found = found() if isinstance(found, type) else found
    check_task(found, f"task {text!r}")
    made: Task = found
    return made
