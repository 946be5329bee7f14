"""Clients of one architecture as one stacked computation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.func import vmap

from fedloom.core import tree
from fedloom.engines.simulated import Call, Simulation, client_axes

NO_RULE = "There is a performance drop because we have not yet implemented the batching rule"  # PyTorch's, of vmap


class Stacked(Simulation):
    """`vmap` over the clients, chunked to a memory budget."""

    name = "stacked"

    def answers(
        self, call: Call, clients: Sequence[int], scatter: Callable[[Sequence[int]], Any]
    ) -> Iterator[tuple[Sequence[int], Any, Any]]:
        size = self.chunks[self.population.assignment[clients[0]]]
        for start in range(0, len(clients), size):
            ids = clients[start : start + size]
            client = self.clients(call, ids)
            each = scatter(ids)
            flat, spec = tree.flatten((client, call.broadcast, each))
            axes = tree.leaves(
                (client_axes(client), tree.map_tree(lambda _: None, call.broadcast), tree.map_tree(lambda _: 0, each))
            )
            out_spec: list[Any] = []

            def one(*leaves: torch.Tensor, spec: Any = spec, out_spec: list[Any] = out_spec) -> list[torch.Tensor]:
                client, broadcast, mine = tree.unflatten(list(leaves), spec)
                answer, out = tree.flatten(call.method(client, *broadcast, *mine))
                out_spec.append(out)
                return answer

            def run(flat: Any = flat, axes: Any = axes, one: Any = one, out_spec: Any = out_spec) -> Any:
                answer = vmap(one, in_dims=tuple(axes), randomness="error")(*flat)
                return tree.unflatten(list(answer), out_spec[-1])

            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", NO_RULE)
                (states, uploads), self.last = self.execute(call, ids, run)
            yield ids, states, uploads

    def fixed(self) -> dict[str, Any]:
        return {**super().fixed(), "chunks": self.chunks}

    @cached_property
    def chunks(self) -> dict[str, int]:
        """Clients computed at a time, by architecture; fixed once, since results may differ with it in the last bit.

        Unless given: 8 models each (weights, gradients, momenta, copies) in half the GPU's free memory, or in 2 GiB.
        """
        if self.chunks_given is not None:
            return dict(self.chunks_given)
        p = self.population
        budget = torch.cuda.mem_get_info(p.device)[0] // 2 if p.device.type == "cuda" else 2 << 30
        sizes = {name: model.num_params * torch.finfo(p.dtype).bits // 8 for name, model in p.models.items()}
        return {name: self.chunk or max(1, budget // (8 * size)) for name, size in sizes.items()}
