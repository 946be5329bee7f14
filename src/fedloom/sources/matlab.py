"""MATLAB files (version 5, as `save -v6` and `-v7` write them): arrays of numbers, and cells of them; SVHN and Vehicle.

SciPy reads these files too, but follows cells inside cells until its stack overflows, and compressed data to any size.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedloom.data.examples import Dataset, Examples
from fedloom.data.in_memory import from_arrays
from fedloom.sources.constants import NORMALISE
from fedloom.sources.formats import Bytes, check_labels, find_files
from fedloom.sources.stand_ins import VEHICLE
from fedloom.tables import file_checks
from fedloom.tables.arrays import read_arrays
from fedloom.tables.file_checks import read_whole, refuse

Array = npt.NDArray[Any]
Order = Literal["little", "big"]

_VEHICLE = ("vehicle.mat", "vehicle.npz", "vehicle_ditto_train.npz")

# How numbers are stored, and classes of arrays: MATLAB stores whole numbers in fewer bytes than their class has.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), start=6))
_CELL, _MATRIX, _COMPRESSED = 1, 14, 15
_MAX_CELLS = 2**20
_AT_ONCE = 2**16  # compressed bytes
_BLOCK = 1024  # images


def read_matlab(path: Path, names: Collection[str]) -> dict[str, Array | list[Array]]:
    """Return the variables `names` of a MATLAB file: real arrays of numbers, and cells as lists, column by column.

    Other variables are skipped; one that is missing is absent from the result.

    Args:
        path: an existing file.
        names: variables to read.

    Raises:
        ValueError: the file is not in version 5, is cut off, unpacks to more than 1 GiB, holds one of the variables
            twice, or as anything but numbers or cells of numbers.
    """
    data = memoryview(read_whole(path))
    mark = data[126:128].tobytes()
    if mark not in (b"IM", b"MI"):
        refuse(path, "a MATLAB file of version 5 starts with 128 bytes that end in IM or MI", f"{len(data)} bytes")
    order: Order = "little" if mark == b"IM" else "big"
    if (version := int.from_bytes(data[124:126], order)) != 0x100:
        refuse(path, "the version must be 0x100", hex(version), "write it with save -v7 (-v7.3 makes an HDF5 file)")
    file = _File(path, order)
    found: dict[str, Array | list[Array]] = {}
    for kind, content in file.elements(data[128:]):
        if kind == _COMPRESSED:
            kind, content = next(file.elements(file.inflate(content)), (0, content))
        if kind != _MATRIX:
            refuse(path, f"a MATLAB file holds elements of type {_MATRIX}", kind)
        name, value = file.matrix(content, names)
        if value is None:
            continue
        if name in found:
            refuse(path, "variables have different names", f"{name} twice")
        found[name] = value
    return found


class _File:
    """Elements of one file; all sizes are checked against the bytes that are there, and a limit for all."""

    def __init__(self, path: Path, order: Order) -> None:
        self.path, self.order, self.room = path, order, file_checks.LIMIT

    def take(self, size: int) -> None:
        """Refuse what would unpack, with everything before, to more than the limit."""
        self.room -= size
        if self.room < 0:
            refuse(self.path, f"variables must unpack to at most {file_checks.LIMIT} bytes", "more", "store fewer")

    def inflate(self, packed: memoryview) -> memoryview:
        stream, unpacked = zlib.decompressobj(), bytearray()
        try:
            # Into memory that grows and may be written on, and no copy of it.
            for at in range(0, len(packed), _AT_ONCE):
                room = self.room + 1 - len(unpacked)  # zlib takes 0 for no limit
                if room and not stream.eof:
                    unpacked += stream.decompress(packed[at : at + _AT_ONCE], room)
        except zlib.error as error:
            refuse(self.path, "compressed variables must be whole zlib streams", error)
        self.take(len(unpacked))
        if not stream.eof:
            refuse(self.path, "compressed variables must be whole", "a stream without its end")
        return memoryview(unpacked)

    def elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield type and content of one element after the other."""
        at = 0
        while at < len(data):
            kind, size = self._word(data, at), self._word(data, at + 4)
            start, end = at + 8, at + 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
            if kind >> 16:  # type and size share a word, and the content follows in the next
                kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
                if size > 4:
                    refuse(self.path, "a short element holds at most 4 bytes", size)
            if start + size > len(data):
                refuse(self.path, f"an element of {size} bytes must be whole", f"{len(data) - start} bytes")
            yield kind, data[start : start + size]
            at = end

    def matrix(self, data: memoryview, names: Collection[str] | None) -> tuple[str, Array | list[Array] | None]:
        """Return name and value of a matrix, no value if it is not one of `names`; None admits any, but no cells."""
        parts = self.elements(data)
        flags, dims, name = (next(parts, (0, memoryview(b"")))[1] for _ in range(3))
        if len(flags) != 8 or not 8 <= len(dims) <= 128 or len(dims) % 4 or len(name) > 63:
            refuse(self.path, "a matrix starts with flags, dimensions and a name", f"{len(flags)}, {len(dims)} bytes")
        title = name.tobytes().decode("latin1")
        if names is not None and title not in names:
            return title, None
        shape = tuple(self._word(dims, i) for i in range(0, len(dims), 4))
        word = self._word(flags, 0)
        if word & 0xFF == _CELL and names is not None:
            count = math.prod(shape)
            if count > min(_MAX_CELLS, len(data) // 8):
                refuse(self.path, f"{title} has more cells than the file can hold", count)
            return title, [self._cell(title, *next(parts, (0, data))) for _ in range(count)]
        kind = _CLASSES.get(word & 0xFF)
        if kind is None or word & 0x800:
            what = f"class {word & 0xFF}{', complex' if word & 0x800 else ''}"
            refuse(self.path, f"{title or 'a cell'} must hold real numbers, or cells of them", what)
        stored, values = next(parts, (2, memoryview(b"")))
        if stored not in _STORED or next(parts, None) is not None:
            refuse(self.path, f"{title or 'a cell'} must be stored as one list of numbers", f"type {stored}")
        dtype = np.dtype(_STORED[stored]).newbyteorder("<" if self.order == "little" else ">")
        # NumPy wants the other axes of an empty array to be possible, too.
        if len(values) != math.prod(shape) * dtype.itemsize or math.prod(n or 1 for n in shape) > file_checks.LIMIT:
            refuse(self.path, f"{title or 'a cell'} of shape {shape} must be stored whole", f"{len(values)} bytes")
        array = np.frombuffer(values, dtype).reshape(shape, order="F")
        if array.dtype == kind:
            return title, array
        self.take(array.size * np.dtype(kind).itemsize)
        with np.errstate(invalid="ignore", over="ignore"):
            converted = array.astype(kind)
        if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
            refuse(self.path, f"{title or 'a cell'} must hold numbers of its class", f"others than {kind} has")
        return title, converted

    def _cell(self, title: str, kind: int, content: memoryview) -> Array:
        if kind != _MATRIX:
            refuse(self.path, f"{title} must hold as many matrices as it has cells", f"an element of type {kind}")
        value = self.matrix(content, None)[1]
        assert isinstance(value, np.ndarray)
        return value

    def _word(self, data: memoryview, at: int) -> int:
        if at + 4 > len(data):
            refuse(self.path, "the file must hold whole elements", "half of a tag, it is cut off")
        return int.from_bytes(data[at : at + 4], self.order)


# ---- data sets


def svhn(folder: Path) -> Dataset:
    """Return SVHN's 32 x 32 digits from `{train,test}_32x32.mat`; label 10 means 0."""
    files = [("train_32x32.mat",), ("test_32x32.mat",)]
    train, test = (
        _svhn(p) for p in find_files("svhn", [(f, files) for f in (folder / "SVHN", folder / "svhn", folder)])
    )
    return Dataset(train, test)


def _svhn(path: Path) -> Examples:
    found = read_matlab(path, ("X", "y"))
    x, y = found.get("X"), found.get("y")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4 or not x.size:
        refuse(path, "X must be a uint8 array (32, 32, 3, N) with N > 0", _what(x))
    labels = _column(path, "y", y)
    digits = check_labels(path, labels, x.shape[3], 10, first=1) + 1
    images: Bytes = np.require(x.T, requirements=["C", "W"])  # (N, 3, column, row), as they are stored
    for i in range(0, len(images), _BLOCK):  # where they are: a copy of all would double the memory
        images[i : i + _BLOCK] = images[i : i + _BLOCK].swapaxes(2, 3).copy()
    return from_arrays(images, digits % 10, num_classes=10, normalise=NORMALISE["svhn"], name="svhn")


def vehicle(folder: Path) -> Dataset:
    """Return the sensors of Vehicle as natural clients: (N, 100) float32, every client standardised, -1 as class 0.

    `vehicle.mat` holds cells X, of (n, 100), and Y, of (n, 1) in -1 and +1, one for each client. What does not vary
    becomes 0. `vehicle.npz` or `vehicle_ditto_train.npz` holds the part published with Ditto as arrays x (N, 100),
    y (N,) and client (N,); its publishers have standardised it, with rows that they did not publish.
    """
    places = [(place, [_VEHICLE]) for place in (folder / "vehicle", folder)]
    (path,) = find_files("vehicle", places)
    if path.suffix == ".npz":
        arrays = read_arrays(path, ("x", "y", "client"))
        return _vehicle(path, arrays["x"], arrays["y"], arrays["client"])
    found = read_matlab(path, ("X", "Y"))
    xs, ys = found.get("X"), found.get("Y")
    if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys) or not xs:
        refuse(path, "X and Y must be cells, one of each for every client", f"{_what(xs)} and {_what(ys)}")
    for x, y in zip(xs, ys, strict=True):
        if x.ndim != 2 or x.shape[1:] != (100,) or not x.size or y.shape != (len(x), 1):
            refuse(path, "a client has X (n, 100) and Y (n, 1) with n > 0", f"{x.shape} and {y.shape}")
        if not _fits(x):
            refuse(path, "X must be finite in float32", "a value that is not")
    clients = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
    return _vehicle(path, np.concatenate([_standard(x) for x in xs]), np.concatenate(ys)[:, 0], clients)


def whole_vehicle(folder: Path) -> Dataset:
    """Return the same, which must be the 43,695 examples of 23 clients of the published tables."""
    found = vehicle(folder)
    assert found.owners is not None
    there = len(np.unique(found.owners)), len(found.train)
    if there != VEHICLE:
        refuse(
            folder,
            "the whole of Vehicle has {} clients with {:,} examples".format(*VEHICLE),
            "{} with {:,}".format(*there),
            "put the whole vehicle.mat there; a part is read as 'vehicle', and compares with no published number",
        )
    return found


def _vehicle(path: Path, x: Array, y: Array, clients: Array) -> Dataset:
    if x.dtype.kind != "f" or x.shape[1:] != (100,) or x.ndim != 2 or not _fits(x):
        refuse(path, "x must be (N, 100), floating point and finite in float32", _what(x))
    if y.shape != x.shape[:1] or y.dtype.kind not in "if" or not np.isin(y, (-1, 1)).all():
        refuse(path, f"y must be -1 or +1 for each of the {len(x)} examples", _what(y))
    if clients.shape != y.shape or clients.dtype.kind not in "iu":
        refuse(path, f"client must be an integer for each of the {len(x)} examples", f"{_what(clients)}")
    owners = np.unique(clients, return_inverse=True)[1].astype(np.int64)
    train = from_arrays(x.astype(np.float32), (y > 0).astype(np.int64), num_classes=2, name="vehicle")
    return Dataset(train, None, owners)


def _fits(x: Array) -> bool:
    return bool((np.abs(x) <= np.finfo(np.float32).max).all())  # false for NaN


def _standard(x: Array) -> Array:
    """Standardise the columns of one client, in float64."""
    centred = x - x.mean(0)
    std = centred.std(0)
    standard: Array = np.divide(centred, std, out=np.zeros_like(centred), where=std > 0)
    return standard


def _column(path: Path, name: str, values: Array | list[Array] | None) -> npt.NDArray[np.int64]:
    """Return the whole numbers of an (N, 1) array of any class."""
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.shape[1] != 1:
        refuse(path, f"{name} must be an array (N, 1)", _what(values))
    # Not through astype alone: NaN and fractions would pass.
    if not np.isin(values, np.arange(256)).all():
        refuse(path, f"{name} must hold small whole numbers", "another")
    return values[:, 0].astype(np.int64)


def _what(value: Array | list[Array] | None) -> str:
    if value is None:
        return "nothing"
    return f"{len(value)} cells" if isinstance(value, list) else f"{value.dtype} of shape {value.shape}"
