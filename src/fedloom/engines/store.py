"""Where simulated clients' states are kept between rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.types import Tree


class ClientStore(MutableMapping[int, Tree]):
    """Client -> state. Holds flat tensors, so that a cohort is stacked and unstacked without walking K trees."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[list[Tensor], Any]] = {}

    def __getitem__(self, client: int) -> Tree:
        flat, spec = self._held[client]
        return tree.unflatten(flat, spec)

    def __setitem__(self, client: int, state: Tree) -> None:
        self._held[client] = tree.flatten(state)

    def __delitem__(self, client: int) -> None:
        del self._held[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def stack(self, clients: Sequence[int], fresh: Callable[[int], Tree]) -> Tree:
        """The states of clients of one architecture, stacked; `fresh` makes that of a client never heard of.

        What it makes is not kept: being looked at has no consequences.
        """
        rows = [self._held.get(k) or tree.flatten(fresh(k)) for k in clients]
        columns = zip(*(flat for flat, _ in rows), strict=True)
        return tree.unflatten([torch.stack(column) for column in columns], rows[0][1])

    def put(self, clients: Sequence[int], states: Tree, where: Sequence[int]) -> None:
        """Keep the states of `clients`, which stand at the places `where` of a stack."""
        flat, spec = tree.flatten(states)
        for k, i in zip(clients, where, strict=True):
            self._held[k] = ([t[i].clone() for t in flat], spec)
