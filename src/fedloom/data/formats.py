"""Published files: where they are, and readers of IDX, CIFAR pickles and records. Every byte is distrusted."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# The largest published file, the images of EMNIST by class, is 0.55 GB.
LIMIT = 2**30
# Deflate cannot compress further than about 1032 to 1.
_DEFLATE = 1040
_AGAIN = "fetch the file again"


class FormatError(ValueError):
    """A file that breaks a rule of its format; the message names the file, the rule, the value and a remedy."""


def refuse(path: Path, rule: str, value: object, remedy: str = _AGAIN) -> NoReturn:
    """Raise `FormatError` for the file `path`."""
    raise FormatError(f"{path}: {rule}, got {value}: {remedy}")


def find_files(name: str, places: Sequence[tuple[Path, Sequence[Sequence[str]]]]) -> list[Path]:
    """Return the files of the first place that has them all, each in the first of its spellings that is there.

    Args:
        name: what the files hold, for the message.
        places: folders, each with the spellings of every file.

    Raises:
        ValueError: no place has all files.
    """
    for place, files in places:
        found = [next((place / s for s in spellings if (place / s).is_file()), None) for spellings in files]
        paths = [path for path in found if path is not None]
        if len(paths) == len(files):
            return paths
    missing = "; ".join(
        f"{', '.join(s[0] for s in files if not any((place / name).is_file() for name in s))} in {place}"
        for place, files in places
    )
    spelt = " (also as .gz, or with .idx for -idx)" if places[0][1][0][-1].endswith(".gz") else ""
    raise ValueError(
        f"{name} needs all its files in one folder, got none that has them all; missing are{spelt} {missing}: "
        "put the published files there (nothing is downloaded), or give the folder that holds them"
    )


def check_link(path: Path, root: Path) -> None:
    """Refuse a link that leads out of the folder `root`."""
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        refuse(path, f"links must stay inside {root}", path.readlink(), "copy what it points to")


def check_labels(
    path: Path, y: npt.NDArray[np.integer], length: int, num_classes: int, first: int = 0
) -> npt.NDArray[np.int64]:
    """Return the labels `y` of `length` examples in the file `path`, counted from 0.

    Raises:
        ValueError: there are more or fewer labels than examples, or one is not in `first`..`first + num_classes - 1`.
    """
    if len(y) != length:
        refuse(path, f"there must be one label for each of the {length} examples", f"{len(y)} labels")
    if y.min() < first or y.max() >= first + num_classes:
        refuse(path, f"labels must be in {first}..{first + num_classes - 1}", f"{y.min()}..{y.max()}")
    return y.astype(np.int64) - first


# ---- IDX


def read_idx(path: Path, item: Sequence[int]) -> Bytes:
    """Return the uint8 array (N, *item) in the IDX file `path`, gunzipped if the name ends in .gz.

    Args:
        path: an existing file.
        item: shape of one entry, () for labels.

    Raises:
        ValueError: the header is not that of such an array, or the file holds less or more than the header says.
    """
    stored = path.stat().st_size
    if path.suffix != ".gz":
        with path.open("rb") as file:
            return _idx(file, path, tuple(item), capacity=stored)
    try:
        with gzip.open(path, "rb") as file:
            return _idx(file, path, tuple(item), capacity=stored * _DEFLATE)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(
            f"{path}: must be one whole gzip stream, got {error}: {_AGAIN}, or gunzip it first"
        ) from error


def _idx(file: io.BufferedReader | gzip.GzipFile, path: Path, item: tuple[int, ...], capacity: int) -> Bytes:
    axes = 1 + len(item)
    length = 4 + 4 * axes
    header = file.read(length)
    magic = bytes([0, 0, 8, axes])
    if header[:4] != magic:
        what = "labels" if axes == 1 else "images"
        refuse(path, f"{what} in IDX format start with {magic.hex(' ')}", header[:4].hex(" ") or "nothing")
    if len(header) < length:
        refuse(path, f"the IDX header takes {length} bytes", f"{len(header)}, the file is cut off")
    shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, length, 4))
    if shape[1:] != item or shape[0] == 0:
        refuse(path, f"the IDX header must give a shape (N, {str(item)[1:-1]}) with N > 0", shape)
    size = math.prod(shape)
    # Before anything of that size is allocated.
    if size > LIMIT or length + size > capacity:
        room = min(LIMIT, capacity - length)
        refuse(path, f"the IDX header must promise at most the {room} bytes that the file can hold", f"{size}")
    values = bytearray(file.read(size))
    if len(values) < size:
        refuse(path, f"{size} bytes must follow the header", f"{len(values)}, the file is cut off")
    if file.read(1):
        refuse(path, f"the file must end after the {size} bytes that its header promises", "trailing bytes")
    return np.frombuffer(values, np.uint8).reshape(shape)


# ---- CIFAR, binary versions


def read_records(path: Path, labels: int) -> tuple[Bytes, Bytes]:
    """Return images (N, 3, 32, 32) and labels (N, `labels`) of a file of records: labels, then 3072 bytes of pixels.

    Raises:
        ValueError: the file is empty, larger than 1 GiB, or does not divide into records.
    """
    size = labels + 3072
    records = np.frombuffer(read_whole(path), np.uint8)
    if len(records) == 0 or len(records) % size:
        refuse(path, f"the file must hold whole records of {size} bytes", f"{len(records)} bytes")
    records = records.reshape(-1, size)
    return records[:, labels:].reshape(-1, 3, 32, 32), records[:, :labels]


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file of at most `LIMIT`."""
    size = path.stat().st_size
    if size > LIMIT:
        refuse(path, f"the file must be at most {LIMIT} bytes", size)
    return path.read_bytes()


# ---- CIFAR, Python versions


class _Stub:
    """What a pickled NumPy global becomes: it keeps what it is given, and runs nothing.

    NumPy's own constructors are not called: they trust sizes and states that an attacker may have written.
    """

    __slots__ = ("args", "state")

    def __init__(self, *args: object) -> None:
        self.args, self.state = args, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Stub):
    __slots__ = ()


class _Dtype(_Stub):
    __slots__ = ()


_ADMITTED = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": _Array,
    "numpy.dtype": _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, path: Path, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get(f"{module}.{name}")
        if found is None:
            remedy = "do not load it, and fetch the file from its publisher"
            refuse(self._path, "the pickle may name NumPy arrays only", f"the global {module}.{name}", remedy)
        return found


def read_pickle(path: Path, key: str) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return images (N, 3, 32, 32) and labels (N,) of a batch of CIFAR's Python version, without running its code.

    Args:
        path: an existing file, the pickle of a dictionary.
        key: its entry with the labels.

    Raises:
        ValueError: the file is no such pickle, names any global but those of arrays, or its parts do not fit.
    """
    data = read_whole(path)
    try:
        end = -1
        for opcode, arg, position in pickletools.genops(data):
            end = position or 0
            # An index into the memo is a promise of memory too: 2**32 - 1 in five bytes takes 64 GiB.
            if "PUT" in opcode.name and isinstance(arg, int) and not 0 <= arg <= len(data):
                refuse(path, f"memo indices of the pickle must be at most its length {len(data)}", arg)
        if end + 1 != len(data):
            refuse(path, f"the file must end where its pickle does, after {end + 1} bytes", f"{len(data)} bytes")
        batch = _Unpickler(path, data).load()
    except FormatError:
        raise
    except Exception as error:  # an unpickler fed with garbage raises nearly anything
        raise FormatError(f"{path}: must be a whole pickle, got {type(error).__name__}: {error}: {_AGAIN}") from error
    if not isinstance(batch, dict) or not {"data", key} <= batch.keys():
        found = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        refuse(path, f"the pickle must be a dictionary with 'data' and '{key}'", str(found)[:200])
    images, labels = _pixels(path, batch["data"]), batch[key]
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**31 for label in labels):
        refuse(path, f"'{key}' must be a list of small integers", type(labels).__name__)
    return images, np.array(labels, np.int64)


def _pixels(path: Path, array: object) -> Bytes:
    rule = "'data' must be a uint8 array (N, 3072) with N > 0"
    match array.state if isinstance(array, _Array) else None:
        # Version, shape, type, whether in Fortran order, bytes: the latter are text if Python 2 wrote them.
        case (int(), (int(n), 3072), _Dtype(args=("u1" | "|u1" | "uint8", *_)), int(fortran), str() | bytes() as raw):
            pass
        case _:
            refuse(path, rule, type(array).__name__ if not isinstance(array, _Array) else "another array")
    try:
        values = np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, np.uint8)
    except UnicodeEncodeError:
        refuse(path, rule, "text that stands for no bytes")
    if n < 1 or len(values) != n * 3072:
        refuse(path, rule, f"{len(values)} bytes for the shape ({n}, 3072)")
    return values.reshape((n, 3072), order="F" if fortran else "C").reshape(n, 3, 32, 32)
