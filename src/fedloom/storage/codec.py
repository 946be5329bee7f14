"""Codec of payloads and states: safetensors, without pickle, read only against an expected structure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import torch
from safetensors.torch import load, save
from torch.utils import _pytree as pytree

from fedloom.core.errors import CodecError
from fedloom.core.types import STATES, Maybe, Tree
from fedloom.storage import files

T = TypeVar("T")
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ENTRY = 200  # bytes of an entry of a header beside its name, with as many axes as there are
_PLAIN = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")


def encode(value: Tree) -> bytes:
    """Return the tensors of a tree, by their paths, as bytes; the value of an absent `Maybe` is left out."""
    tensors = {}
    for path, leaf in _paths(value):
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _NAMES:
            what = str(leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            raise CodecError(
                f"leaf {path!r} is a {what}; payloads and states hold tensors of {sorted(_NAMES.values())}"
            )
        tensors[path] = leaf.detach().cpu().contiguous()
    return save(_unshared(tensors))


def pieces(tensors: Mapping[str, torch.Tensor]) -> list[bytes | memoryview]:
    """Return the bytes of a safetensors file of these tensors, in pieces: tensors on the CPU are not copied."""
    raw = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    head, end = dict[str, Any](), 0
    for name, t in raw.items():
        head[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + t.nbytes]}
        end += t.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return [
        len(text).to_bytes(8, "little"),
        text,
        *(t.reshape(-1).view(torch.uint8).numpy().data for t in raw.values()),
    ]


def digest(value: Tree) -> str:
    """Return the digest of a tree's tensors, with their paths, dtypes and shapes; their order does not matter."""
    running = files.RunningDigest()
    for path, leaf in sorted(_paths(value), key=lambda at: at[0]):
        raw = leaf.detach().cpu().contiguous().reshape(-1)
        running.add(f"{path} {raw.dtype} {list(leaf.shape)}\n".encode())
        running.add(raw.view(torch.uint8).numpy().data)
    return running.digest


def describe(value: Tree) -> dict[str, Any]:
    """Return the structure of a tree with the dtypes and shapes of its leaves, as JSON; see `blank`.

    Raises:
        CodecError: a node is of a type that is not marked `@state`, or holds what is not JSON.
    """
    leaves, spec = pytree.tree_flatten(value)
    try:
        text = pytree.treespec_dumps(spec)
        _check_kinds(json.loads(text)[1])
    except (NotImplementedError, TypeError, ValueError) as error:
        raise CodecError(f"a message holds tensors in @state classes, dicts, lists and tuples: {error}") from None
    return {"tree": text, "leaves": [[_NAMES.get(t.dtype, str(t.dtype)), list(t.shape)] for t in leaves]}


def blank(description: Any) -> Tree:
    """Return the tree that `describe` was given, of tensors without storage.

    Raises:
        CodecError: it is no description of a tree of known types.
    """
    try:
        _check_kinds(json.loads(description["tree"])[1])
        spec, entries = pytree.treespec_loads(description["tree"]), description["leaves"]
        if len(entries) != spec.num_leaves:  # before any is made: each takes a hundred times its entry
            raise ValueError(f"{len(entries)} leaves are described for a structure of {spec.num_leaves}")
        leaves = [(_DTYPES[name], [_length(n) for n in shape]) for name, shape in entries]
        return pytree.tree_unflatten([torch.empty(s, dtype=d, device="meta") for d, s in leaves], spec)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        NotImplementedError,
        RuntimeError,
        RecursionError,
    ) as error:
        raise CodecError(f"not the structure of a payload: {str(error)[:200]}") from None


def _check_kinds(node: dict[str, Any]) -> None:
    """Raise ValueError unless a structure is made of what messages hold.

    PyTorch, asked to make any other, imports the module that a `defaultdict` or a key that is an `Enum` names.
    """
    kind, context = node["type"], node["context"]
    if kind is not None and kind not in STATES:
        if kind not in _PLAIN:
            raise ValueError(f"{kind!r:.80} is no such type")
        keys = json.loads(context)
        plain = keys is None or (
            type(keys) is list and all(type(k) in (str, int, float, bool) or k is None for k in keys)
        )
        if not plain:
            raise ValueError(f"keys are text or numbers, got {context!r:.80}")
    for child in node["children_spec"]:
        _check_kinds(child)


def _length(n: object) -> int:
    if type(n) is int and 0 <= n < 2**40:
        return n
    raise ValueError(f"{n!r} is no length")


def decode(data: bytes, like: T, device: torch.device | str | None = None) -> T:
    """Return the tree that `encode` was given.

    `like`: a tree of the expected structure, shapes and dtypes. Tensors are on `device`, by default on that of `like`.

    Names, dtypes and shapes are compared with `like` before anything is allocated; any difference is a CodecError.
    """
    expected = dict(_paths(like, with_absent=True))
    header = _header(data, sum(len(json.dumps(p)) + _ENTRY + 20 * t.ndim for p, t in expected.items()) + _ENTRY)
    missing = {p for p in expected if p not in header}
    for path in header:
        if path not in expected:
            raise CodecError(f"unexpected tensor {path[:80]!r}; expected are {sorted(expected)[:8]}")
    for path, (dtype, shape) in header.items():
        like_leaf = expected[path]
        if dtype != _NAMES[like_leaf.dtype] or shape != list(like_leaf.shape):
            raise CodecError(f"{path!r} is {dtype} {shape}, expected {_NAMES[like_leaf.dtype]} {list(like_leaf.shape)}")
    try:
        tensors = load(data)
    except Exception as error:
        raise CodecError(f"the bytes do not agree with their header: {error}") from error
    for path, tensor in tensors.items():
        if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise CodecError(f"{path!r} must hold bools, bytes of 0 or 1, got {int(tensor.view(torch.uint8).max())}")
    optional = _optional(like, tensors)
    if missing != optional:
        raise CodecError(f"tensors contradict the flag of their Maybe: {sorted(missing ^ optional)[:8]}")
    flat = pytree.tree_flatten_with_path(like)[0]
    leaves = []
    for place, like_leaf in flat:
        name = pytree.keystr(place)
        where = like_leaf.device if device is None else device
        leaves.append(tensors[name].to(where) if name in tensors else torch.zeros_like(like_leaf, device=where))
    return pytree.tree_unflatten(leaves, pytree.tree_structure(like))  # type: ignore[no-any-return]


def _header(data: bytes, max_bytes: int) -> dict[str, tuple[str, list[int]]]:
    """Return names, dtypes and shapes from a header of at most `max_bytes`, checked against the length of `data`."""
    try:
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > min(max_bytes, len(data) - 8):
            raise ValueError(f"header of {size} bytes in a message of {len(data)}, expected at most {max_bytes}")
        text = str(data[8 : 8 + size], "utf-8")
        raw = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse, parse_float=_refuse)
        entries = {name: _entry(name, entry) for name, entry in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"not a fedloom payload: {error}") from None
    end = 0
    for name, (_, _, start, stop) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if start != end:
            raise CodecError(f"tensors must follow one another: {name!r} starts at {start}, after {end} bytes")
        end = stop
    if end != len(data) - 8 - size:
        raise CodecError(f"the payload is cut or padded: tensors end at {end} of {len(data) - 8 - size} bytes")
    return {name: (dtype, shape) for name, (dtype, shape, _, _) in entries.items()}


def _entry(name: str, entry: dict[str, object]) -> tuple[str, list[int], int, int]:
    """Return dtype, shape, start and end of a tensor. `decode` compares dtype and shape, `_header` start and end."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if len(entry) == 3:
            if all(type(n) is int and 0 <= n < 2**63 for n in (*shape, start, stop)):
                return dtype, shape, start, stop
    raise ValueError(f"{name!r} needs a dtype, a shape and two offsets")


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError("names must be unique")
    return unique


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"numbers must be whole, got {number}")


def _paths(value: Tree, with_absent: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Return (path, leaf) of each tensor that travels; `with_absent`: also the values of absent Maybes."""
    leaves = [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0]]
    if with_absent:
        return leaves
    skipped = {
        p
        for prefix, maybe in _maybes(value)
        if not maybe.present.any()  # in a stack: absent for all clients
        for p, _ in leaves
        if p.startswith(prefix + ".value")
    }
    return [(p, leaf) for p, leaf in leaves if p not in skipped]


def _optional(like: Tree, tensors: dict[str, torch.Tensor]) -> set[str]:
    """Return the paths that must be missing, by the flags in `tensors`."""
    out: set[str] = set()
    names = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(like)[0]]
    for prefix, _ in _maybes(like):  # outer ones first: a Maybe within an absent one has no flag
        flag = tensors.get(prefix + ".present")
        if flag is not None and not flag.any():
            out.update(n for n in names if n.startswith(prefix + ".value"))
    return out


def _maybes(value: Tree) -> list[tuple[str, Maybe[Tree]]]:
    """Return every Maybe in the tree by its path, outer ones first."""
    out: list[tuple[str, Maybe[Tree]]] = []
    for path, node in pytree.tree_flatten_with_path(value, is_leaf=lambda n: isinstance(n, Maybe))[0]:
        if isinstance(node, Maybe):
            name = pytree.keystr(path)
            out.append((name, node))
            out.extend((f"{name}.value{inner}", maybe) for inner, maybe in _maybes(node.value))
    return out


def _unshared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Clone tensors that share storage, which safetensors refuses."""
    storages: set[int] = set()
    out = {}
    for name, t in tensors.items():
        base = t.untyped_storage().data_ptr()
        out[name] = t.clone() if base in storages or t.untyped_storage().nbytes() != t.nbytes else t
        storages.add(base)
    return out
