"""A client's half of a masked sum: four messages, each a function of what it kept and of what the server says.

    advertise  ->  its keys                        <-  keys of its neighbours
    share      ->  shares of its secrets, sealed   <-  shares of its neighbours' secrets
    mask       ->  its numbers, masked             <-  which neighbours are there, and which are gone
    unmask     ->  a share of one secret of each

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4 without
signatures: the server is trusted to follow the protocol. What a client keeps is in memory alone, for one sum.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fedloom.core.errors import RefusedError
from fedloom.privacy import mask_secrets as secrets
from fedloom.privacy.fixed_point import Words
from fedloom.privacy.mask_secrets import PrivateKey
from fedloom.privacy.masked_terms import ENTRY, KEY, SEALED, Terms
from fedloom.privacy.secret_shares import split


@dataclass(frozen=True, repr=False)  # secrets are in no message of an error
class Advertised:
    """Secrets that a client keeps after its first message."""

    terms: Terms
    client: int
    key_seed: bytes
    mask_seed: bytes
    box: PrivateKey  # private key by which shares are sealed


@dataclass(frozen=True, repr=False)
class Shared:
    """Secrets that a client keeps after its second message, and keys of its neighbours."""

    first: Advertised
    keys: dict[int, tuple[bytes, bytes]]  # of its neighbours: of boxes and of masks


@dataclass(frozen=True, repr=False)
class Masked:
    """Shares that a client keeps after its third message."""

    first: Advertised
    shares: dict[int, tuple[bytes, bytes]]  # of its neighbours' two seeds: of the key, of the own mask


def advertise(terms: Terms, client: int) -> tuple[Advertised, bytes]:
    """Return the secrets of a client, and its public keys.

    Args:
        terms: of the sum.
        client: its number.
    """
    state = Advertised(terms, client, secrets.new_seed(), secrets.new_seed(), secrets.new_key())
    keys = (secrets.public_key(state.box), secrets.public_key(secrets.private_key(state.key_seed)))
    return state, b"".join((*keys, secrets.commitment(state.mask_seed)))


def share(state: Advertised, message: bytes) -> tuple[Shared, bytes]:
    """Return the keys of a client's neighbours, and the shares that each is to keep, in their order.

    Raises:
        RefusedError: the message is none, or names too few neighbours, or too many.
    """
    terms, k = state.terms, state.client
    if len(message) % ENTRY:
        raise RefusedError(f"keys of neighbours are {ENTRY} bytes each, got {len(message)} bytes")
    entries = [message[i : i + ENTRY] for i in range(0, len(message), ENTRY)]
    keys = {struct.unpack_from("<I", entry)[0]: (entry[4 : 4 + KEY], entry[4 + KEY :]) for entry in entries}
    if len(keys) != len(entries) or k in keys or not terms.threshold <= len(keys) <= terms.neighbours:
        raise RefusedError(
            f"a client has {terms.threshold} to {terms.neighbours} neighbours other than itself, got {len(entries)}"
        )
    of_key, of_mask = (split(s, len(keys), terms.threshold) for s in (state.key_seed, state.mask_seed))
    sealed = [
        secrets.seal(terms, state.box, box, k, other, pair)
        for (other, (box, _)), *pair in zip(keys.items(), of_key, of_mask, strict=True)
    ]
    return Shared(state, keys), b"".join(sealed)


def mask(state: Shared, message: bytes, numbers: Words) -> tuple[Masked, bytes]:
    """Return the shares of those neighbours that are there, and the client's numbers under all masks.

    Raises:
        RefusedError: the message is none, or a neighbour has not sealed its part, or too few neighbours are there.
    """
    first, terms, k = state.first, state.first.terms, state.first.client
    size = 4 + SEALED
    if len(message) % size:
        raise RefusedError(f"sealed shares are {size} bytes each, got {len(message)} bytes")
    shares = dict[int, tuple[bytes, bytes]]()
    for i in range(0, len(message), size):
        (other,) = struct.unpack_from("<I", message, i)
        if other not in state.keys or other in shares:
            raise RefusedError(f"client {other} is no neighbour, or is there twice")
        shares[other] = secrets.unseal(terms, first.box, state.keys[other][0], other, k, message[i + 4 : i + size])
    if len(shares) < terms.threshold:
        raise RefusedError(f"{terms.threshold} neighbours must stay, and {len(shares)} are there")
    if numbers.shape != (terms.words,) or numbers.dtype.itemsize * 8 != terms.bits:
        raise ValueError(f"{terms.words} words of {terms.bits} bits are added, got {numbers.dtype} {numbers.shape}")
    masked = numbers + secrets.own_mask(terms, first.mask_seed)
    private = secrets.private_key(first.key_seed)
    for other in shares:
        masked += secrets.mask_between(terms, private, state.keys[other][1], k, other)
    return Masked(first, shares), masked.tobytes()


def unmask(state: Masked, message: bytes) -> bytes:
    """Return a share of one secret of each neighbour: of the own mask if it is there, of the key if it is gone.

    What the client kept is of no use afterwards and must be forgotten: a second answer could give the other secret.

    Raises:
        RefusedError: the message is none, asks for both secrets of a neighbour, or names too few that are there.
    """
    terms = state.first.terms
    if len(message) < 4 or len(message) % 4:
        raise RefusedError(f"neighbours are named by 4 bytes each, got {len(message)} bytes")
    count, *named = struct.unpack(f"<{len(message) // 4}I", message)
    there, gone = named[:count], named[count:]
    if len(set(named)) != len(named):
        raise RefusedError("both secrets of a client would show its numbers, and are asked for: none is sent")
    if not set(named) <= set(state.shares):
        raise RefusedError("secrets are asked for of clients that are no neighbours: none is sent")
    if len(there) < terms.threshold:
        raise RefusedError(f"{terms.threshold} neighbours must stay, and {len(there)} are said to be there")
    return b"".join([*(state.shares[k][1] for k in there), *(state.shares[k][0] for k in gone)])
