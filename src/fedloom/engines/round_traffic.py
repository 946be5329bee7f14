"""Records of what one round has moved and lost, and of what a client did in one exchange of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fedloom.core.cohort import Predict
from fedloom.core.types import Failure, Weights
from fedloom.engines.message import NOTES


@dataclass
class Traffic:
    """Record of what one round moved and lost."""

    travels: bool = True  # whether bytes are counted: where everything is in one place, none travel
    asked: set[int] = field(default_factory=set)  # clients; nobody in a round of the server alone
    down: Counter[int] = field(default_factory=Counter)  # bytes by client
    up: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)  # the same by direction and kind: "down_model"
    failed: list[Failure] = field(default_factory=list)
    accepted: int = 0  # answers
    refused: int = 0  # answers that came, and may not be
    after: dict[str, dict[int, Any]] = field(default_factory=dict)  # by work and client, of what it has trained last
    notes: dict[int, dict[str, float]] = field(default_factory=dict)  # of clients, by name
    losses: dict[int, float] = field(default_factory=dict)  # mean local training loss by client, last minimise
    server_losses: dict[str, float] = field(default_factory=dict)  # mean over the steps of its last own training
    noted: dict[str, Any] = field(default_factory=dict)  # numbers for the record, as the server has named them
    to_judge: dict[str, Predict | Mapping[int, Predict]] = field(default_factory=dict)  # on the test set, by name
    unanswered: dict[str, str] = field(default_factory=dict)  # why a round ended early, by architecture
    server_refused: dict[str, str] = field(default_factory=dict)  # why a server state stayed, by architecture

    def found(self, work: str, by_client: Mapping[int, Any]) -> None:
        """Keep what a work has found of some clients, or what these have noted."""
        if work != NOTES:
            self.after.setdefault(work, {}).update(by_client)
            return
        for k, notes in by_client.items():
            self.notes.setdefault(k, {}).update({name: float(value) for name, value in notes.items()})

    def count(self, way: Literal["down", "up"], clients: Sequence[int], each: Sequence[Counter[str]]) -> None:
        """Add what each of some clients was sent or has sent, by kind."""
        if not self.travels:
            return
        total = self.down if way == "down" else self.up
        for k, kinds in zip(clients, each, strict=True):
            total[k] += kinds.total()
            for kind, size in kinds.items():
                self.kinds[f"{way}_{kind}"] += size


@dataclass(frozen=True)
class Exchange:
    """Record of what a client did in one exchange of a replayed round."""

    name: str  # of the algorithm's method
    number: int  # of the exchange in its round
    client: int
    state: Any  # its new one
    upload: Any
    trained: Weights | None  # its model after its last `minimise` over its own training examples
    unclear: bool  # whether there was such a `minimise`, whose carry has not exactly one model of the client's network
    losses: list[Tensor]  # of each `minimise`, whatever it trained, in order: [steps that the client took]
