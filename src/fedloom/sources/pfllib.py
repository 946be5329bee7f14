"""Clients as PFLlib's `generate_X.py` writes them: an archive each to train on and to test on."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import MAX_CLASSES, Dataset
from fedloom.data.in_memory import from_arrays
from fedloom.sources.folders import owned
from fedloom.sources.pickles import read_objects
from fedloom.tables.arrays import read_header
from fedloom.tables.file_checks import FormatError, check_link, memory, read_whole, refuse

_AGAIN = "write the folder again with PFLlib's generate_*.py"


def pfllib(folder: Path) -> Dataset:
    """Return the clients in `{train,test}/0.npz`, `1.npz`, ...: natural clients, whose test examples are held out.

    Of each archive the arrays x (N, ...) and y (N,) of its dictionary are read; the pickle around them is not run.
    Numbers stay as PFLlib has written them, images already scaled. There are as many classes as `config.json` says,
    where it is there.

    Raises:
        ValueError: a file is missing, has anything but arrays (PFLlib's lists of texts), or does not fit the others.
    """
    count = _count(folder)
    parts = [(client, part) for client in range(count) for part in ("train", "test")]
    room, rows = memory(), list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]()
    for client, part in parts:
        found = _read(folder / part / f"{client}.npz", room)
        room -= sum(array.nbytes for array in found)
        rows.append(found)
    for (client, part), (x, _) in zip(parts, rows, strict=True):
        first = rows[0][0]
        if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
            told = f"{x.dtype} {x.shape[1:]} and {first.dtype} {first.shape[1:]} in train/0.npz"
            refuse(folder / part / f"{client}.npz", "x of all clients must have one shape and type", told, _AGAIN)
    x, y = (np.concatenate([row[i] for row in rows]) for i in range(2))
    whole = from_arrays(x, y, num_classes=_classes(folder, int(y.max()) + 1), name=folder.resolve().name)
    lengths = [len(row[1]) for row in rows]
    return owned(whole, [*map(str, range(count))], [lengths[2 * k : 2 * k + 2] for k in range(count)])


def _count(folder: Path) -> int:
    """Return the number of clients, each of which has a file of either part."""
    names = {part: {path.name for path in (folder / part).glob("*.npz")} for part in ("train", "test")}
    numbered = {f"{i}.npz" for i in range(len(names["train"]))}
    if not numbered or names["train"] != numbered or names["test"] != numbered:
        told = " and ".join(f"{len(found)} files in {part}/" for part, found in names.items())
        refuse(folder, "the folder must hold train/0.npz, 1.npz, ... and as many in test/", told, _AGAIN)
    return len(numbered)


def _read(path: Path, room: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return x and y of an archive that unpacks to at most `room` bytes."""
    check_link(path, path.parents[1])
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("data.npy")
            if info.file_size > room:
                refuse(path, f"the clients together must take at most half of the memory, {room} bytes are left",
                       info.file_size, "read fewer clients")  # fmt: skip
            with archive.open(info) as file:
                if not read_header(file)[2].hasobject:
                    raise ValueError("data is no dictionary")
                data = file.read(info.file_size)
    except FormatError:
        raise
    except Exception as error:  # parsers fed with garbage raise nearly anything
        refuse(path, "the file must be an archive that PFLlib has written", error, _AGAIN)
    found = read_objects(path, data)
    if not {"x", "y"} <= found.keys():
        refuse(path, "the dictionary must have x and y", ", ".join(found) or "nothing", _AGAIN)
    x, y = found["x"], found["y"]
    if x.ndim < 2 or not x.size or y.shape != (len(x),):
        refuse(path, "x must be examples (N, ...), and y their classes (N,)", f"{x.shape} and {y.shape}", _AGAIN)
    if x.dtype.kind != "f" and x.dtype != np.uint8:
        refuse(path, "x must be images or features, floating point or uint8", x.dtype, "keep texts in another form")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= MAX_CLASSES:
        refuse(path, f"y must be classes, integers from 0 to {MAX_CLASSES - 1}", f"{y.dtype} up to {y.max()}", _AGAIN)
    return x.astype(np.float32) if x.dtype.kind == "f" else x, y.astype(np.int64)


def _classes(folder: Path, seen: int) -> int:
    """Return how many classes there are, by `config.json` where it says so."""
    path = folder / "config.json"
    if not path.is_file():
        return seen
    try:
        said = json.loads(read_whole(path))["num_classes"]
    except (ValueError, TypeError, KeyError, RecursionError):
        said = None
    if type(said) is not int or not seen <= said <= MAX_CLASSES:
        refuse(path, f"num_classes must be a whole number from {seen}, which the labels take", repr(said)[:40], _AGAIN)
    return said
