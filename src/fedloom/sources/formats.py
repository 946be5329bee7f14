"""Published files: where they are, and readers of IDX, CIFAR pickles and records. Every byte is distrusted."""

from __future__ import annotations

import gzip
import io
import math
import pickletools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedloom.tables import file_checks
from fedloom.tables.file_checks import AGAIN, FormatError, read_whole, refuse

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

# Deflate cannot compress further than about 1032 to 1.
_DEFLATE = 1040
_DANGER = "do not load it, and fetch the file from its publisher"


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


# ---- CIFAR, Python versions


@dataclass(slots=True)
class _Made:
    """Pickled call of NumPy: its function, its arguments, and the state that follows."""

    function: str
    args: object
    state: object = None


_ADMITTED = {
    "numpy.core.multiarray._reconstruct": "array",
    "numpy._core.multiarray._reconstruct": "array",
    "numpy.ndarray": "class",
    "numpy.dtype": "dtype",
}
# Opcodes of the published files, and those that Python 3 writes for the same values (protocols 3 and 4).
_VALUES = {
    *("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING"),
    *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OTHERS = {
    *("PROTO", "FRAME", "STOP", "MARK", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "TUPLE"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
_OPCODES = {opcode.code.encode("latin1"): opcode for opcode in pickletools.opcodes}
_KNOWN = {*_VALUES, *_CONSTANTS, *_TUPLES, *_OTHERS}
_MAX_STEPS = 2**18  # the largest published file takes 210,000


def _unpickle(path: Path, data: bytes) -> object:
    """Return the value of a pickle of text, small integers, lists, tuples and arrays in a dictionary with text as keys.

    Nothing is run, hashed or followed into its depth: what a file may hold is far less than what a pickle can.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def cut(at: int) -> list[Any]:
        items = stack[at:]
        del stack[at:]
        return items

    stream = io.BytesIO(data)
    for _ in range(_MAX_STEPS):
        code = stream.read(1)
        opcode = _OPCODES.get(code)
        if opcode is None or opcode.name not in _KNOWN:
            rule = "the pickle may hold text, small integers, lists, tuples and arrays in a dictionary"
            if not code:
                refuse(path, rule, "its end")
            refuse(path, rule, f"the opcode {opcode.name if opcode else code.hex()}", _DANGER)
        if opcode.name == "GLOBAL":
            arg: Any = ".".join(stream.readline().decode("latin1").removesuffix("\n") for _ in range(2))
        else:
            arg = None if opcode.arg is None else opcode.arg.reader(stream)
        match opcode.name:
            case name if name in _VALUES:
                stack.append(arg)
            case "BINPUT" | "LONG_BINPUT":
                memo[arg] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[arg])
            case "MARK":
                marks.append(len(stack))
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case name if name in _TUPLES:
                stack.append(tuple(cut(len(stack) - _TUPLES[name])))
            case "TUPLE":
                stack.append(tuple(cut(marks.pop())))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "APPEND" | "APPENDS" as name:
                items = cut(marks.pop() if name == "APPENDS" else -1)
                _top(path, stack, list).extend(items)
            case "SETITEM" | "SETITEMS" as name:
                items = cut(marks.pop() if name == "SETITEMS" else -2)
                if not all(type(key) is str for key in items[::2]):
                    refuse(path, "the keys of the pickle must be text", "another", _DANGER)
                _top(path, stack, dict).update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL" as name:
                parts = [arg] if name == "GLOBAL" else [part if type(part) is str else "?" for part in cut(-2)]
                if (named := ".".join(parts)) not in _ADMITTED:
                    refuse(path, "the pickle may name NumPy arrays only", f"the global {named[:80]}", _DANGER)
                stack.append(_Made("global", _ADMITTED[named]))
            case "REDUCE":
                made, args = cut(-2)
                if not isinstance(made, _Made) or made.function != "global" or made.args not in ("array", "dtype"):
                    refuse(path, "the pickle may make NumPy arrays only", "another call", _DANGER)
                stack.append(_Made(made.args, args))
            case "BUILD":
                (state,) = cut(-1)
                _top(path, stack, _Made).state = state
            case "STOP":
                if (end := stream.tell()) != len(data):
                    refuse(path, f"the file must end where its pickle does, after {end} bytes", f"{len(data)} bytes")
                return stack.pop()
    raise FormatError(f"{path}: the pickle may take {_MAX_STEPS} steps, got more: {_DANGER}")


def _top(path: Path, stack: list[Any], kind: type[T]) -> T:
    if not isinstance(stack[-1], kind):
        refuse(path, "the pickle must fill what it has made", type(stack[-1]).__name__, _DANGER)
    return stack[-1]


def read_pickle(path: Path, key: str) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return images (N, 3, 32, 32) and labels (N,) of a batch of CIFAR's Python version, without running its code.

    Args:
        path: an existing file, the pickle of a dictionary.
        key: its entry with the labels.

    Raises:
        ValueError: the file is no such pickle, names any global but those of arrays, or its parts do not fit.
    """
    try:
        batch = _unpickle(path, read_whole(path))
    except FormatError:
        raise
    except Exception as error:  # a parser fed with garbage raises nearly anything
        raise FormatError(
            f"{path}: must be a whole pickle, got {type(error).__name__}: {str(error)[:200]}: {AGAIN}"
        ) from error
    if not isinstance(batch, dict) or not {"data", key} <= batch.keys():
        found = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        refuse(path, f"the pickle must be a dictionary with 'data' and '{key}'", str(found)[:200])
    images, labels = _pixels(path, batch["data"]), batch[key]
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**31 for label in labels):
        refuse(path, f"'{key}' must be a list of small integers", type(labels).__name__)
    return images, np.array(labels, np.int64)


def _pixels(path: Path, array: object) -> Bytes:
    rule = "'data' must be a uint8 array (N, 3072) with N > 0"
    match array:
        # Version, shape, type, whether in Fortran order, bytes: the latter are text if Python 2 wrote them.
        case _Made("array", _, (int(), (int(n), 3072), _Made("dtype", (str(kind), *_)), int(fortran), raw)) if kind in (
            "u1",
            "|u1",
            "uint8",
        ) and isinstance(raw, str | bytes):
            pass
        case _:
            refuse(path, rule, "another array" if isinstance(array, _Made) else type(array).__name__)
    try:
        values = np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, np.uint8)
    except UnicodeEncodeError:
        refuse(path, rule, "text that stands for no bytes")
    if n < 1 or len(values) != n * 3072:
        refuse(path, rule, f"{len(values)} bytes for the shape ({n}, 3072)")
    return values.reshape((n, 3072), order="F" if fortran else "C").reshape(n, 3, 32, 32)
