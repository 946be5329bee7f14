"""Requests and answers as bytes, for all engines whose clients are in other processes.

A message is a head, which is JSON, and parts, which are trees of tensors:

    4 bytes: CRC-32 of what follows | 4 bytes: length of the head | head: numbers, names, and of each part its structure
    and length | parts: safetensors

The structure of a part is read before its tensors. Its shapes and types are checked, and its size against a limit,
before memory is allocated. Only tensors, numbers and names travel, and no code. The checksum finds damage between parts
of one program; messages of strangers have a seal.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedloom.core import tree
from fedloom.core.errors import CodecError, RefusedError
from fedloom.storage.codec import blank, decode, describe, encode
from fedloom.storage.strict_json import parse
from fedloom.wording import some_of

_MAX_HEAD = 16 << 20  # bytes of the head of a message, or of the structure of a part
_STRANGERS = 1 << 20  # the same where there is a limit, as for all messages of strangers
Check = Callable[[dict[str, Any], str, Any], None]  # (head, name of a part, the part without storage): may raise


@dataclass(frozen=True)
class Message:
    """Received message: `head` holds JSON, `parts` trees of tensors."""

    head: dict[str, Any]
    parts: dict[str, Any]


def pack(head: Mapping[str, Any], parts: Mapping[str, Any]) -> bytes:
    """Return a message as bytes. A `Part` is packed already, so that many requests share the work."""
    packed = {name: value if isinstance(value, Part) else part(value) for name, value in parts.items()}
    lengths = {name: sum(map(len, each.chunks)) for name, each in packed.items()}
    text = json.dumps({"head": head, "parts": lengths}).encode()
    return with_checksum(
        len(text).to_bytes(4, "little"), text, *(chunk for each in packed.values() for chunk in each.chunks)
    )


def with_checksum(*chunks: bytes) -> bytes:
    """Return bytes behind their CRC-32."""
    check = functools.reduce(lambda so_far, chunk: zlib.crc32(chunk, so_far), chunks, 0)
    return b"".join([check.to_bytes(4, "little"), *chunks])


@dataclass(frozen=True)
class Part:
    """One part of a message, in pieces that are copied once."""

    chunks: tuple[bytes, ...]


def part(value: Any) -> Part:
    """Return a tree as a part of a message."""
    text = json.dumps(describe(value)).encode()
    return Part((len(text).to_bytes(4, "little"), text, encode(value)))


def unpack(
    data: bytes | memoryview, *, check: Check | None = None, limit: int | None = None, device: Any = "cpu"
) -> Message:
    """Return the message in some bytes; `check` is called with the structure of each part before its tensors are made.

    Raises:
        CodecError: they are no message, more than `limit` bytes, damaged, or refused by `check`.
    """
    head, lengths, rest = _split_message(data, limit)
    if zlib.crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
        raise CodecError("the message was damaged on its way")
    if min(lengths.values(), default=0) < 0 or sum(lengths.values()) != len(rest):
        raise CodecError(f"the message is cut or padded: parts of {sum(lengths.values())} bytes in {len(rest)}")
    parts, start = {}, 0
    for name, length in lengths.items():
        parts[name] = _read_part(name, rest[start : start + length], head, check, limit, device)
        start += length
    return Message(head, parts)


def head_of(data: bytes | memoryview, limit: int | None = None) -> dict[str, Any]:
    """Return the head of a message, without reading its parts.

    Raises:
        CodecError: as of `unpack`.
    """
    return _split_message(data, limit)[0]


def _split_message(data: bytes | memoryview, limit: int | None) -> tuple[dict[str, Any], dict[str, int], memoryview]:
    """Return (head, bytes of each part, the parts) of a message."""
    if limit is not None and len(data) > limit:
        raise CodecError(f"a message of {len(data)} bytes, and at most {limit} are taken: raise the limit or send less")
    text, rest = _split_text(memoryview(data)[4:], limit)
    outer = _json(text, limit)
    try:
        return dict(outer["head"]), {str(name): int(n) for name, n in outer["parts"].items()}, rest
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CodecError(f"not a message of fedloom: {error!r}") from None


def _read_part(
    name: str, data: memoryview, head: dict[str, Any], check: Check | None, limit: int | None, device: Any
) -> Any:
    text, tensors = _split_text(data, limit)
    like = blank(_json(text, limit))
    size = sum(t.numel() * t.itemsize for t in tree.leaves(like))  # absent values take memory too
    if limit is not None and size > limit:
        raise CodecError(f"{name} asks for {size} bytes, and at most {limit} are given: raise the limit or send less")
    if check is not None:
        check(head, name, like)
    return decode(bytes(tensors), like, device)


def _split_text(data: bytes | memoryview, limit: int | None) -> tuple[bytes, memoryview]:
    """Return (text, rest) of bytes that begin with the length of the text."""
    view, max_bytes = memoryview(data), _MAX_HEAD if limit is None else _STRANGERS
    size = int.from_bytes(view[:4], "little")
    if len(view) < 4 or size > min(max_bytes, len(view) - 4):
        raise CodecError(f"not a message of fedloom: a head of {size} bytes in {len(view)}")
    return bytes(view[4 : 4 + size]), view[4 + size :]


def _json(text: bytes, limit: int | None) -> Any:
    """Return the content of a head in JSON.

    The head of strangers is read strictly, with bounded depth. A part of this program may send NaN.
    """
    try:
        return json.loads(text) if limit is None else parse(text, _STRANGERS)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a message of fedloom: {error}") from None


def seal(data: bytes, token: str) -> bytes:
    """Return a message behind its seal: 16 bytes of BLAKE2b with the `token` as key."""
    return _mac(data, token) + data


def unseal(data: bytes | memoryview, token: str, limit: int) -> memoryview:
    """Return the message behind its seal.

    Raises:
        RefusedError: it is too large, damaged, or sealed with another token.
    """
    view = memoryview(data)
    if len(view) > limit:
        raise RefusedError(f"a message of {len(view)} bytes, and at most {limit} are taken: raise the limit")
    if not hmac.compare_digest(bytes(view[:16]), _mac(view[16:], token)):
        raise RefusedError("a message was damaged on its way, or its sender has not joined")
    return view[16:]


def _mac(data: bytes | memoryview, token: str) -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=token.encode()).digest()


def same_shapes(expected: Any, name: str, actual: Any) -> None:
    """Raise CodecError unless a part has the expected structure, types and shapes."""
    if not tree.same_structure(expected, actual):
        raise CodecError(f"{name} is not what was asked for: {short(actual)}, asked for {short(expected)}")


def short(value: Any) -> str:
    """Return a short description of a tree, for messages."""
    leaves, spec = tree.flatten(value)
    shapes = some_of((f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in leaves), 4)
    return f"{len(leaves)} tensors ({shapes}) in {' '.join(str(spec).split())[:120]}"


def shapes_of(value: Any) -> Any:
    """Return a tree without storage of the same structure, types and shapes."""
    return tree.map_tree(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), value)
