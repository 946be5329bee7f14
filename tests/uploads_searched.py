"""Pieces of single uploads, searched for in bytes: four numbers of 32 bits in a row, or two of 64."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedloom.core import tree
from fedloom.engines.links import Question
from fedloom.engines.message import EVALUATING
from fedloom.privacy.secure_sums import FixedUploads, InFixedPoint, SecureAggregation
from fedloom.privacy.weighted_parts import weighted_of

SIZE = 16  # bytes of a piece
_HEX = re.compile(rb"[0-9a-f]{32,}")
_TRACED = re.compile(rb'MSG_PAYLOAD: \["(.*)"\]\n')
_RUNES = re.compile(rb"\\\\|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")
Seen = Callable[[int, int, Any], object]  # (round, client, upload of one, stacked)


def cut(data: bytes) -> set[bytes]:
    """All pieces of some numbers; those with many zeros are everywhere, and left out."""
    pieces = {data[i : i + SIZE] for i in range(0, len(data) - SIZE + 1, 4)}
    return {piece for piece in pieces if piece.count(0) < SIZE // 2}


def pieces_of(upload: Any, fixed: FixedUploads) -> set[bytes]:
    """The pieces of an upload as floats of 32 and 64 bits, and as words in fixed point, weighted as they are added."""
    nodes = weighted_of(upload)[0]
    floats = torch.cat([leaf[0].flatten() for node in nodes for leaf in tree.leaves(node.value)])
    forms = (floats.float().numpy(), floats.double().numpy(), fixed.words(nodes, 0))
    return {piece for values in forms for piece in cut(values.tobytes())}


def pieces_sent(broadcast: Any) -> set[bytes]:
    """The pieces of what all are sent, such as parts of the model that an upload leaves as they are."""
    leaves = [leaf for leaf in tree.leaves(broadcast) if leaf.is_floating_point()]
    floats = torch.cat([leaf.flatten().float() for leaf in leaves])
    return cut(floats.numpy().tobytes()) | cut(floats.double().numpy().tobytes())


def found(pieces: set[bytes], data: bytes) -> set[bytes]:
    """The pieces that are in some bytes, at any place, as they are or as hexadecimal digits."""
    out, begins = set[bytes](), np.zeros(1 << 24, bool)
    begins[[int.from_bytes(piece[:3], "little") for piece in pieces]] = True
    digits = _HEX.findall(data)
    shifted = [each[shift : len(each) - (len(each) - shift) % 2] for each in digits for shift in (0, 1)]
    for hay in (data, bytes.fromhex(b" ".join(shifted).decode())):
        for shift in range(min(8, max(0, len(hay) - SIZE + 1))):
            at = np.frombuffer(hay, "<u8", (len(hay) - shift) // 8, shift)
            for i in np.flatnonzero(begins[at & 0xFFFFFF]).tolist():
                out.add(hay[8 * i + shift : 8 * i + shift + SIZE])
    return out & pieces


@contextmanager
def uploads_seen(seen: Seen, sent: Callable[[int, Any], object], clients: Sequence[int]) -> Iterator[None]:
    """Have simulated masked sums show each upload, also of those that are lost, and what all are sent."""
    true = InFixedPoint.answers

    def answers(self: InFixedPoint, question: Question, coming: Any) -> Any:
        engine, call = question.engine, question.call

        def noted() -> Any:
            for request, states, answer in coming:
                for i, k in enumerate(request.clients):
                    seen(call.round, k, tree.take(answer.upload, slice(i, i + 1)))
                yield request, states, answer

        if call.exchange != EVALUATING:
            sent(call.round, call.broadcast)
            for k in {*clients} - {*question.clients}:
                seen(call.round, k, engine.ask(call, [k], lambda ids: ())[2].upload)
        return true(self, question, noted())

    InFixedPoint.answers = answers  # type: ignore[method-assign]
    try:
        yield
    finally:
        InFixedPoint.answers = true  # type: ignore[method-assign]


def in_words(asked: str, weights: Sequence[float]) -> FixedUploads:
    """The fixed point in which clients with these weights send theirs."""
    return FixedUploads(SecureAggregation.read(asked), sum(weights), len(weights))


def traced(log: bytes) -> list[bytes]:
    """The messages that a nats-server with `--trace` has been given, by its log; the last line may be cut."""
    return [unquoted(each) for each in _TRACED.findall(log)]


def unquoted(text: bytes) -> bytes:
    """The bytes that Go prints so (%q)."""
    plain = _RUNES.sub(lambda m: m[0] if m[0] == b"\\\\" else chr(int(m[0][2:], 16)).encode(), text)
    return codecs.escape_decode(plain)[0]  # type: ignore[attr-defined,no-any-return]
