"""Public examples, as a server sends them to its devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import CodecError, RefusedError
from fedloom.data import Examples
from fedloom.data.inputs import read_inputs
from fedloom.engines.message_bytes import short, unpack
from fedloom.engines.service import LIMIT


def read_public(data: bytes, like: Examples, limit: int = LIMIT) -> tuple[Examples, bool]:
    """Return (public examples, whether their labels are known) from a message of the server.

    Raises:
        RefusedError: it is no such message, or the examples are of another kind than `like`.
    """

    def check(head: dict[str, Any], name: str, part: Any) -> None:
        kinds = {"x": (like.x.dtype, like.shape), "y": (like.y.dtype, tuple(like.y.shape[1:]))}
        if name not in kinds or not isinstance(part, Tensor) or (part.dtype, tuple(part.shape[1:])) != kinds[name]:
            raise CodecError(f"they must be {like.x.dtype} of {like.shape}, got {name[:80]!r}: {short(part)}")

    try:
        message = unpack(data, check=check, limit=limit)
        x, labels = message.parts["x"], message.head["labels"] is True
        y = message.parts["y"] if labels else torch.zeros((len(x), *like.y.shape[1:]), dtype=like.y.dtype)
        normalise = read_inputs(message.head["normalise"])
        return Examples(x, y, like.num_classes, normalise, "public examples"), labels
    except (CodecError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"these are no public examples for this device: {error}") from None
