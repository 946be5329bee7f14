"""Counts of words that clients send, added up so that a few clients that lie cannot decide which words are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence


def add_counts(clients: Sequence[Mapping[str, int]], least_clients: int = 1) -> dict[str, int]:
    """Return how often all clients together have each word, of the words that at least `least_clients` clients have.

    A client's count of a word is clipped to the K-th largest of all clients, K = `least_clients`: of the sum one client
    makes at most 1/K. With K = 1 nothing is clipped. The order of clients decides nothing.
    """
    of_word = defaultdict[str, list[int]](list)
    for counts in clients:
        for word, n in counts.items():
            of_word[word].append(n)
    total = dict[str, int]()
    for word, counted in of_word.items():
        if len(counted) >= least_clients:
            bound = sorted(counted, reverse=True)[least_clients - 1]
            total[word] = sum(min(n, bound) for n in counted)
    return total


def check_least_clients(least_clients: int, clients: int | None = None) -> None:
    """Refuse what is no count from 1, or more than all `clients` that count words.

    Raises:
        ValueError: it is one of these.
    """
    if type(least_clients) is not int or least_clients < 1:
        raise ValueError(
            f"least_clients is a whole number from 1, got {least_clients!r}: 2 keeps out the words that one client "
            "alone has"
        )
    if clients is not None and least_clients > max(1, clients):
        raise ValueError(
            f"least_clients is at most the number of clients that count words, {clients}, got {least_clients}: no word "
            "would be kept; name a smaller one, or have more clients"
        )
