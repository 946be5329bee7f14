"""LEAF's JSON files, whose users are natural clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import MAX_CLASSES, Dataset
from fedloom.data.in_memory import from_arrays, missing_classes
from fedloom.tables.file_checks import FormatError, check_link, read_whole, refuse, visible

_KEYS = ("users", "num_samples", "user_data")
Names = tuple[str, ...]
_Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def leaf(folder: Path) -> Dataset:
    """Return vectors (N, D) float32 from `{train,test}/*.json`, also below `data/`."""
    x, y, owners, held_out, users = _users(folder, None, None)
    if gap := missing_classes(y):
        rule = "labels must be 0..C-1, each with an example in train or test"
        refuse(folder, rule, gap, "renumber them alike in all files")
    train = replace(from_arrays(x, y, num_classes=int(y.max()) + 1, name="leaf"), owners=users)
    return Dataset(train, train.select(np.flatnonzero(held_out)), owners, held_out)


def femnist(folder: Path) -> Dataset:
    """Return FEMNIST by writer, files as of `leaf`: images (N, 1, 28, 28) float32, 0 is ink and 1 paper, 62 classes."""
    x, y, owners, held_out, users = _users(folder, 784, 62)
    if x.min() < 0 or x.max() > 1:
        refuse(folder, "the pixels of FEMNIST are in 0..1", f"{x.min():g}..{x.max():g}", "use leaf for other data")
    train = replace(from_arrays(x.reshape(-1, 28, 28), y, num_classes=62, name="femnist"), owners=users)
    return Dataset(train, train.select(np.flatnonzero(held_out)), owners, held_out)


def _users(
    folder: Path, width: int | None, num_classes: int | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_], Names]:
    """Return values, labels, owners and whether held out, of all rows, and the names of the owners.

    Rows to train on come first.
    """
    place = next((p for p in (folder / "data", folder) if (p / "train").is_dir()), folder)
    check_link(place, folder)
    numbers: dict[str, int] = {}
    xs: list[npt.NDArray[np.float32]] = []
    ys: list[npt.NDArray[np.int64]] = []
    owners: list[npt.NDArray[np.int64]] = []
    sizes: list[int] = []
    for part in ("train", "test"):
        check_link(place / part, folder)
        files = visible((place / part).glob("*.json"))
        if not files:
            refuse(place / part, "the folder must hold .json files of LEAF", "none", "run LEAF's preprocess.sh")
        seen: set[str] = set()
        before = sum(len(y) for y in ys)
        for path in files:
            check_link(path, folder)
            for user, (x, y) in _file(path, num_classes):
                if user in seen:
                    refuse(path, f"the files of {part}/ must name a user once", repr(user), "merge its examples")
                seen.add(user)
                width = width or x.shape[1]
                if x.shape[1] != width:
                    refuse(path, f"examples must be lists of {width} numbers", f"{x.shape[1]} of user {user!r}")
                xs.append(x)
                ys.append(y)
                owners.append(np.full(len(y), numbers.setdefault(user, len(numbers)), np.int64))
        sizes.append(sum(len(y) for y in ys) - before)
        if not sizes[-1]:
            refuse(place / part, "the files must hold examples", "none")
    held_out = np.repeat([False, True], sizes)
    x, end = np.empty((sum(sizes), width or 0), np.float32), sum(sizes)
    while xs:  # from behind, and each goes as it is copied: all of them twice is too much
        last = xs.pop()
        x[end - len(last) : end] = last
        end -= len(last)
    return x, np.concatenate(ys), np.concatenate(owners), held_out, tuple(numbers)


def _file(path: Path, num_classes: int | None) -> Iterator[tuple[str, _Rows]]:
    """Yield the users of one file that have examples."""

    def constant(value: str) -> NoReturn:
        refuse(path, "numbers must be finite", value)

    def packed(found: dict[str, Any]) -> dict[str, Any]:
        # As soon as an object ends: a number of Python takes 32 bytes, and those of one user alone are there at a time.
        if isinstance(found.get("x"), list) and found["x"]:
            found["x"] = _values(found["x"])
        return found

    try:
        content = json.loads(read_whole(path), parse_constant=constant, object_hook=packed)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        refuse(path, "the file must be one whole JSON document", error)
    users, counts, data = (content.get(k) if isinstance(content, dict) else None for k in _KEYS)
    match users, counts, data:
        case list(), list(), dict():
            pass
        case _:
            refuse(path, f"the file must hold {', '.join(_KEYS)}, two lists and an object", type(content).__name__)
    if len(users) != len(counts) or not all(isinstance(user, str) for user in users) or set(users) != data.keys():
        refuse(
            path,
            "users, num_samples and user_data must name the same users",
            f"{len(users)}, {len(counts)} and {len(data)}",
        )
    for user, count in zip(users, counts, strict=True):
        if rows := _rows(path, user, count, data.pop(user, None), num_classes):
            yield user, rows


def _rows(path: Path, user: str, count: object, data: Any, num_classes: int | None) -> _Rows | None:
    x, y = (data.get(k) if isinstance(data, dict) else None for k in "xy")
    if isinstance(x, ValueError):
        refuse(path, f"x of user {user!r} must be lists of equally many numbers, finite in float32", x)
    match x, y:
        case ((list() | np.ndarray()), list()) if len(x) == len(y) == count and not isinstance(count, bool):
            pass
        case _:
            found = [len(v) if isinstance(v, list | np.ndarray) else type(v).__name__ for v in (x, y)]
            refuse(path, f"user {user!r} must have lists x and y of num_samples={count}", f"{found[0]} and {found[1]}")
    if isinstance(x, list):  # an empty one
        return None
    top = MAX_CLASSES if num_classes is None else num_classes
    if wrong := [label for label in y if not (_is_whole(label) and 0 <= label < top)]:
        refuse(path, f"labels of user {user!r} must be integers in 0..{top - 1}", repr(wrong[0])[:40])
    return x, np.array(y, np.int64)


def _values(x: list[Any]) -> npt.NDArray[np.float32] | ValueError:
    """Return the numbers of a user's examples (n, D), or what is wrong with them."""
    try:
        values = np.array(x)  # not straight to float32: text would be converted
    except (ValueError, OverflowError) as error:
        return ValueError(str(error))
    if values.dtype.kind not in "iuf" or values.ndim != 2 or not values.size:
        return ValueError(f"{values.dtype} of shape {values.shape}")
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float32)
    return numbers if np.isfinite(numbers).all() else ValueError("a larger number")


def _is_whole(label: object) -> bool:
    """Return whether a label is a whole number, which FedProx's generator and others write as 3.0."""
    return type(label) is int or (type(label) is float and label.is_integer())
