"""Terms of a masked sum that all know: who masks with whom, how many must stay, and what risk this leaves.

A client masks with all others, or with its k neighbours in a random Harary graph: a ring in random order, in which each
knows the k / 2 to either side (Bell, Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, arXiv:2002.02292).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

from fedloom.privacy.fixed_point import Bits
from fedloom.privacy.secret_shares import SHARE

LEAST = 3  # clients: of two, each knows the other's numbers from the sum
COLLUDING, LOST = 0.2, 0.3  # shares of the clients for which neighbours are chosen
_SEEN, _REFUSED = 2.0**-40, 2.0**-10
KEY, SEALED = 32, 2 * SHARE + 16  # bytes of a key; of two shares with their tag
ENTRY = 4 + 2 * KEY  # of a neighbour: its number and public keys
ADVERTISED = 3 * KEY
Graph = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Terms:
    """Terms of one masked sum.

    Attributes:
        session: 16 random bytes, which no other sum has.
        words: length of the vectors that are added.
        bits: of a word.
        neighbours: with how many others a client masks, at most.
        threshold: how many of them must stay to the end.
    """

    session: bytes
    words: int
    bits: Bits
    neighbours: int
    threshold: int

    def __post_init__(self) -> None:
        if len(self.session) != 16 or self.words < 1 or self.bits not in (32, 64):
            raise ValueError(f"a masked sum has a session of 16 bytes and words of 32 or 64 bits, got {self}")
        if not (2 <= self.threshold <= self.neighbours < 2 * self.threshold):
            raise ValueError(
                f"more than half of a client's neighbours must stay, got {self.threshold} of {self.neighbours}: with "
                "fewer, two halves of them could be told different things"
            )

    @classmethod
    def of(
        cls, session: bytes, words: int, bits: Bits, clients: int, neighbours: int | None = None, least: int = 0
    ) -> Terms:
        """Return the terms for a number of clients.

        Args:
            session: 16 random bytes.
            words: length of the vectors.
            bits: of a word.
            clients: how many are asked, at least `LEAST`.
            neighbours: with how many each masks, at most all others; None: as many as the risk asks for.
            least: of how many clients there is a sum, which each sees to where all others are its neighbours.
        """
        if clients < LEAST:
            raise ValueError(f"a masked sum is of {LEAST} clients or more, got {clients}")
        k = neighbours_for(clients) if neighbours is None else min(neighbours, clients - 1)
        return cls(session, words, bits, k, max(k // 2 + 1, least - 1) if k == clients - 1 else k // 2 + 1)


@functools.cache
def neighbours_for(clients: int) -> int:
    """Return the fewest neighbours for which the risk is small, or all others.

    With a fifth of the clients colluding with the server and 30 % lost, the probability that anything but the whole sum
    can be computed is below 2^-40, and that too few stay for a sum below 2^-10.
    """
    for k in range(2, clients - 1, 2):
        seen, refused = risk(clients, k, COLLUDING, LOST)
        if seen <= _SEEN and refused <= _REFUSED:
            return k
    return clients - 1


def bytes_beside(clients: int) -> tuple[int, int]:
    """Return the bytes of a client's messages beside its numbers, (up, down), where all its neighbours stay."""
    k = neighbours_for(clients)
    return ADVERTISED + k * (SEALED + SHARE), k * (ENTRY + 4 + SEALED) + 4 * (1 + k)


def risk(clients: int, neighbours: int, colluding: float, lost: float) -> tuple[float, float]:
    """Return bounds of two probabilities: that more than the sum is seen, and that there is no sum.

    More is seen if a client has as many colluding neighbours as must stay, or if the others, without those that collude
    or are lost, could be two parts of the ring: somewhere k / 2 in a row are gone. There is no sum if too few of a
    client's neighbours stay. All are union bounds over the clients.

    Args:
        clients: in the graph.
        neighbours: of each, even.
        colluding: share of the clients that tell the server what they know.
        lost: share of the clients that are lost, those that collude not among them.
    """
    others, k, t = clients - 1, neighbours, neighbours // 2 + 1
    bad, away = round(colluding * clients), round(lost * clients)
    gone, half = bad + away, neighbours // 2
    apart = comb(clients - half, gone - half) / comb(clients, gone) if half <= gone <= clients else 0.0
    caught = _at_least(others, min(bad, others), k, t)
    return min(1.0, clients * (apart + caught)), min(1.0, clients * _at_least(others, min(away, others), k, k - t + 1))


def graph_of(order: Sequence[int], neighbours: int) -> Graph:
    """Return the neighbours of each client.

    Args:
        order: clients, in an order that nobody can choose.
        neighbours: of each; all others where there are no more.
    """
    n = len(order)
    if neighbours >= n - 1:
        return {k: tuple(sorted(set(order) - {k})) for k in order}
    steps = [step for step in range(-(neighbours // 2), neighbours // 2 + 1) if step]
    return {k: tuple(sorted(order[(i + step) % n] for step in steps)) for i, k in enumerate(order)}


def is_connected(graph: Graph, among: set[int]) -> bool:
    """Return whether some clients hang together by masks between them."""
    reached, new = set[int](), set(sorted(among)[:1])
    while new:
        reached |= new
        new = {j for k in new for j in graph[k] if j in among} - reached
    return reached == among


def _at_least(all_: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that of some drawn without replacement at least so many are marked."""
    ways = sum(comb(marked, i) * comb(all_ - marked, drawn - i) for i in range(least, min(drawn, marked) + 1))
    return ways / comb(all_, drawn)
