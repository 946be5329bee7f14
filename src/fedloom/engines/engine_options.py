"""Say how an engine computes clients and which of their answers it takes: one object, handed on whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedloom.core.errors import SettingError
from fedloom.core.fold.execution import Compilation
from fedloom.engines.attacks import Attack
from fedloom.engines.faults import Faults
from fedloom.engines.links import Encoder, Link


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an engine. Fields that bear the name of a run's setting hold its value.

    Raises:
        SettingError: a value that no engine can take.
    """

    compilation: Compilation = "none"
    """Run training step by step, or from a traced or compiled graph."""
    bf16: bool = False
    """Compute local training in mixed precision."""
    chunk: int | None = None
    """Clients that are computed at a time, in a stack; None: by memory."""
    chunks: Mapping[str, int] | None = None
    """The same by architecture, as `Engine.fixed` told it when the run began."""
    workers: int | None = None
    """Processes that compute clients; None: one for each core."""
    deadline: float | None = None
    """Seconds that clients in other processes have for an exchange."""
    absent: Callable[[int], Collection[int]] | None = None
    """Clients that have not joined by a round, from 0: what is asked of everyone is not asked of them."""
    faults: Faults | None = None
    """Simulated loss of clients."""
    on_nonfinite: Literal["stop", "refuse"] = "stop"
    """Raise NonFiniteError, or count the client as failed and keep its state; the same for the server's own state."""
    bound: str = "none"
    """Bound of an upload, which is refused or clipped above it (`upload_bounds`)."""
    partial_sums: int | None = None
    """Sums into which uploads are added before these are; processes send sums then, and no uploads."""
    aggregator: str = "mean"
    """Rule by which uploads become a mean (`engines/aggregators.py`)."""
    attack: Attack | None = None
    """Simulated clients that lie."""
    links: tuple[Link, ...] = ()
    """Links of parts on the way of uploads to their mean, after all others (`engines/chain.py`)."""
    encoders: tuple[Encoder, ...] = ()
    """Encoders of links, which act on uploads before these travel (`Link.encoder`)."""
    gradients: Any = None
    """Rule by which clients make gradients of their examples, in the place of the mean's."""
    counts_states: bool = False
    """Let clients' states travel with the messages, and count their bytes."""
    works: tuple[str, ...] = ()
    """Works on what a client has trained, done where it was trained, by name (`Call.works`)."""

    def __post_init__(self) -> None:
        for name in ("chunk", "workers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise SettingError(f"{name} must be >= 1 or None (chosen for you), got {count}")
        kind = type((*self.links, *self.encoders, None)[0]).__name__
        other = ", or bound by a number or by what was sent" * ("median" in self.bound)
        for needed, what in (
            (self.counts_states, "stateless clients are asked for their states"),
            (self.links or self.encoders, f"{kind} looks at each upload"),
            ("median" in self.bound, f"bound = {self.bound!r} compares uploads"),
            (self.aggregator != "mean", f"aggregator = {self.aggregator!r} needs each upload"),
            (self.attack is not None, "attackers lie in their uploads"),
        ):
            if needed and self.partial_sums is not None:
                count = self.partial_sums
                raise SettingError(f"{what}, and partial_sums = {count} sends sums: leave one of them out{other}")


DEFAULTS = Options()


def best_chunk(parameters: int) -> int:
    """Return how many clients of a network with so many parameters pay as a stack of their own (docs/benchmarks.md).

    Calls cost little beside what so many compute, and with fewer there are more stacks to share out.
    """
    return max(8, 400_000 // max(1, parameters))
