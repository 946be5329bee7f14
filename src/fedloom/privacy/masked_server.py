"""The server's half of a masked sum: what it makes of four messages of each client (`masked_client`).

Whoever does not answer a message, or answers none that can be read, is left out from there on. The sum is that of all
whose numbers came, or there is none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import SystemRandom

import numpy as np

from fedloom.core.errors import NobodyAnswered, RefusedError
from fedloom.privacy import mask_secrets as secrets
from fedloom.privacy.fixed_point import Words
from fedloom.privacy.masked_terms import ADVERTISED, KEY, LEAST, SEALED, Graph, Terms, graph_of, is_connected
from fedloom.privacy.secret_shares import SHARE, combine

Messages = Mapping[int, bytes]  # by client


@dataclass(frozen=True)
class Introduced:
    """Keys and neighbours, once clients have advertised their keys."""

    terms: Terms
    keys: Mapping[int, bytes]
    graph: Graph


@dataclass(frozen=True)
class Collected:
    """Sum under masks, once clients have sent their numbers."""

    first: Introduced
    there: frozenset[int]  # whose numbers came
    gone: frozenset[int]  # who has shared secrets, and sent no numbers
    total: Words  # of the masked numbers

    def asked(self, client: int) -> tuple[list[int], list[int]]:
        """Return the neighbours of a client that are there, and those that are gone."""
        near = self.first.graph[client]
        return [k for k in near if k in self.there], [k for k in near if k in self.gone]


def introduce(terms: Terms, answers: Messages) -> tuple[Introduced, Messages]:
    """Return who masks with whom, and what each client is sent: the keys of its neighbours.

    Raises:
        NobodyAnswered: too few have advertised keys.
    """
    keys = {k: message for k, message in sorted(answers.items()) if len(message) == ADVERTISED}
    _enough(len(keys), max(LEAST, terms.threshold + 1), "have advertised their keys")
    order = list(keys)
    SystemRandom().shuffle(order)
    graph = graph_of(order, terms.neighbours)
    entries = {k: struct.pack("<I", k) + message[: 2 * KEY] for k, message in keys.items()}
    return Introduced(terms, keys, graph), {k: b"".join(entries[j] for j in graph[k]) for k in keys}


def forward(state: Introduced, answers: Messages) -> Messages:
    """Return what each client is sent: the sealed shares that are for it.

    Clients of whose neighbours too few have sent shares are left out, and so on until all have enough.

    Raises:
        NobodyAnswered: too few are left.
    """
    graph = state.graph
    sent = {k: answers[k] for k in graph if len(answers.get(k, b"")) == SEALED * len(graph[k])}
    while few := {k for k in sent if sum(j in sent for j in graph[k]) < state.terms.threshold}:
        sent = {k: message for k, message in sent.items() if k not in few}
    _enough(len(sent), LEAST, "have shared their secrets")

    def part(sender: int, receiver: int) -> bytes:
        at = graph[sender].index(receiver) * SEALED
        return struct.pack("<I", sender) + sent[sender][at : at + SEALED]

    return {k: b"".join(part(j, k) for j in graph[k] if j in sent) for k in sent}


def collect(state: Introduced, shared: Messages, answers: Messages) -> tuple[Collected, Messages]:
    """Return the sum of what came, still masked, and what each client is sent: which neighbours are there or gone.

    Args:
        state: as `introduce` returned it.
        shared: what `forward` returned.
        answers: masked numbers by client.

    Raises:
        NobodyAnswered: too few have sent numbers, so that some secret could not be put together; or these are in parts
            that no masks join, whose sums would show.
    """
    terms = state.terms
    size = terms.words * terms.bits // 8
    there = [k for k in shared if len(answers.get(k, b"")) == size]
    _enough(len(there), LEAST, "have sent their numbers")
    total = np.zeros(terms.words, f"<u{terms.bits // 8}")
    for k in there:
        total += np.frombuffer(answers[k], total.dtype)
    out = Collected(state, frozenset(there), frozenset(shared) - set(there), total)
    for k in shared:
        _enough(sum(j in out.there for j in state.graph[k]), terms.threshold, f"are there as neighbours of client {k}")
    if not is_connected(state.graph, set(there)):
        raise NobodyAnswered("those that are left are in parts that no mask joins, whose sums would show")
    asked = {k: out.asked(k) for k in there}
    return out, {k: struct.pack(f"<{1 + len(a) + len(b)}I", len(a), *a, *b) for k, (a, b) in asked.items()}


def finish(state: Collected, answers: Messages) -> Words:
    """Return the sum without masks: of the numbers of all in `state.there`.

    Raises:
        NobodyAnswered: too few have sent shares.
        RefusedError: shares of a client do not give its secret, so some client has sent another one.
    """
    first, terms, graph = state.first, state.first.terms, state.first.graph
    held: dict[int, dict[int, bytes]] = {k: {} for k in state.there | state.gone}
    for k in state.there:
        named, message = [j for part in state.asked(k) for j in part], answers.get(k, b"")
        if len(message) == SHARE * len(named):
            for i, j in enumerate(named):
                held[j][graph[j].index(k)] = message[SHARE * i : SHARE * (i + 1)]
    for k, shares in held.items():
        _enough(len(shares), terms.threshold, f"have sent shares of client {k}")
    total = state.total.copy()
    for k in sorted(state.there):
        keys = first.keys[k]
        seed = _secret(held[k], terms, k, lambda seed: secrets.commitment(seed) == keys[2 * KEY :])  # noqa: B023
        total -= secrets.own_mask(terms, seed)
    for k in sorted(state.gone):
        keys = first.keys[k]
        seed = _secret(
            held[k],
            terms,
            k,
            lambda seed: secrets.public_key(secrets.private_key(seed)) == keys[KEY : 2 * KEY],  # noqa: B023
        )
        private = secrets.private_key(seed)
        for j in state.asked(k)[0]:  # what each of them has added for the one that is gone
            public = first.keys[j][KEY : 2 * KEY]
            total += secrets.mask_between(terms, private, public, k, j)
    return total


def _secret(shares: Mapping[int, bytes], terms: Terms, client: int, is_right: Callable[[bytes], bool]) -> bytes:
    seed = combine(shares, terms.threshold)
    if not is_right(seed):
        raise RefusedError(f"the shares of client {client} do not give its secret: some client has sent another share")
    return seed


def _enough(count: int, least: int, what: str) -> None:
    if count < least:
        raise NobodyAnswered(f"a masked sum needs {least} clients that {what}, got {count}")
