"""Arrays in pickles, CIFAR's and those inside .npz files of objects, read without running what a pickle can hold."""

from __future__ import annotations

import io
import math
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedloom.tables.file_checks import AGAIN, FormatError, read_whole, refuse

T = TypeVar("T")

_DANGER = "do not load it, and fetch the file from its publisher"


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
_NUMBERS = {*("u1", "|u1", "uint8"), *("i1", "u2", "i2", "u4", "i4", "u8", "i8"), *("f2", "f4", "f8")}


def unpickle(path: Path, data: bytes) -> object:
    """Return the value of a pickle of text, small integers, lists, tuples and arrays in a dictionary with text as keys.

    Nothing is run, hashed or followed into its depth: what a file may hold is far less than what a pickle can. An array
    is a `_Made`, which `array_of` checks.

    Raises:
        FormatError: the bytes are no such pickle, or name any global but those of arrays.
    """
    try:
        return _value(path, data)
    except FormatError:
        raise
    except Exception as error:  # a parser fed with garbage raises nearly anything
        raise FormatError(
            f"{path}: must be a whole pickle, got {type(error).__name__}: {str(error)[:200]}: {AGAIN}"
        ) from error


def _value(path: Path, data: bytes) -> object:
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


def array_of(path: Path, rule: str, value: object) -> npt.NDArray[Any]:
    """Return the numbers of an array in a pickle, of any shape, integers or floating point of at most 8 bytes.

    Args:
        path: of the file, for messages.
        rule: what its caller admits, for messages.
        value: what `unpickle` gave.

    Raises:
        FormatError: it is no array, of another type, or has more or fewer bytes than its shape takes.
    """
    match value:
        # Version, shape, type, whether in Fortran order, bytes: the latter are text if Python 2 wrote them.
        case _Made("array", _, (int(), tuple(shape), _Made("dtype", (str(kind), *_), order), int(fortran), raw)) if (
            kind in _NUMBERS and isinstance(raw, str | bytes) and all(type(n) is int and n >= 0 for n in shape)
        ):
            big = isinstance(order, tuple) and order[1:2] == (">",)
        case _:
            refuse(path, rule, "another array" if isinstance(value, _Made) else type(value).__name__)
    try:
        data = raw.encode("latin1") if isinstance(raw, str) else raw
    except UnicodeEncodeError:
        refuse(path, rule, "text that stands for no bytes")
    dtype = np.dtype(kind).newbyteorder(">" if big else "<")
    if len(data) != math.prod(shape) * dtype.itemsize:
        refuse(path, rule, f"{len(data)} bytes for the shape {shape} of {dtype}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def read_pickle(path: Path, key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return images (N, 3, 32, 32) and labels (N,) of a batch of CIFAR's Python version, without running its code.

    Args:
        path: an existing file, the pickle of a dictionary.
        key: its entry with the labels.

    Raises:
        ValueError: the file is no such pickle, names any global but those of arrays, or its parts do not fit.
    """
    batch = unpickle(path, read_whole(path))
    if not isinstance(batch, dict) or not {"data", key} <= batch.keys():
        found = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        refuse(path, f"the pickle must be a dictionary with 'data' and '{key}'", str(found)[:200])
    rule = "'data' must be a uint8 array (N, 3072) with N > 0"
    images, labels = array_of(path, rule, batch["data"]), batch[key]
    if images.dtype != np.uint8 or images.shape != (len(images), 3072) or not len(images):
        refuse(path, rule, f"{images.dtype} of the shape {images.shape}")
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 2**31 for label in labels):
        refuse(path, f"'{key}' must be a list of small integers", type(labels).__name__)
    return images.reshape(len(images), 3, 32, 32), np.array(labels, np.int64)


def read_objects(path: Path, data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a dictionary that NumPy has written as an array of one object, `data` in a .npz file.

    Args:
        path: of the file, for messages.
        data: its pickle.

    Raises:
        FormatError: it is anything else.
    """
    rule = "the file must hold one dictionary of arrays"
    match made := unpickle(path, data):
        case _Made("array", _, (int(), (), _Made("dtype", ("O8" | "O4" | "O", *_)), _, [dict(found)])):
            pass
        case _:
            refuse(path, rule, "another array" if isinstance(made, _Made) else type(made).__name__)
    return {name: array_of(path, f"{name[:80]!r} must be an array of numbers", value) for name, value in found.items()}
