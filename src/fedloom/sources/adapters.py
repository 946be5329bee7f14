"""Data sets of other libraries: map-style ones of PyTorch, and those of Hugging Face."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays, missing_classes
from fedloom.data.normalise import Normalise
from fedloom.sources.constants import NORMALISE
from fedloom.sources.folders import pillow
from fedloom.tables.data_frames import from_frame, number
from fedloom.wording import did_you_mean, install, local_path, some_of

_TRIED = 16  # items read twice: a flip that half of the items get is missed once in 65,536 data sets


class MapStyle(Protocol):
    """Data set that PyTorch calls map-style."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


def from_torch(
    dataset: MapStyle,
    *,
    num_classes: int | None = None,
    normalise: Normalise | None = None,
    name: str | None = None,
) -> Examples:
    """Make `Examples` of a sized PyTorch data set whose items are pairs (x, label), read once in order.

    Random transforms are refused, since every item is read once. Augmentation is `Examples(augment=...)`.

    Args:
        dataset: x is an image of Pillow, grey (L) or in colour (RGB), or a uint8 or floating point tensor or array:
            image (C, H, W) or (H, W), or features (D,). label is an integer from 0.
        num_classes: without it, the largest label + 1.
        normalise: as of `from_arrays`.
        name: what reports call the examples; without it, the name of the class.

    Returns:
        The examples, in the order of the data set.

    Raises:
        ValueError: the data set has no length or no item, an item is not such a pair, items differ in shape or type,
            or one is another when it is read again.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ValueError(
            f"dataset must be map-style, with __len__ and __getitem__, got {type(dataset).__name__}: "
            "collect an iterable data set into a list of pairs first [FL-DATA-002]"
        )
    pairs = (_pair(i, dataset[i]) for i in range(len(dataset)))
    x, y = _collect(pairs, len(dataset))
    for i in range(min(_TRIED, len(x))):
        if not np.array_equal(x[i], _array(i, dataset[i][0]), equal_nan=x.dtype.kind == "f"):
            raise ValueError(
                f"items must be the same each time, got another item {i} at a second reading: leave random transforms "
                "out, and augment batches in training, dataclasses.replace(examples, augment=fedloom.Augment.of("
                "examples.normalise, crop=4, flip=True))"
            )
    made = from_arrays(
        x, y, num_classes=num_classes, normalise=normalise, name=type(dataset).__name__ if name is None else name
    )
    return _called(made, getattr(dataset, "classes", None))


class _Known(NamedTuple):
    """A data set of the Hugging Face hub: its columns, and what it is called here."""

    x: str
    label: str
    normalise: str | None
    config: str | None = None
    client: str | None = None


HUGGINGFACE = {
    "ylecun/mnist": _Known("image", "label", "mnist"),
    "zalando-datasets/fashion_mnist": _Known("image", "label", "fashion_mnist"),
    "uoft-cs/cifar10": _Known("img", "label", "cifar10"),
    "uoft-cs/cifar100": _Known("img", "fine_label", "cifar100"),
    "flwrlabs/femnist": _Known("image", "character", None, client="writer_id"),
    "flwrlabs/cinic10": _Known("image", "label", "cinic10"),
    "ufldl-stanford/svhn": _Known("image", "label", "svhn", config="cropped_digits"),
}


def from_huggingface(
    source: Any,
    *,
    x: str | None = None,
    label: str | None = None,
    client: str | None = None,
    config: str | None = None,
    normalise: Normalise | None = None,
    cache: str | None = None,
) -> Dataset:
    """Return a data set of Hugging Face's `datasets`; a name is fetched from the hub if it is not a local folder.

    The columns of `ylecun/mnist`, `zalando-datasets/fashion_mnist`, `uoft-cs/cifar10`, `uoft-cs/cifar100`,
    `flwrlabs/femnist`, `flwrlabs/cinic10` and `ufldl-stanford/svhn` are known, and their means and deviations.

    Args:
        source: name on the hub, folder with files that `datasets` reads (Parquet for instance), `datasets.DatasetDict`
            with `train` and maybe `test` (other splits are not read, with a warning), or `datasets.Dataset`, all of
            which is to train on.
        x: column of images or feature vectors, as of `from_torch`, or of token ids; without it, `image` or `img`. Lists
            of integers keep their type, so those other than uint8 are token ids, as of `from_arrays`.
        label: column of integer labels; without it, `label`.
        client: column of natural clients; only its rows of `train` count.
        config: configuration, where a name has several.
        normalise: without it, that of a known name, else as of `from_arrays`.
        cache: folder in which `datasets` keeps what it fetches and converts; without it, its own.

    Raises:
        ValueError: `datasets` is not installed, the data are a stream, there is no split `train`, a column is missing,
            `x` has texts, or as of `from_torch`.
    """
    known = HUGGINGFACE.get(source) if isinstance(source, str) else None
    name = source if isinstance(source, str) else "huggingface"
    if known is not None:
        x, label, client, config = x or known.x, label or known.label, client or known.client, config or known.config
        if normalise is None and known.normalise is not None:
            normalise = NORMALISE[known.normalise]
    parts = _parts(name, source, config, cache)
    train = parts["train"]
    x = x or next((c for c in ("image", "img") if c in train.column_names), "image")
    label = label or "label"
    missing = [column for column in (x, label, client) if column is not None and column not in train.column_names]
    if missing:
        raise ValueError(
            f"{name} must have the columns {', '.join(missing)}, got {', '.join(train.column_names)}: "
            "name others as x, label or client"
        )
    if getattr(train.features[x], "dtype", None) in ("string", "large_string"):
        raise ValueError(
            f"x must be images, features or token ids, got texts in {x!r} of {name}: make token ids of them, "
            f"fedloom.sources.texts_of_huggingface(..., text={x!r}, label={label!r}, length=128)"
        )
    classes = getattr(train.features[label], "num_classes", None)
    read = {part: _split(rows, x, label) for part, rows in parts.items()}
    if classes is None:
        y = np.concatenate([y for _, y in read.values()])
        if y.min() >= 0 and (gap := missing_classes(y)):
            raise ValueError(
                f"labels in {label!r} of {name} must be 0..C-1, each with an example, got {gap}: renumber them in all "
                "splits alike, with Dataset.class_encode_column for instance"
            )
        classes = int(y.max()) + 1
    examples = {
        part: _called(
            from_arrays(values, y, num_classes=classes, normalise=normalise, name=name),
            getattr(train.features[label], "names", None),
        )
        for part, (values, y) in read.items()
    }
    if client is None:
        return Dataset(examples["train"], examples.get("test"))
    users = list(train[client])
    training = replace(examples["train"], owners=tuple(map(str, dict.fromkeys(users))))
    return Dataset(training, examples.get("test"), number(users))


def texts_of_huggingface(
    source: Any,
    *,
    text: str,
    label: str = "label",
    client: str | None = None,
    config: str | None = None,
    tokens: Any = None,
    length: int | None = None,
    most: int | None = None,
    least: int = 1,
    least_clients: int = 1,
    cache: str | None = None,
) -> Dataset:
    """Return texts and their classes of Hugging Face's `datasets` as token ids (N, length).

    What is in the cache needs no network. A `ClassLabel` keeps its classes and their numbers, also those without a row;
    other labels are classes as `from_frame` makes them.

    Args:
        source: as of `from_huggingface`.
        text: column of texts.
        label: column of classes.
        client: column of natural clients.
        config: configuration, where a name has several.
        tokens: as of `read_csv`.
        length: likewise.
        most: likewise.
        least: likewise.
        least_clients: likewise.
        cache: folder in which `datasets` keeps what it fetches; without it, its own.

    Raises:
        ValueError: `datasets` is not installed, the data are a stream, there is no split `train`, a column is missing,
            or as of `from_frame`.
    """
    name = source if isinstance(source, str) else "huggingface"
    parts = _parts(name, source, config, cache)
    there = parts["train"].column_names
    columns = [column for column in (text, label, client) if column is not None]
    if missing := [column for column in columns if column not in there]:
        raise ValueError(
            f"{name} must have the columns {', '.join(missing)}, got {', '.join(there)}: name others as text, label or "
            "client"
        )
    import pandas as pd  # which datasets needs

    frames = [part.select_columns(columns).to_pandas().assign(**{_PART: which}) for which, part in parts.items()]
    split = _PART if len(frames) > 1 else None
    frame = pd.concat(frames, ignore_index=True)
    made = from_frame(
        frame if split else frame[columns], label=label, client=client, split=split, text=text, tokens=tokens,
        length=length, most=most, least=least, least_clients=least_clients, test_fraction=0.0, name=name,
    )  # fmt: skip
    names = getattr(parts["train"].features[label], "names", None)
    if names is None:
        return made
    return made._replace(train=_as_there(made.train, names), test=made.test and _as_there(made.test, names))


def _parts(name: str, source: Any, config: str | None, cache: str | None) -> dict[str, Any]:
    """Return the splits `train` and, where it is there, `test`; warn of those that are not read.

    Raises:
        ValueError: `datasets` is not installed, there is no split `train`, or what is given is a stream, or no data set
            of Hugging Face at all.
    """
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError(f"Hugging Face data sets need datasets: {install('huggingface')}") from None
    if isinstance(source, str):
        folder = local_path(source)
        kept = None if cache is None else str(local_path(cache))
        source = datasets.load_dataset(str(folder) if source[:1] == "~" else source, config, cache_dir=kept)
    parts = dict(source) if isinstance(source, dict) else {"train": source}
    for part, rows in parts.items():
        if isinstance(rows, datasets.Dataset):
            continue
        kind = type(source).__name__
        if isinstance(rows, datasets.IterableDataset):
            raise ValueError(
                f"{name} must hold rows that can be read again and by number (datasets.Dataset), got a stream, {kind}: "
                "load it without streaming=True, or collect it, datasets.Dataset.from_list(list(stream)), with the "
                "stream.take(N) first rows of a long one"
            )
        raise ValueError(
            f"source must be a name, a folder, a datasets.Dataset or a datasets.DatasetDict, got {kind}"
            + f" with {type(rows).__name__} as {part!r}" * isinstance(source, dict)
            + ": use fedloom.from_torch or fedloom.from_arrays for data of other libraries"
        )
    if "train" not in parts:
        listed = ", ".join(map(str, parts)) or "none"
        close = did_you_mean("train", map(str, parts))
        raise ValueError(
            f"{name} must have a split 'train', got {listed}{close}: rename the split, "
            "datasets.DatasetDict(train=splits[NAME], test=splits[NAME])"
        )
    read = {part: parts[part] for part in ("train", "test") if part in parts}
    if unread := [f"{part} ({len(rows):,} rows)" for part, rows in parts.items() if part not in read]:
        without = "; without test there is no global test set" * ("test" not in read)
        warnings.warn(
            f"of {name} the splits train and test are read, and {some_of(unread, 8)} not{without}: name the split to "
            "test on, datasets.DatasetDict(train=splits['train'], test=splits[NAME]), or drop the others",
            stacklevel=3,
        )
    return read


_PART = "fedloom part"  # the column that says of which split a row is


def _called(examples: Examples, names: Any) -> Examples:
    """Return the examples with names of their classes, where another library has one for each."""
    listed = isinstance(names, list | tuple) and len(names) == examples.num_classes
    return replace(examples, classes=tuple(map(str, names))) if listed else examples


def _as_there(examples: Examples, names: Sequence[str]) -> Examples:
    """Return the examples of a table of numbered classes with all `names` of these, and their numbers."""
    numbers = torch.tensor([int(name) for name in examples.classes or range(examples.num_classes)])
    return replace(examples, y=numbers[examples.y], num_classes=len(names), classes=tuple(names))


def _split(rows: Any, x: str, label: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    column = rows.features[x]
    kind = getattr(getattr(column, "feature", None), "dtype", "")  # of what is in lists
    lists = np.dtype(kind if kind.lstrip("u").startswith("int") else np.float32)
    with pillow() if type(column).__name__ == "Image" else nullcontext():
        return _collect((_pair(i, (row[x], row[label])) for i, row in enumerate(rows)), len(rows), lists)


def _pair(i: int, item: Any) -> tuple[int, Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"items must be pairs (x, label), got {type(item).__name__} as item {i}: wrap the data set")
    return i, item[0], item[1]


def _collect(
    pairs: Iterable[tuple[int, Any, Any]], count: int, lists: npt.DTypeLike = np.float32
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Stack values and labels in memory that is allocated once; numbers in lists become of the type `lists`."""
    out: npt.NDArray[Any] | None = None
    labels = np.empty(count, np.int64)
    for i, value, label in pairs:
        array = _array(i, value, lists)
        if out is None:
            out = np.empty((count, *array.shape), array.dtype)
        if (array.shape, array.dtype) != (out.shape[1:], out.dtype):
            raise ValueError(
                f"items must all be {out.dtype} of shape {out.shape[1:]}, got {array.dtype} of shape {array.shape} as "
                f"item {i}: resize or convert them"
            )
        out[i] = array
        try:
            labels[i] = _class_number(label)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"labels must be integers, got {label!r} of item {i}: number the classes from 0") from None
    if out is None:
        raise ValueError("a data set needs an item at least, got none: check its split and filters")
    return out, labels


def _class_number(label: Any) -> int:
    """Return a label as an integer; it may be stored as 3.0."""
    if hasattr(label, "__index__"):
        with suppress(TypeError):  # tensors and arrays of floating point have it as well
            return operator.index(label)
    if isinstance(label, str) or not float(label).is_integer():
        raise ValueError
    return int(label)


def _array(i: int, value: Any, lists: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if hasattr(value, "getbands"):  # an image of Pillow
        if value.mode not in ("L", "RGB"):
            raise ValueError(f"images must be grey (L) or in colour (RGB), got {value.mode} as item {i}: convert them")
        pixels = np.asarray(value)
        return pixels[None] if value.mode == "L" else pixels.transpose(2, 0, 1)
    array = np.asarray(value)
    return array.astype(lists) if isinstance(value, list) and array.dtype.kind in "iuf" else array
