"""A masked sum whose clients and server are in one process: for simulations, tests and measurements."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fedloom.core.errors import RefusedError
from fedloom.privacy import masked_client, masked_server
from fedloom.privacy.fixed_point import Bits, Words
from fedloom.privacy.masked_terms import Terms

Stage = Literal["advertise", "share", "mask", "unmask"]
Watch = Callable[[str, int, bytes], bytes | None]  # (message, client, bytes) -> what arrives; None: nothing


def _arrives(message: str, client: int, content: bytes) -> bytes | None:
    return content


def masked_sum(
    numbers: Mapping[int, Words], *, neighbours: int | None = None, clients: int | None = None, watch: Watch = _arrives
) -> Words:
    """Return the sum of vectors modulo 2^bits, of which the server half has seen none.

    Args:
        numbers: of each client, [d].
        neighbours: with how many each masks; None: as `Terms.of` chooses.
        clients: how many were asked, of whom some may never answer; None: these.
        watch: is told every message, "up advertise" to "down mask", and says what arrives of it.

    Raises:
        NobodyAnswered: too few are left for a sum.
        RefusedError: a client has sent shares that are none.
    """
    one = next(iter(numbers.values()))
    bits: Bits = 32 if one.dtype.itemsize == 4 else 64
    terms = Terms.of(os.urandom(16), len(one), bits, len(numbers) if clients is None else clients, neighbours)
    kept: dict[int, Any] = {}

    def asked(
        stage: Stage, sent: Mapping[int, bytes], answer: Callable[[int, bytes], tuple[Any, bytes]]
    ) -> dict[int, bytes]:
        """Return what arrives of clients that are sent messages; who refuses one does not answer."""
        out = dict[int, bytes]()
        for k, message in sent.items():
            down = watch(f"down {stage}", k, message)
            if down is None:
                continue
            try:
                kept[k], up = answer(k, down)
            except RefusedError:
                continue
            if (came := watch(f"up {stage}", k, up)) is not None:
                out[k] = came
        return out

    keys = asked("advertise", dict.fromkeys(numbers, b""), lambda k, _: masked_client.advertise(terms, k))
    introduced, sent = masked_server.introduce(terms, keys)
    shares = asked("share", sent, lambda k, message: masked_client.share(kept[k], message))
    forwarded = masked_server.forward(introduced, shares)
    masked = asked("mask", forwarded, lambda k, message: masked_client.mask(kept[k], message, numbers[k]))
    collected, named = masked_server.collect(introduced, forwarded, masked)
    last = asked("unmask", named, lambda k, message: (None, masked_client.unmask(kept[k], message)))
    return masked_server.finish(collected, last)
