"""Optimisers that a client keeps between its trainings, as a part of its state: momentum, moments, counted steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedloom.core import tree
from fedloom.core.algorithm import Algorithm
from fedloom.core.batches import Batches
from fedloom.core.client import Client
from fedloom.core.errors import StackingError
from fedloom.core.fold import minimise_from
from fedloom.core.fold.execution import current
from fedloom.core.optimiser import Optimiser
from fedloom.core.types import Params, Weights, replace, state


@state
class Moments:
    """State of one optimiser over the parameters of a network."""

    taken: list[Tensor]  # steps, [] float64, where the rate depends on them
    of: dict[str, list[Tensor]]  # by parameter: how often it has moved, [] float64, where that counts; what is kept


@state
class WithOptimisers:
    """State of a client that keeps its optimisers."""

    own: Any  # what its algorithm keeps
    optimisers: list[Moments]


class KeptOptimisers:
    """Optimisers of an algorithm's clients."""

    def __init__(self, algorithm: Algorithm[Any, Any]) -> None:
        self.algorithm = algorithm

    def first(self, own: Any, params: Params) -> WithOptimisers:
        """Return the state of a client at its first contact."""
        optimiser, count = self.algorithm.local.optimiser, self.algorithm.requires.optimisers
        made = optimiser.init([*params.values()])
        rest = Moments(
            taken=made[: optimiser.timed],
            of={name: optimiser.part_of(made, i, len(params)) for i, name in enumerate(params)},
        )
        return WithOptimisers(own=own, optimisers=[tree.map_tree(torch.clone, rest) for _ in range(count)])

    def computed(
        self, compute: Callable[..., tuple[Any, Any]], method: str, client: Client[Any], *sent: Any
    ) -> tuple[Any, Any]:
        """Return (new state, upload) of one client, whose optimisers go on; one that is evaluated trains with new ones.

        `compute`: does it without them.
        """
        before, run = client.state, current()
        going = GoingOn(before.optimisers)
        run.optimisers = going if getattr(getattr(self.algorithm, method, None), "on_client", False) else None
        try:
            own, upload = compute(method, replace(client, state=before.own), *sent)
        finally:  # also of a client that fails: whoever trains next has none of its optimisers
            run.optimisers = None
        return replace(before, own=own, optimisers=going.optimisers), upload


class GoingOn:
    """Optimisers of one client while it trains."""

    def __init__(self, optimisers: Sequence[Moments]) -> None:
        self.optimisers = [*optimisers]

    def minimise(
        self,
        number: int,
        loss: Callable[..., Any],
        carry: Any,
        batches: Batches,
        optimiser: Optimiser,
        *context: Any,
        lr: Tensor,
        correct: Callable[..., Any] | None = None,
    ) -> Any:
        """Train as `fedloom.minimise`, with the optimiser of this number; several models have the next ones too."""
        places = [*_places(carry, number)]
        if lacks := [name for i, name in places if i >= len(self.optimisers) or name not in self.optimisers[i].of]:
            raise StackingError(
                f"a client keeps {len(self.optimisers)} optimiser(s), each of the parameters of one network, by name "
                f"(local.keep_optimiser), and trains {lacks[0]} beside them: train Weights or Params of as many "
                "networks as requires = fl.Requires(optimisers=...) says, or leave keep_optimiser out"
            )
        of = [self.optimisers[i].of[name] for i, name in places]
        counted, taken = optimiser.counts_steps, self.optimisers[number].taken
        counts = [torch.stack([parts[0] for parts in of], -1)] if counted else []
        slots = zip(*(parts[counted:] for parts in of), strict=True)
        moments = [*taken, *counts, *(t for slot in slots for t in slot)]
        carry, after = minimise_from(loss, carry, moments, batches, optimiser, *context, lr=lr, correct=correct)
        for j, (i, name) in enumerate(places):
            moved = {**self.optimisers[i].of, name: optimiser.part_of(after, j, len(places))}
            self.optimisers[i] = Moments(taken=[*after[: optimiser.timed]], of=moved)
        return carry


def _places(carry: Any, number: int) -> Iterator[tuple[int, str]]:
    """Yield the optimiser and the name of each trained tensor, in the order in which a training has them."""
    for node in tree.flatten(carry, is_leaf=lambda n: isinstance(n, Weights | Params))[0]:
        named = node.params if isinstance(node, Weights) else node
        if isinstance(named, Params):
            yield from ((number, name) for name in named)
            number += 1
        elif named.is_floating_point():
            yield number, f"a tensor {list(named.shape)} without a name"
