"""One plain call per client: the reference, the debugger, and the fastest way to train convolutions on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedloom.core import tree
from fedloom.core.batches import Batches
from fedloom.core.client import Client, NotPlanned
from fedloom.core.types import replace
from fedloom.engines.simulated import Call, Simulation


class Loop(Simulation):
    """One client after the other."""

    name = "loop"

    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        for k in clients:
            client = _alone(self.clients(call, [k]))
            run = functools.partial(call.method, client, *call.broadcast, *tree.take(scatter([k]), 0))
            out, self.last = self.execute(call, [k], run)
            state, upload = tree.map_tree(lambda t: t[None], out)
            yield [k], state, upload


def _alone(stacked: Client[Any]) -> Client[Any]:
    """The only client of a stack: as `client_axes` says which leaves are stacked, without a walk over all of them."""

    def batches(b: Batches) -> Batches:
        if isinstance(b, NotPlanned):
            return b
        mine = {name: getattr(b, name)[0] for name in ("examples", "order", "mask", "num_steps", "num_examples", "key")}
        return replace(b, **mine)

    return replace(
        stacked,
        state=tree.take(stacked.state, 0),
        train=batches(stacked.train),
        val=batches(stacked.val),
        num_examples=stacked.num_examples[0],
        key=stacked.key[0],
    )
