"""Who masks with whom, how many must stay, and the risk: against trials, and by cases."""

from __future__ import annotations

import random

import pytest

from fedloom.privacy.masked_terms import LEAST, Terms, graph_of, is_connected, neighbours_for, risk


@pytest.mark.parametrize(("clients", "k"), [(3, 2), (10, 9), (40, 39), (100, 68), (500, 102), (1000, 118)])
def test_neighbours_grow_with_the_logarithm(clients: int, k: int) -> None:
    assert neighbours_for(clients) == k
    assert Terms.of(bytes(16), 1, 32, clients).threshold == k // 2 + 1


@pytest.mark.parametrize(("n", "k"), [(12, 4), (12, 11), (12, 20), (7, 6)])
def test_neighbours_are_mutual(n: int, k: int) -> None:
    order = random.Random(0).sample(range(100), n)
    graph = graph_of(order, k)
    assert {len(near) for near in graph.values()} == {min(k, n - 1)}
    assert all(a in graph[b] and a != b for a in graph for b in graph[a])
    assert is_connected(graph, set(order))


def test_a_ring_with_two_gaps_is_not_connected() -> None:
    graph = graph_of(range(12), 4)
    assert is_connected(graph, {0, 1, 2, 4, 5, 6})
    assert not is_connected(graph, {0, 1, 2, 6, 7, 8})


def test_the_risk_is_that_of_trials() -> None:
    """The union bound is above the share of trials, and close to it where that is rare."""
    n, k, lost, draw = 30, 6, 0.2, random.Random(1)
    refused = 0
    for _ in range(4000):
        graph = graph_of(draw.sample(range(n), n), k)
        gone = set(draw.sample(range(n), round(lost * n)))
        refused += any(len([j for j in near if j not in gone]) < k // 2 + 1 for near in graph.values())
    bound = risk(n, k, 0.0, lost)[1]
    assert refused / 4000 < bound < 2 * refused / 4000


def test_more_neighbours_are_less_risk() -> None:
    seen, refused = zip(*(risk(500, k, 0.2, 0.3) for k in (20, 40, 80, 120)), strict=True)
    assert list(seen) == sorted(seen, reverse=True)
    assert list(refused) == sorted(refused, reverse=True)
    assert risk(500, 102, 0.2, 0.3) < (2.0**-40, 2.0**-10)
    assert risk(500, 20, 0.4, 0.6)[0] == 1.0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((bytes(15), 1, 32, 4, 3), "a session of 16 bytes"),
        ((bytes(16), 0, 32, 4, 3), "a session of 16 bytes and words"),
        ((bytes(16), 1, 16, 4, 3), "words of 32 or 64 bits"),
        ((bytes(16), 1, 32, 4, 2), "more than half of a client's neighbours must stay, got 2 of 4"),
        ((bytes(16), 1, 32, 1, 1), "more than half of a client's neighbours must stay, got 1 of 1"),
        ((bytes(16), 1, 32, 2, 3), "more than half of a client's neighbours must stay, got 3 of 2"),
    ],
)
def test_terms_that_protect_nobody_are_refused(given: tuple[bytes, int, int, int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Terms(*given)  # type: ignore[arg-type]


def test_two_clients_have_no_masked_sum() -> None:
    with pytest.raises(ValueError, match="a masked sum is of 3 clients or more, got 2"):
        Terms.of(bytes(16), 1, 32, LEAST - 1)
