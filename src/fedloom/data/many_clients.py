"""Hold out examples of many small clients side by side, draw for draw as `hold_out.split` does client after client.

The first numbers of many `RandomState` streams are one computation, because seeding a generator is what a small client
costs: init_by_array, the recurrence and the tempering of the Mersenne Twister (Matsumoto and Nishimura, 1998), and
NumPy's legacy `shuffle`, which draws from 0..i by masking and rejection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedloom.data.drawing import IntArray, starts

Words = npt.NDArray[np.uint32]

_LENGTH, _SHIFT = 624, 397  # of the generator's state, and of its recurrence
_BLOCK = 1 << 15  # clients at a time, whose generators take 78 MiB
_SMALL = 100  # classes and examples together, up to which a stream's first 227 numbers nearly always suffice


def mark_held_out(
    held_out: npt.NDArray[np.bool_],
    clients: IntArray,
    indptr: IntArray,
    own: IntArray,
    num_classes: int,
    test_sizes: IntArray,
    seed: int,
    stream: int,
) -> IntArray:
    """Mark what small clients give up, and return the clients that are left to be done one by one.

    Args:
        held_out: [n] bool, False at first; changed in place.
        clients: those that give up something.
        indptr: [N + 1], where each client's rows start.
        own: [n] class of each row.
        num_classes: number of classes C.
        test_sizes: [N] how many each client gives up.
        seed: as of `split`.
        stream: as of `split`.
    """
    small = np.diff(indptr)[clients] <= _SMALL - num_classes
    left, clients = [clients[~small]], clients[small]
    for first in range(0, len(clients), _BLOCK):
        block = clients[first : first + _BLOCK]
        sizes = indptr[block + 1] - indptr[block]
        rows = np.repeat(indptr[block] - starts(sizes)[:-1], sizes) + np.arange(sizes.sum())
        streams = Streams(seed, block, stream, 2 * (num_classes + int(sizes.max())))
        out = _held_out(streams, own[rows], sizes, num_classes, test_sizes[block])
        done = ~streams.spent
        held_out[rows[out & np.repeat(done, sizes)]] = True
        left.append(block[~done])
    return np.concatenate(left)


def _held_out(
    streams: Streams, own: IntArray, sizes: IntArray, num_classes: int, test_sizes: IntArray
) -> npt.NDArray[np.bool_]:
    """Return which rows of these clients, one after the other, are held out."""
    K, everyone = len(sizes), np.arange(len(sizes))
    cell = np.repeat(everyone * num_classes, sizes) + own
    order = np.argsort(cell, kind="stable")  # by client and class
    counts = np.bincount(cell, minlength=K * num_classes).reshape(K, num_classes)
    begin = starts(counts.ravel())[:-1].reshape(K, num_classes)
    ties = np.tile(np.arange(num_classes), K)
    streams.shuffle(ties, everyone, everyone * num_classes, np.full(K, num_classes))
    ties = ties.reshape(K, num_classes)
    quotas, remainders = np.divmod(counts * test_sizes[:, None], sizes[:, None])  # as `quotas_of` of each client
    by_remainder = np.argsort(-np.take_along_axis(remainders, ties, 1), axis=1, kind="stable")
    more = np.arange(num_classes) < (test_sizes - quotas.sum(1))[:, None]
    extra = np.zeros_like(quotas)
    np.put_along_axis(extra, np.take_along_axis(ties, by_remainder, 1), more.astype(np.int64), 1)
    quotas += extra
    out = np.zeros(len(own), np.bool_)
    who, which = np.nonzero(quotas)  # client by client, by rising class
    turn = np.arange(len(who)) - np.searchsorted(who, who)  # a client's stream goes on from class to class
    for t in range(int(turn.max()) + 1):
        k, c = who[turn == t], which[turn == t]
        streams.shuffle(order, k, begin[k, c], counts[k, c])
        q = quotas[k, c]
        out[order[np.repeat(begin[k, c] - starts(q)[:-1], q) + np.arange(q.sum())]] = True
    return out


class Streams:
    """The streams of `RandomState([seed, client])`, with `stream` as a third word unless it is 0, as far as `count`.

    `count`: numbers of each, at most 227.
    """

    def __init__(self, seed: int, clients: IntArray, stream: int, count: int) -> None:
        self.count = min(count, _LENGTH - _SHIFT)
        self._numbers = _first_numbers(seed, clients, stream, self.count)
        self._at = np.zeros(len(clients), np.int64)

    @property
    def spent(self) -> npt.NDArray[np.bool_]:
        """Streams that were drawn from up to their last number, [K], and perhaps beyond, where all draws are 0."""
        return self._at >= self.count

    def shuffle(self, values: IntArray, who: IntArray, begin: IntArray, sizes: IntArray) -> None:
        """Shuffle `values[begin:begin + size]` by each of some streams, in place, as `RandomState.shuffle` does."""
        for i in range(int(sizes.max()) - 1, 0, -1):
            on = sizes > i
            there, drawn = begin[on] + i, begin[on] + self._below(who[on], i)
            values[there], values[drawn] = values[drawn], values[there]

    def _below(self, who: IntArray, most: int) -> IntArray:
        """Draw from 0..most by each of some streams."""
        mask, drawn, again = (1 << most.bit_length()) - 1, np.empty(len(who), np.int64), np.arange(len(who))
        while len(again):
            asked = who[again]
            drawn[again] = self._numbers[self._at[asked], asked] & np.uint32(mask)
            self._at[asked] = np.minimum(self._at[asked] + 1, self.count)
            again = again[drawn[again] > most]
        return drawn


def _first_numbers(seed: int, clients: IntArray, stream: int, count: int) -> Words:
    """Return the first numbers of each stream, [count + 1, K]; the last row is of zeros."""
    word, K = np.uint32, len(clients)
    keys: list[Words | np.uint32] = [word(seed), (clients + 1).astype(word)]
    keys += [word(stream + 2)] if stream else []  # each with its place added
    state, mixed = np.empty((_LENGTH, K), word), np.empty(K, word)
    rows, shift = [*state], word(30)

    def mix(before: Words, factor: np.uint32) -> Words:
        np.right_shift(before, shift, out=mixed)
        np.bitwise_xor(mixed, before, out=mixed)
        return np.multiply(mixed, factor, out=mixed)

    first, second, value = word(1664525), word(1566083941), 19650218
    rows[0][:] = value
    for i in range(1, _LENGTH):
        value = (1812433253 * (value ^ (value >> 30)) + i) & 0xFFFFFFFF
        np.bitwise_xor(mix(rows[i - 1], first), word(value), out=rows[i])
        rows[i] += keys[(i - 1) % len(keys)]
    rows[1] ^= mix(rows[-1], first)
    rows[1] += keys[(_LENGTH - 1) % len(keys)]
    for i in range(2, _LENGTH):
        rows[i] ^= mix(rows[i - 1], second)
        rows[i] -= word(i)
    rows[1] ^= mix(rows[-1], second)
    rows[1] -= word(1)
    rows[0][:] = 1 << 31
    y = (state[:count] & word(1 << 31)) | (state[1 : count + 1] & word(0x7FFFFFFF))
    numbers = np.zeros((count + 1, K), word)
    out = numbers[:count]
    out[:] = state[_SHIFT : _SHIFT + count] ^ (y >> word(1)) ^ ((y & word(1)) * word(0x9908B0DF))
    out ^= out >> word(11)
    out ^= (out << word(7)) & word(0x9D2C5680)
    out ^= (out << word(15)) & word(0xEFC60000)
    out ^= out >> word(18)
    return numbers
