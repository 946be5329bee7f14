"""What many small clients give up side by side is what each would give up by its own generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fedloom.data import Partition, drawing, hold_out, iid, pathological, shards, split
from fedloom.data.many_clients import Streams


@pytest.mark.parametrize("stream", [0, 1, 7])
def test_streams_shuffle_as_numpy_does(stream: int) -> None:
    seed, clients, sizes = 2**32 - 1, np.array([0, 1, 2**31 + 5, 2**32 - 2]), np.array([33, 9, 20, 16])
    begin = np.array([0, 33, 42, 62])
    values = np.arange(78)
    streams = Streams(seed, clients, stream, 227)
    streams.shuffle(values, np.arange(4), begin, sizes)
    streams.shuffle(values, np.array([1, 3]), begin[[1, 3]], sizes[[1, 3]])  # two streams go on
    for i, client in enumerate(clients.tolist()):
        generator = np.random.RandomState([seed, client, stream] if stream else [seed, client])
        expected = generator.permutation(np.arange(begin[i], begin[i] + sizes[i]))
        if i in (1, 3):
            generator.shuffle(expected)
        np.testing.assert_array_equal(values[begin[i] : begin[i] + sizes[i]], expected)


def test_a_stream_that_is_drawn_to_its_end_says_so() -> None:
    streams = Streams(0, np.arange(50), 0, 30)
    streams.shuffle(np.arange(50 * 20), np.arange(50), 20 * np.arange(50), np.full(50, 20))
    needed = []
    for client in range(50):
        drawn, left = 0, 19
        for number in np.random.RandomState([0, client]).randint(0, 2**32, 200, np.uint32).tolist():
            drawn += 1
            left -= number & ((1 << left.bit_length()) - 1) <= left
            if not left:
                break
        needed.append(drawn)
    assert 0 < streams.spent.sum() < 50
    np.testing.assert_array_equal(streams.spent, np.array(needed) >= 30)


def _partition(seed: int, clients: int, most: int, classes: int) -> tuple[Partition, np.ndarray]:
    rng = np.random.RandomState(seed)
    sizes = rng.randint(0, most, clients)
    labels = np.minimum(rng.geometric(0.3, sizes.sum()) - 1, classes - 1)
    return Partition(np.concatenate([[0], np.cumsum(sizes)]), rng.permutation(len(labels)), "some", seed), labels


@pytest.mark.parametrize(
    ("clients", "most", "classes", "fraction", "stream"),
    [(300, 21, 10, 0.2, 0), (200, 60, 3, 0.5, 1), (40, 130, 30, 0.9, 0), (30, 12, 150, 0.3, 2), (20, 5, 1, 0.4, 0)],
)
def test_many_clients_give_up_what_each_gives_up_alone(
    clients: int, most: int, classes: int, fraction: float, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, labels = _partition(clients, clients, most, classes)
    alone = split(partition, labels, fraction, 3, stream)
    monkeypatch.setattr(hold_out, "_MANY", 0)
    monkeypatch.setattr("fedloom.data.many_clients._BLOCK", 128)
    together = split(partition, labels, fraction, 3, stream)
    assert [p.fingerprint() for p in together] == [p.fingerprint() for p in alone]


def test_the_rows_that_2000_clients_give_up_stay_what_they_were() -> None:
    labels = np.arange(14_000) * 7 % 10
    kept, held_out = split(iid(labels, 2000, 0), labels, 0.3, 5)
    assert (kept.fingerprint(), held_out.fingerprint()) == ("fd299fc58ab562f7", "3b2d058bbf021cbe")


@pytest.mark.parametrize("deal", [shards, pathological])
def test_who_would_wait_for_shards_for_an_hour_is_told_so(
    deal: Callable[..., Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(80) % 4  # 20 clients of 2 shards: 40 shards, 10 of each class
    monkeypatch.setattr(drawing, "_MANY_SHARDS", 400)
    deal(labels, 20, 2, seed=0)
    monkeypatch.setattr(drawing, "_MANY_SHARDS", 399)
    with pytest.warns(UserWarning, match="each of 40 shards is drawn from all of its class that remain"):
        deal(labels, 20, 2, seed=0)
