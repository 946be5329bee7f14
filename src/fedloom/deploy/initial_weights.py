"""Send the tensors with which a network starts to a device that lacks them: offered by its digest, then in parts.

    server                              device
    {"digest": ..., "size": n}          {"start": bytes of it that the device has}
    {"offset": k} and bytes             {"start": k and as many as came}
    ...                                 {"start": n}

A device that has the whole says so at once. One whose transfer broke off says how much has come, and the rest follows.
Messages are those of `message_bytes`; neither end believes the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fedloom.core.errors import CodecError, RefusedError
from fedloom.core.model import Model
from fedloom.core.network_copies import stored_names, tensors_of
from fedloom.deploy.registration import check_id
from fedloom.engines.message_bytes import Message, pack, unpack
from fedloom.engines.service import integer
from fedloom.storage import files
from fedloom.storage.strict_json import parse

PART = 4 << 20  # bytes of a part, at most
_HEADS = 1 << 20  # bytes of a message beside those of a part
_SAID = 1 << 10  # bytes of what a device says
_ENTRY, _BESIDE = 512, 1 << 10  # bytes of a header of safetensors: of an entry beside its name, beside the entries


@dataclass(frozen=True)
class Start:
    """The tensors with which a network begins, the frozen ones too, as the bytes of a safetensors file."""

    data: bytes = field(repr=False)
    digest: str

    @classmethod
    def of(cls, model: Model) -> Start:
        """Return those of a network that begins with the tensors of a module."""
        values, stored = model.whole(0), stored_names(model.skeleton())
        data = safetensors.torch.save({name: values[name].contiguous() for name in stored})
        return cls(data, files.digest(data))

    def offer(self) -> bytes:
        """Return the first message to a device."""
        return pack({"digest": self.digest, "size": len(self.data)}, {})

    def part(self, offset: int) -> bytes:
        """Return the part that begins at `offset`, as a message."""
        piece = bytearray(self.data[offset : offset + PART])
        return pack({"offset": offset}, {"bytes": torch.frombuffer(piece, dtype=torch.uint8)})


class Transfer:
    """The transfer to one device, as the server follows it. `sent`: bytes that went to it."""

    def __init__(self, start: Start) -> None:
        self.start, self.sent = start, 0
        self._due: int | None = None  # what the device has once it has what was sent

    def next(self, said: bytes | memoryview) -> bytes | None:
        """Return what to answer a device that says how much it has; None where it has the whole.

        Raises:
            RefusedError: it says something else, or another number than it can have.
        """
        size = len(self.start.data)
        try:
            if len(said) > _SAID:
                raise ValueError(f"{len(said)} bytes")
            has = parse(bytes(said), _SAID).get("start")
        except ValueError as error:
            raise RefusedError(f"it has not said how much of the start it has: {error!s:.80}") from None
        if type(has) is not int or not 0 <= has <= size or self._due not in (None, has):
            can = f"0 to {size}" if self._due is None else str(self._due)
            raise RefusedError(f"it says that it has {has!r:.40} bytes of the start, and can have {can}")
        if has == size:
            return None
        message = self.start.part(has)
        self._due = min(size, has + PART)
        self.sent += self._due - has
        return message


@dataclass(frozen=True)
class Offer:
    """Announce a start before any of it is sent: its digest and size in bytes."""

    digest: str
    size: int

    @classmethod
    def read(cls, data: bytes, model: Model) -> Offer:
        """Return the offer in a message, for this network.

        Raises:
            RefusedError: it is none, or of a size that the tensors of the network cannot have.
        """
        head = _read(data).head
        digest, size = check_id(head.get("digest"), "a start"), _integer(head, "size")
        network = model.skeleton()
        named = dict(tensors_of(network))
        tensors = {name: named[name] for name in stored_names(network)}
        least = sum(t.numel() * (4 if t.is_floating_point() else t.itemsize) for t in tensors.values())
        most = least + _BESIDE + sum(_ENTRY + 6 * len(name) for name in tensors)
        if not least <= size <= most:
            raise RefusedError(
                f"the start of {model.name} has {least} to {most} bytes here, and the server says {size}: start from "
                "the weights of this network"
            )
        return cls(digest, size)

    def part(self, data: bytes, offset: int) -> bytes:
        """Return the bytes of a part, which begins at `offset`.

        Raises:
            RefusedError: it is none, begins elsewhere, is empty, or is longer than what is left.
        """

        def check(head: dict[str, Any], name: str, part: Any) -> None:
            wrong = not isinstance(part, Tensor) or part.dtype != torch.uint8 or part.ndim != 1
            if name != "bytes" or wrong:
                raise CodecError(f"bytes are due, got {name[:80]!r}")

        message = _read(data, check)
        begins, left = _integer(message.head, "offset"), min(PART, self.size - offset)
        if begins != offset:
            raise RefusedError(f"a part of the start that begins at byte {offset} is due, got one from {begins}")
        piece = message.parts.get("bytes", torch.empty(0))
        if not 1 <= len(piece) <= left:
            raise RefusedError(f"a part of the start has 1 to {left} bytes here, got {len(piece)}")
        return bytes(piece.numpy().data)


def _read(data: bytes, check: Any = None) -> Message:
    """Return a message of the server.

    Raises:
        RefusedError: it is none, or says that the device is refused.
    """

    def nothing(head: dict[str, Any], name: str, part: Any) -> None:
        raise CodecError(f"nothing comes with it, got {name[:80]!r}")

    try:
        message = unpack(data, check=check or nothing, limit=PART + _HEADS)
    except CodecError as error:
        raise RefusedError(f"the server sends no start: {error}") from None
    if message.head.get("refused") is not None:
        raise RefusedError(f"the server does not take this device: {message.head['refused']!s:.200}")
    return message


def _integer(head: dict[str, Any], name: str) -> int:
    try:
        return integer(head, name)
    except CodecError as error:
        raise RefusedError(f"the server sends no start: {error}") from None
