"""Keys of a store: clients' states, the server's rows for each client, and its pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedloom.core.errors import SettingError


@dataclass(frozen=True)
class Place:
    """Meaning of a key: a client's state, a client's row, or an entry of a pool; numbers begin with 0."""

    kind: Literal["state", "row", "entry"]
    name: str  # of the row or the pool; "" for a state
    number: int  # of the client or the entry


@dataclass(frozen=True)
class Keys:
    """Places of a store: the clients' states, then their rows name by name, then the entries of all pools in turn.

    Of 3 clients, with rows "loss" and "model" and pools "images" and "labels":

        0 1 2          the states of the clients
        3 4 5          their rows "loss"
        6 7 8          their rows "model"
        9 11 13 ...    entries 0, 1, 2, ... of "images"
        10 12 14 ...   entries 0, 1, 2, ... of "labels"

    Names stand in alphabetical order, rows of links behind those of the algorithm; of these, a link chooses what stands
    for a client's number. `owner`: the algorithm whose rows and pools these are, for messages.
    """

    clients: int
    rows: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    owner: str = "this algorithm"

    def row(self, name: str, client: int) -> int:
        """Return the key of a client's row."""
        if name not in self.rows:
            raise SettingError(f"{self.owner} keeps rows named {[*self.rows]}, got {name!r}: see init_rows")
        return self.clients * (1 + self.rows.index(name)) + client

    def entry(self, pool: str, number: int) -> int:
        """Return the key of an entry of a pool."""
        if pool not in self.pools:
            raise SettingError(f"{self.owner} has pools named {[*self.pools]}, got {pool!r}: see init_pools")
        return self.first_entry + number * len(self.pools) + self.pools.index(pool)

    @property
    def first_entry(self) -> int:
        """Return the first key of pools; the keys before it belong to one client each."""
        return self.clients * (1 + len(self.rows))

    def place(self, key: int) -> Place:
        """Return what a key stands for."""
        if key >= self.first_entry:
            number, pool = divmod(key - self.first_entry, len(self.pools))
            return Place("entry", self.pools[pool], number)
        row, client = divmod(key, self.clients)
        return Place("row", self.rows[row - 1], client) if row else Place("state", "", client)

    def entries(self, pool: str, keys: list[int]) -> list[int]:
        """Return the keys that stand for entries of a pool."""
        first = self.entry(pool, 0)
        return [k for k in keys if k >= first and (k - first) % len(self.pools) == 0]
