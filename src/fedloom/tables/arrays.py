"""NumPy archives (.npz). Headers are read before anything is allocated, and objects are never unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.examples import MAX_CLASSES, Dataset, Examples
from fedloom.data.hold_out import sizes_held_out
from fedloom.data.in_memory import from_arrays, missing_classes
from fedloom.data.inputs import Tokens, next_tokens
from fedloom.tables import file_checks
from fedloom.tables.columns import warn_of_spellings
from fedloom.tables.file_checks import FormatError, refuse, warn_of_unread
from fedloom.tables.vocabulary import narrow
from fedloom.wording import local_path

NAMES = ("x_train", "y_train", "x_test", "y_test")
_ALONE = {"x": "x_train", "y": "y_train"}  # names in a file without test examples
_OWNERS = "clients_train"
_CHUNK = 2**20


def read_npz(path: str | os.PathLike[str], *, every_class: bool = True) -> Dataset:
    """Return the examples in a .npz file with the arrays x_train, y_train, x_test, y_test, as Keras has MNIST.

    x: images (N, H, W) or (N, H, W, 3) of uint8, images (N, C, H, W), or features (N, D); y: class labels (N,), whole
    numbers that may be stored in floating point. x of integers (N, T) but uint8: token ids, 0 for padding; y: classes
    (N,), or a token for each place (N, T), -100 where none counts; without y_train and y_test, the next tokens. An
    array clients_train (N,), of numbers or names, says whose row each of x_train is. A file may hold x and y alone, of
    numbers and classes: there are no test examples then.

    Args:
        path: of the file.
        every_class: refuse labels among which one below the largest has no example, in y_train or y_test; else it is a
            class without examples.

    Raises:
        ValueError: there is no such file, an array is missing, holds anything but numbers, or does not fit the others.
    """
    path = local_path(path)
    if _holds_tokens(path):
        return _of_tokens(path)
    alone = {*_ALONE} <= (there := names_in(path)) and not {*NAMES} & there
    arrays = read_arrays(path, [*(_ALONE if alone else NAMES), *_owners_in(path)])
    _warn_of_others(path, [*arrays])
    clients = arrays.pop(_OWNERS, None)
    for name, array in arrays.items():
        if name[0] == "y":
            arrays[name] = _labels(path, name, array)
        elif array.dtype.kind not in "uf" or array.dtype.itemsize > 8 or not array.size:
            rule = "numbers, uint8 or floating point"
            raise FormatError(f"{name} of {path} must hold {rule}, got {array.dtype} of shape {array.shape}")
    if alone:
        arrays = {_ALONE[name]: array for name, array in arrays.items()}
        arrays |= {f"{name}_test": arrays[f"{name}_train"][:0] for name in "xy"}
    _check_pairs(path, arrays)
    kept = [str(arrays[name].dtype) for name in ("x_train", "x_test")]
    if "uint8" in kept and kept[0] != kept[1]:  # one of which would be divided by 255, or both
        rule = "x_train and x_test must be stored alike, both as uint8 or both in floating point"
        refuse(path, rule, " and ".join(kept), "bring both to one scale and type")
    y = np.concatenate([arrays["y_train"], arrays["y_test"]])
    labels = ("y",) if alone else ("y_train", "y_test")
    if every_class and (gap := missing_classes(y, partial(_place, labels, len(arrays["y_train"])))):
        remedy = "mend a label that is wrong, or save numpy.unique(y, return_inverse=True)[1]"
        remedy += " of both together" * (not alone)
        refuse(path, f"labels of {' and '.join(labels)} must be 0..C-1, each with an example", gap, remedy)
    classes = int(y.max()) + 1
    train = from_arrays(arrays["x_train"], arrays["y_train"], num_classes=classes, name=path.stem)
    if alone:
        return _owned(path, Dataset(train, None), clients)
    test = from_arrays(
        arrays["x_test"], arrays["y_test"], num_classes=classes, normalise=train.normalise, name=path.stem
    )
    return _owned(path, Dataset(train, test), clients)


def read_npy(path: str | os.PathLike[str], *, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return the token ids (N, T) in a .npy file, 0 for padding, each place with the next one as its target.

    Args:
        path: of the file.
        test_fraction: the part of all rows that becomes the test set, in [0, 1), at random.
        seed: of this choice, 0 to 2**32 - 1.

    Raises:
        ValueError: there is no such file, it holds anything but token ids, or an argument is out of range.
    """
    path = local_path(path)
    if not path.is_file():
        raise FormatError(f"there is no file {str(path)!r}; give the path of a .npy file with token ids (N, T)")
    try:
        ids = np.load(path, allow_pickle=False)
    except Exception as error:  # parsers fed with garbage raise nearly anything
        refuse(path, "the file must hold one plain array, written by numpy.save", error, "save it again")
    size = _size_of_ids(path, {"the array": ids})
    out = np.zeros(len(ids), np.bool_)
    count = int(sizes_held_out(np.array([len(ids)]), test_fraction, seed)[0])
    out[np.random.RandomState(seed).permutation(len(out))[:count]] = True
    train, test = (_sequences(path, ids[rows], None, size) for rows in (~out, out))
    return Dataset(train, test if count else None)


def _holds_tokens(path: Path) -> bool:
    """Return whether x_train of a .npz file is a matrix of integers, which are token ids then."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("x_train.npy") as file:
            shape, _, dtype = read_header(file)
    except Exception:  # parsers fed with garbage raise nearly anything; what is wrong, `read_arrays` says
        return False
    return dtype.kind in "iu" and dtype != np.uint8 and len(shape) == 2


def _of_tokens(path: Path) -> Dataset:
    there = names_in(path)
    targets = [name for name in ("y_train", "y_test") if name in there]
    if len(targets) == 1:
        refuse(path, "targets are there of both parts or of none", targets[0], "leave both out for the next token")
    found = read_arrays(path, ["x_train", "x_test", *targets, *_owners_in(path)])
    _warn_of_others(path, [*found])
    parts = {name: found[name] for name in ("x_train", "x_test")}
    if parts["x_train"].shape[1:] != parts["x_test"].shape[1:]:
        shapes = " and ".join(str(x.shape) for x in parts.values())
        refuse(path, "x_train and x_test must be as long", shapes, "fill shorter sequences with 0 at their end")
    _check_pairs(path, found)
    size = _size_of_ids(path, parts)
    y = [found.get(name) for name in ("y_train", "y_test")]
    if y[0] is not None and y[1] is not None and y[0].ndim == y[1].ndim == 2:
        size = max(size, int(max(y[0].max(), y[1].max())) + 1)
    elif y[0] is not None and y[1] is not None:
        y = [_labels(path, name, found[name]) for name in ("y_train", "y_test")]
    train, test = (_sequences(path, x, each, size) for x, each in zip(parts.values(), y, strict=True))
    classes = max(train.num_classes, test.num_classes)
    train, test = (replace(part, num_classes=classes) for part in (train, test))
    return _owned(path, Dataset(train, test), found.get(_OWNERS))


def _owners_in(path: Path) -> list[str]:
    return [_OWNERS] if _OWNERS in names_in(path) else []


def names_in(path: Path) -> set[str]:
    """Return the names of the arrays in a file; what is wrong with it, `read_arrays` says."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def _place(names: Sequence[str], count: int, row: int) -> str:
    """Return where a row of the training rows, of which there are so many, and the test rows behind them is."""
    return f"row {row} of {names[0]}" if row < count else f"row {row - count} of {names[1]}"


def _check_pairs(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Refuse values and labels of different numbers of rows, and test rows of another shape than training rows."""
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays.get(f"y_{part}")
        if y is not None and len(x) != len(y):
            rule = f"x_{part} and y_{part} must have the same number of rows"
            refuse(path, rule, f"{len(x)} and {len(y)}", "save the labels of the rows that are there")
    shapes = [arrays[name].shape[1:] for name in ("x_train", "x_test")]
    if shapes[0] != shapes[1]:
        rule = "rows of x_train and x_test must have one shape"
        what = "save the same columns of both" if len(shapes[0]) < 2 else "resize the images of one"
        refuse(path, rule, f"{shapes[0]} and {shapes[1]}", what)


def _warn_of_others(path: Path, read: Sequence[str]) -> None:
    """Warn of arrays that are not read, such as those of a third split."""
    others = [name for name in names_in(path) if name not in read]
    remedy = "save the ones to test on as x_test and y_test, or leave them out"
    warn_of_unread(path, ", ".join(read), others, remedy)


def _owned(path: Path, found: Dataset, clients: npt.NDArray[Any] | None) -> Dataset:
    """Return a data set with the clients that a file names, where it names some."""
    if clients is None:
        return found
    names, owners = np.unique(clients, return_inverse=True)
    if clients.shape != (len(found.train),):
        refuse(path, f"clients_train must name the client of each of {len(found.train)} rows", clients.shape,
               "save as many names")  # fmt: skip
    called = tuple(map(str, names))
    warn_of_spellings(path, {_OWNERS: called})
    return Dataset(replace(found.train, owners=called), found.test, owners.astype(np.int64))


def _size_of_ids(path: Path, parts: Mapping[str, npt.NDArray[Any]]) -> int:
    """Return how many token ids there are: one more than the largest."""
    for name, x in parts.items():
        if x.ndim != 2 or x.dtype.kind not in "iu" or not x.size:
            rule = f"{name} must hold token ids (N, T), integers"
            refuse(path, rule, f"{x.dtype} of shape {x.shape}", "save x.astype(numpy.int32), filled with 0 at its end")
        if x.min() < 0:
            refuse(path, f"token ids of {name} are 0 or more", x.min(), "number tokens from 1; 0 is padding")
    return max(int(x.max()) for x in parts.values()) + 1


def _sequences(path: Path, ids: npt.NDArray[Any], y: npt.NDArray[Any] | None, size: int) -> Examples:
    x = torch.from_numpy(narrow(ids, size))
    targets = next_tokens(x) if y is None else torch.from_numpy(y.astype(np.int64))
    classes = size if targets.dim() > 1 else int(targets.max()) + 1
    return Examples(x, targets, classes, Tokens(vocabulary=max(2, size)), path.stem)


def _labels(path: Path, name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the class labels (N,) of an array in a file.

    Where the array holds something else, the error says what to save instead.
    """
    rule = f"{name} must hold class labels (N,), whole numbers from 0"
    if array.dtype.kind in "US":
        remedy = "save numpy.unique(names, return_inverse=True)[1] of y_train and y_test together"
        refuse(path, rule, f"text such as {str(array.flat[0])!r:.40}" if array.size else "text", remedy)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8 or not array.size:
        refuse(path, rule, f"{array.dtype} of shape {array.shape}", "number the classes from 0")
    if array.ndim != 1:
        remedy = f"save {name}.ravel()" if array.size == len(array) else f"save {name}.argmax(1) of one-hot rows"
        refuse(path, rule, f"an array of shape {array.shape}", remedy)
    if array.dtype.kind == "f" and (wrong := array[~(array == np.round(array))]).size:
        refuse(path, rule, f"{wrong[0]:g}", "number the classes from 0")
    if array.min() < 0:
        refuse(path, rule, f"{array.min():g}", "number the classes from 0")
    if array.max() >= MAX_CLASSES:
        refuse(path, f"labels of {name} must be below {MAX_CLASSES}", f"{array.max():.0f}", "number the classes from 0")
    return array.astype(np.int64)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays `names` of the .npz file `path`; others are not read.

    Raises:
        ValueError: there is no such file, it lacks an array, holds objects, is damaged, or unpacks to more than it may.
    """
    if not path.is_file():
        rule = f"there is no file {str(path)!r}"
        raise FormatError(f"{rule}; give the path of a .npz file with {', '.join(names)} [FL-DATA-029]")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            missing = [name for name in names if f"{name}.npy" not in members]
            if missing:
                there = [name.removesuffix(".npy") for name in members]
                remedy = "write them with numpy.savez"
                if there == ["data"]:
                    remedy += f"; clients as PFLlib writes them are read as pfllib:{path.absolute().parent.parent}"
                raise FormatError(
                    f"{path} must hold {', '.join(names)}; {', '.join(missing)} is missing among "
                    f"{', '.join(there)[:100] or 'nothing'}: {remedy} [FL-DATA-024]"
                )
            found, used = dict[str, npt.NDArray[Any]](), 0
            for name in names:
                found[name] = _member(path, name, archive, used)
                used += archive.getinfo(f"{name}.npy").file_size
            return found
    except FormatError:
        raise
    except Exception as error:  # parsers fed with garbage raise nearly anything
        raise FormatError(
            f"{path} must hold plain arrays {', '.join(names)}, written by numpy.savez: {error}"
        ) from error


def _member(path: Path, name: str, archive: zipfile.ZipFile, used: int) -> npt.NDArray[Any]:
    """Read an array; `used`: bytes that the arrays before it have taken, since the limit is for all together."""
    info = archive.getinfo(f"{name}.npy")
    room = path.stat().st_size
    if info.compress_type != zipfile.ZIP_STORED:
        room = max(room, file_checks.LIMIT) - used
    if info.file_size > room or info.compress_size > path.stat().st_size:
        remedy = "write large arrays with numpy.savez, uncompressed"
        refuse(path, f"{name} must promise at most {room} bytes", info.file_size, remedy)
    with archive.open(info) as file:
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are never unpickled (allow_pickle=False)")
        size = math.prod(shape) * dtype.itemsize
        if size != info.file_size - file.tell():
            raise ValueError(f"{name} of shape {shape} takes {size} bytes, got {info.file_size - file.tell()}")
        values = bytearray(size)
        for at in range(0, size, _CHUNK):
            values[at : at + _CHUNK] = file.read(_CHUNK)
    if len(values) != size:
        raise ValueError(f"{name} takes {size} bytes, got {len(values)}, the file is cut off")
    flat = np.frombuffer(values, dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether in Fortran order, and type of the array that a .npy file holds, and leave the file there.

    Raises:
        ValueError: it is of another version of the format than 1.0 and 2.0.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"arrays must be in version 1.0 or 2.0 of the .npy format, got {version}")
