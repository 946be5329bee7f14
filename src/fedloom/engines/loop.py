"""One plain call per client: the reference, the debugger, and the fastest way to train convolutions on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedloom.core import tree
from fedloom.engines.simulated import Call, Simulation, client_axes


class Loop(Simulation):
    """One client after the other."""

    name = "loop"

    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        for k in clients:
            stacked = self.clients(call, [k])
            client = _first(stacked, client_axes(stacked))
            run = functools.partial(call.method, client, *call.broadcast, *tree.take(scatter([k]), 0))
            out, self.last = self.execute(call, [k], run)
            state, upload = tree.map_tree(lambda t: t[None], out)
            yield [k], state, upload


def _first(stacked: Any, axes: Any) -> Any:
    flat, spec = tree.flatten(stacked)
    return tree.unflatten([t if a is None else t[0] for t, a in zip(flat, tree.leaves(axes), strict=True)], spec)
