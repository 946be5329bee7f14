"""Published files: where they are, and readers of IDX and of records. Every byte is distrusted."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedloom.tables import file_checks
from fedloom.tables.file_checks import AGAIN, FormatError, read_whole, refuse

Bytes = npt.NDArray[np.uint8]
# Deflate cannot compress further than about 1032 to 1.
_DEFLATE = 1040


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
        "put the published files there (nothing is downloaded), or give the folder that holds them [FL-DATA-021]"
    )


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
        raise FormatError(f"{path}: must be one whole gzip stream, got {error}: {AGAIN}, or gunzip it first") from error


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
    if size > file_checks.LIMIT or length + size > capacity:
        room = min(file_checks.LIMIT, capacity - length)
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
