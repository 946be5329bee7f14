"""Clients of one architecture as one stacked computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from fedloom.engines.engine import Engine, Send
from fedloom.engines.message import Answer, Call, Request


class Stacked(Engine):
    """`vmap` over the clients, chunked to a memory budget."""

    name = "stacked"
    stacked = True

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        size = self.chunks[self.population.assignment[clients[0]]]
        for start in range(0, len(clients), size):
            yield self.ask(call, clients[start : start + size], send)

    def fixed(self) -> dict[str, Any]:
        return {**super().fixed(), "chunks": self.chunks}

    @cached_property
    def chunks(self) -> dict[str, int]:
        """Clients computed at a time, by architecture; fixed once, since results may differ with it in the last bit.

        Unless given: 8 models each (weights, gradients, momenta, copies) in half the GPU's free memory, or in 2 GiB.
        """
        if self.options.chunks is not None:
            return dict(self.options.chunks)
        p = self.population
        budget = torch.cuda.mem_get_info(p.device)[0] // 2 if p.device.type == "cuda" else 2 << 30
        sizes = {name: model.num_params * torch.finfo(p.dtype).bits // 8 for name, model in p.models.items()}
        return {name: self.options.chunk or max(1, budget // (8 * size)) for name, size in sizes.items()}
