"""Wires: what an engine of processes asks of the way to them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection


class Wires(ABC):
    """Wires to processes, by their numbers, that answer each message with one message."""

    @abstractmethod
    def post(self, rank: int, message: bytes) -> None:
        """Send a message to a rank, and return without waiting for the answer."""

    @abstractmethod
    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        """Return the ranks that have answered or are gone.

        It waits for the first of them, but not longer than `timeout` seconds.
        """

    @abstractmethod
    def take(self, rank: int) -> memoryview:
        """Return the oldest answer of a rank that was not taken yet; it is valid until the next `post`.

        Raises:
            EOFError: the rank is gone.
        """
