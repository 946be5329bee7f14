"""Counts of words of several clients, added up so that a few that lie cannot decide."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fedloom.tables.client_counts import add_counts, check_least_clients

HUGE = 1 << 39


def drawn(clients: int, seed: int) -> list[dict[str, int]]:
    rng = np.random.default_rng(seed)
    return [{f"w{i}": int(rng.integers(1, 50)) for i in rng.choice(30, 12, replace=False)} for _ in range(clients)]


def test_counts_of_all_clients_are_added_up() -> None:
    clients = drawn(7, 0)
    assert add_counts(clients) == sum(map(Counter, clients), Counter())


def test_a_count_is_clipped_to_the_largest_that_enough_clients_have() -> None:
    clients = [{"a": 9, "b": 4}, {"a": 2, "b": 3}, {"a": 1, "c": 50}]
    assert add_counts(clients, 2) == {"a": 2 + 2 + 1, "b": 3 + 3}
    assert add_counts(clients, 3) == {"a": 3}
    assert add_counts(clients, 4) == {}


@pytest.mark.parametrize("least_clients", [2, 3, 5])
def test_fewer_liars_than_clients_that_must_have_a_word_add_none_and_decide_no_count(least_clients: int) -> None:
    """Each of them makes at most 1/K of the count of a word, and none counts more than the largest true count."""
    honest = drawn(9, 1)
    invented = {f"invented{i}": HUGE for i in range(100)}
    liars = [invented | {f"w{i}": HUGE for i in range(30)} for _ in range(least_clients - 1)]
    found = add_counts([*liars, *honest], least_clients)
    true = {word: [n for counts in honest for w, n in counts.items() if w == word] for word in found}
    assert found
    for word, count in found.items():
        assert true[word], f"{word} is no client's"
        assert count <= sum(true[word]) + len(liars) * max(true[word])
        assert count <= sum(true[word]) / (1 - len(liars) / least_clients)
    assert add_counts([invented, *honest])["invented0"] == HUGE


def test_the_order_of_clients_decides_nothing() -> None:
    clients = drawn(8, 2)
    assert add_counts(clients, 3) == add_counts(clients[::-1], 3)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_what_is_no_number_of_clients_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=f"least_clients is a whole number from 1, got {value!r}: 2 keeps out the"):
        check_least_clients(value)


def test_more_than_all_clients_are_refused() -> None:
    check_least_clients(3, 3)
    check_least_clients(1, 0)
    with pytest.raises(ValueError, match=r"at most the number of clients that count words, 3, got 4: no word would be"):
        check_least_clients(4, 3)
