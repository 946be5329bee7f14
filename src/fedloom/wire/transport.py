"""Requests and answers as bytes: what every engine uses whose clients are not in its own process.

A message is a head, which is JSON, and parts, which are trees of tensors:

    4 bytes: CRC-32 of what follows | 4 bytes: length of the head | head: numbers, names, and of each part its structure
    and length | parts: safetensors

The structure of a part is read before its tensors are: shapes and types are compared with what was asked for, and the
whole with a limit, before anything is allocated. No code travels, and nothing but tensors, numbers and names. The sum
finds what was damaged on its way between parts of one program; strangers have a seal.
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

_MAX_HEAD = 16 << 20  # bytes of the head of a message, or of the structure of a part
_STRANGERS = 1 << 20  # the same where there is a limit, which is so of all that others send
Check = Callable[[dict[str, Any], str, Any], None]  # (head, name of a part, the part without storage): may raise


@dataclass(frozen=True)
class Message:
    """Message that came: `head` holds JSON, `parts` trees of tensors."""

    head: dict[str, Any]
    parts: dict[str, Any]


def pack(head: Mapping[str, Any], parts: Mapping[str, Any]) -> bytes:
    """Return a message. A `Part` was made before, so that many requests share its making."""
    made = {name: value if isinstance(value, Part) else part(value) for name, value in parts.items()}
    lengths = {name: sum(map(len, each.chunks)) for name, each in made.items()}
    text = json.dumps({"head": head, "parts": lengths}).encode()
    return with_checksum(
        len(text).to_bytes(4, "little"), text, *(chunk for each in made.values() for chunk in each.chunks)
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
    """Return the message in some bytes; `check` sees the structure of each part before its tensors are made.

    Raises:
        CodecError: they are no message, more than `limit` bytes, damaged, or hold what `check` refuses.
    """
    head, lengths, rest = _opened(data, limit)
    if zlib.crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
        raise CodecError("the message was damaged on its way")
    if min(lengths.values(), default=0) < 0 or sum(lengths.values()) != len(rest):
        raise CodecError(f"the message is cut or padded: parts of {sum(lengths.values())} bytes in {len(rest)}")
    parts, start = {}, 0
    for name, length in lengths.items():
        parts[name] = _part(name, rest[start : start + length], head, check, limit, device)
        start += length
    return Message(head, parts)


def head_of(data: bytes | memoryview, limit: int | None = None) -> dict[str, Any]:
    """Return the head of a message, whose parts are not looked at.

    Raises:
        CodecError: as of `unpack`.
    """
    return _opened(data, limit)[0]


def _opened(data: bytes | memoryview, limit: int | None) -> tuple[dict[str, Any], dict[str, int], memoryview]:
    """Return (head, bytes of each part, the parts) of a message."""
    if limit is not None and len(data) > limit:
        raise CodecError(f"a message of {len(data)} bytes, and at most {limit} are taken: raise the limit or send less")
    text, rest = _counted(memoryview(data)[4:], limit)
    outer = _json(text, limit)
    try:
        return dict(outer["head"]), {str(name): int(n) for name, n in outer["parts"].items()}, rest
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CodecError(f"not a message of fedloom: {error!r}") from None


def _part(
    name: str, data: memoryview, head: dict[str, Any], check: Check | None, limit: int | None, device: Any
) -> Any:
    text, tensors = _counted(data, limit)
    like = blank(_json(text, limit))
    size = sum(t.numel() * t.itemsize for t in tree.leaves(like))  # what is absent takes memory as well
    if limit is not None and size > limit:
        raise CodecError(f"{name} asks for {size} bytes, and at most {limit} are given: raise the limit or send less")
    if check is not None:
        check(head, name, like)
    return decode(bytes(tensors), like, device)


def _counted(data: bytes | memoryview, limit: int | None) -> tuple[bytes, memoryview]:
    """Return (text, what follows) of bytes that begin with the length of the text."""
    view, most = memoryview(data), _MAX_HEAD if limit is None else _STRANGERS
    size = int.from_bytes(view[:4], "little")
    if len(view) < 4 or size > min(most, len(view) - 4):
        raise CodecError(f"not a message of fedloom: a head of {size} bytes in {len(view)}")
    return bytes(view[4 : 4 + size]), view[4 + size :]


def _json(text: bytes, limit: int | None) -> Any:
    """Return what stands in a head.

    The head of strangers is bounded in its depth; a part of this program may say NaN.
    """
    try:
        return json.loads(text) if limit is None else parse(text, _STRANGERS)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a message of fedloom: {error}") from None


def sealed(data: bytes, token: str) -> bytes:
    """Return a message behind its digest, 16 bytes that nobody finds who lacks the `token`: BLAKE2b, keyed."""
    return _seal(data, token) + data


def unsealed(data: bytes | memoryview, token: str, limit: int) -> memoryview:
    """Return the message of `sealed`.

    Raises:
        RefusedError: it is too large, damaged, or of somebody with another token.
    """
    view = memoryview(data)
    if len(view) > limit:
        raise RefusedError(f"a message of {len(view)} bytes, and at most {limit} are taken: raise the limit")
    if not hmac.compare_digest(bytes(view[:16]), _seal(view[16:], token)):
        raise RefusedError("a message was damaged on its way, or is of somebody who has not joined")
    return view[16:]


def _seal(data: bytes | memoryview, token: str) -> bytes:
    return hashlib.blake2b(data, digest_size=16, key=token.encode()).digest()


def same_shapes(want: Any, name: str, got: Any) -> None:
    """Raise CodecError unless a part has the structure, types and shapes of what was asked for."""
    if not tree.same_structure(want, got):
        raise CodecError(f"{name} is not what was asked for: {short(got)}, asked for {short(want)}")


def short(value: Any) -> str:
    """Describe a tree in a few words, for messages."""
    leaves, spec = tree.flatten(value)
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in leaves[:4])
    return f"{len(leaves)} tensors ({shapes}{', ...' * (len(leaves) > 4)}) in {' '.join(str(spec).split())[:120]}"


def shapes_of(value: Any) -> Any:
    """Return a tree without storage of the same structure, types and shapes."""
    return tree.map_tree(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), value)
