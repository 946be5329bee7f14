"""Stacks of clients in processes: for many small models on several cores."""

from __future__ import annotations

from functools import cached_property

from fedloom.engines.engine_options import best_chunk
from fedloom.engines.stacked import Stacked
from fedloom.engines.workers import Workers


class Stacks(Workers, Stacked):
    """`stacked` on one thread, each chunk of clients in one of several processes, with the same bits.

    The chunk depends on the network and not on the machine, so two cores and sixteen give the same bits.
    """

    name = "stacks"
    uses = Workers.uses | Stacked.uses

    def clients_per_request(self, architecture: str) -> int:
        return self.chunks[architecture]

    @cached_property
    def chunks(self) -> dict[str, int]:
        """Clients of a stack, by architecture.

        Unless given: `best_chunk`, or as many as fit into memory.
        """
        by_memory, p = super().chunks, self.population
        if self.options.chunks or self.options.chunk:
            return by_memory
        return {name: min(most, best_chunk(p.models[name].num_params)) for name, most in by_memory.items()}
