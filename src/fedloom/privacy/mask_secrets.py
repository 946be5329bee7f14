"""Secrets of a masked sum: keys, masks, and shares of both that neighbours keep.

X25519, HKDF and ChaCha20 are those of `cryptography`. Shared (`secret_shares`) are two seeds of 16 bytes: one of the
key by which a client's masks with its neighbours are made, and one of the mask that is its own. All secrets come from
the system's entropy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedloom.core.errors import RefusedError, SettingError
from fedloom.privacy.fixed_point import Words
from fedloom.privacy.masked_terms import KEY, Terms
from fedloom.privacy.secret_shares import SECRET, SHARE
from fedloom.wording import install

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise SettingError(f"masks are made by cryptography ({error}): {install('privacy')}") from None

PrivateKey = X25519PrivateKey
_NONCE = 12


def new_seed() -> bytes:
    """Return 16 bytes of the system's entropy."""
    return os.urandom(SECRET)


def new_key() -> PrivateKey:
    """Return a private key of the system's entropy."""
    return X25519PrivateKey.generate()


def private_key(seed: bytes) -> PrivateKey:
    """Return the private key that a seed stands for."""
    return X25519PrivateKey.from_private_bytes(_derived(seed, b"key"))


def public_key(private: PrivateKey) -> bytes:
    """Return the public key of a private one."""
    return private.public_key().public_bytes_raw()


def commitment(seed: bytes) -> bytes:
    """Return what shows later that a seed is the one that was meant, and tells nothing of it."""
    return hashlib.sha256(b"fedloom commitment" + seed).digest()


def own_mask(terms: Terms, seed: bytes) -> Words:
    """Return the mask of a client's own."""
    return _stream(terms, _derived(seed, b"own mask" + terms.session))


def mask_between(terms: Terms, private: PrivateKey, public: bytes, mine: int, theirs: int) -> Words:
    """Return the mask between two clients, which the one adds and the other takes away.

    Args:
        terms: of the sum.
        private: key of the one client.
        public: key of the other.
        mine: number of the one client, who adds it if it is the lower one.
        theirs: number of the other.

    Raises:
        RefusedError: the public key is none.
    """
    pair = b"".join(k.to_bytes(4, "little") for k in sorted((mine, theirs)))
    mask = _stream(terms, _derived(_agreed(private, public), b"mask" + terms.session + pair))
    return mask if mine < theirs else np.negative(mask)


def seal(
    terms: Terms, private: PrivateKey, public: bytes, sender: int, receiver: int, shares: Sequence[bytes]
) -> bytes:
    """Return two shares as only the receiver can read them.

    Raises:
        RefusedError: the public key is none.
    """
    box, nonce, route = _box(terms, private, public, sender, receiver)
    return box.encrypt(nonce, b"".join(shares), route)  # type: ignore[no-any-return]


def unseal(
    terms: Terms, private: PrivateKey, public: bytes, sender: int, receiver: int, sealed: bytes
) -> tuple[bytes, bytes]:
    """Return two shares as they were sealed.

    Raises:
        RefusedError: they are not of this sender, for this receiver, in this sum.
    """
    box, nonce, route = _box(terms, private, public, sender, receiver)
    try:
        plain = box.decrypt(nonce, sealed, route)
    except InvalidTag:
        raise RefusedError(f"the shares of client {sender} were not sealed by it for client {receiver}") from None
    return plain[:SHARE], plain[SHARE:]


def _box(terms: Terms, private: PrivateKey, public: bytes, sender: int, receiver: int) -> tuple[Any, bytes, bytes]:
    """Return (cipher, nonce, what is sealed with it): a key of both and of the sum, for one message each way."""
    route = sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")
    key = _derived(_agreed(private, public), b"shares" + terms.session)
    return ChaCha20Poly1305(key), route.ljust(_NONCE, b"\0"), terms.session + route


def _agreed(private: PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of small order, too
        raise RefusedError("a public key is none with which a secret can be agreed on") from None


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), length=KEY, salt=None, info=b"fedloom masked sum " + purpose).derive(secret)


def _stream(terms: Terms, key: bytes) -> Words:
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(terms.words * terms.bits // 8))
    return np.frombuffer(stream, f"<u{terms.bits // 8}")
