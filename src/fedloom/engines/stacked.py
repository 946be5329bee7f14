"""Clients of one architecture as one stacked computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from fedloom.engines.engine import Engine
from fedloom.engines.memory import frozen_bytes, step_bytes
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.server_side import Send


class Stacked(Engine):
    """`vmap` over the clients, chunked to a memory budget."""

    name = "stacked"
    stacked = True
    uses = frozenset({"chunk"})

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        size = self.chunks[self.population.assignment[clients[0]]]
        for start in range(0, len(clients), size):
            yield self.ask(call, clients[start : start + size], send)

    def fixed(self) -> dict[str, Any]:
        return {**super().fixed(), "chunks": self.chunks}

    @cached_property
    def chunks(self) -> dict[str, int]:
        """Clients computed at a time, by architecture; fixed once, since results may differ with it in the last bit.

        Unless given: as many as take half the GPU's free memory, or 2 GiB, beside frozen tensors; see `step_bytes`.
        """
        if self.options.chunks is not None:
            return dict(self.options.chunks)
        p = self.population
        budget = torch.cuda.mem_get_info(p.device)[0] // 2 if p.device.type == "cuda" else 2 << 30
        if self.options.chunk:
            return dict.fromkeys(p.models, self.options.chunk)
        budget, size, rule = budget - frozen_bytes(p), self.algorithm.local.batch_size, self.runtime.gradients
        return {name: max(1, budget // step_bytes(model, p, size, rule)) for name, model in p.models.items()}
