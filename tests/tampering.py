"""Wires that lose, delay, repeat, swap, damage and forge answers, for tests of every engine that has wires."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

import torch

from fedloom.core import tree
from fedloom.core.errors import CodecError
from fedloom.core.types import Weighted
from fedloom.deploy.server.fleet import RankFleet
from fedloom.engines.faults import Faults
from fedloom.engines.message import EVALUATING
from fedloom.engines.message_bytes import head_of, pack, seal, unpack, unseal
from fedloom.engines.processes import Processes
from fedloom.engines.wires import Wires
from fedloom.ranks.communication import Connections

Harm = Literal[
    "lost", "slow", "duplicated", "reordered", "replayed", "swapped", "corrupted", "malicious", "absurd", "forged"
]
HARMS: tuple[Harm, ...] = get_args(Harm)
HARMLESS: tuple[Harm, ...] = ("duplicated", "reordered")  # the true answer comes as well
_LIMIT = 1 << 40
_VALUES = {"malicious": float("inf"), "absurd": 1e30}
P = TypeVar("P", bound=Processes)


class TamperedWires(Connections):
    """Wires that do harm to answers in training: `plan(round, exchange, client)` names the harm, None for no harm.

    lost: no answer comes. slow: it comes after the deadline. duplicated: it comes twice. reordered: it comes after the
    next one. replayed: an answer to an earlier request comes instead. swapped: the answer of another process comes
    instead. corrupted: one bit is changed. malicious: the upload is not finite. absurd: the upload is 1e30. forged: the
    seal is made without the device's `token`.
    """

    expected: int | None = None

    def __init__(self, wires: Wires, plan: Faults, token: Callable[[int], str | None] = lambda rank: None) -> None:
        self.wires, self.plan, self.token = wires, plan, token
        self.expected = getattr(wires, "expected", 0)
        self._harms: defaultdict[int, deque[str | None]] = defaultdict(deque)  # harms of the next answers, by rank
        self._ready: list[tuple[int, bytes | None]] = []  # in the order of `take`; None: the rank is gone
        self._behind: list[tuple[int, bytes | None]] = []  # to come after the next answer
        self._slow: list[tuple[int, bytes | None]] = []
        self._previous: dict[int, bytes] = {}

    def arrivals(self) -> list[int]:
        return self.wires.arrivals() if isinstance(self.wires, Connections) else []

    def post(self, rank: int, message: bytes) -> None:
        self._harms[rank].append(self._harm(rank, message))
        self.wires.post(rank, message)

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        end = None if timeout is None else time.monotonic() + timeout
        while not (ready := [rank for rank in dict.fromkeys(r for r, _ in self._ready) if rank in ranks]):
            answered = self.wires.wait(ranks, None if end is None else max(0.0, end - time.monotonic()))
            if not answered and self._behind:
                self._ready, self._behind = self._ready + self._behind, []
            elif not answered:
                time.sleep(0.0 if end is None else max(0.0, end - time.monotonic()))  # some wires do not
                self._ready, self._slow = self._ready + self._slow, []
                return []
            for rank in answered:
                self._receive_answer(rank)
        return ready

    def take(self, rank: int) -> memoryview:
        index = next(i for i, (r, _) in enumerate(self._ready) if r == rank)
        _, data = self._ready.pop(index)
        if data is None:
            raise EOFError
        return memoryview(data)

    @property
    def at_work(self) -> bool:
        """Forward the attribute of the wires."""
        return getattr(self.wires, "at_work", False)

    @at_work.setter
    def at_work(self, value: bool) -> None:
        self.wires.at_work = value  # type: ignore[attr-defined]

    def _harm(self, rank: int, message: bytes) -> str | None:
        """Choose what happens to the answer to a message."""
        token = self.token(rank)
        try:
            head = head_of(message if token is None else unseal(message, token, _LIMIT))
        except CodecError:
            return None  # no request
        training = head["exchange"] != EVALUATING
        return self.plan(head["round"], head["exchange"], head["clients"][0]) if training else None

    def _receive_answer(self, rank: int) -> None:
        """Take an answer from the wires and do its harm."""
        try:
            data = bytes(self.wires.take(rank))
        except EOFError:
            self._ready.append((rank, None))
            return
        harm = self._harms[rank].popleft() if self._harms[rank] else None  # none: a request before this one
        answers = [(rank, each) for each in self._harmed(harm, rank, data)]
        self._previous[rank] = data
        if harm == "slow":
            self._slow += answers
        elif harm == "reordered" and any(waiting for r, waiting in self._harms.items() if r != rank):
            self._behind += answers
        else:
            self._ready += answers + self._behind
            self._behind = []

    def _harmed(self, harm: str | None, rank: int, answer: bytes) -> list[bytes]:
        """Return the messages that replace an answer."""
        if harm == "lost" or (harm == "replayed" and rank not in self._previous):
            return []
        if harm == "duplicated":
            return [answer, answer]
        if harm == "replayed":
            return [self._previous[rank]]
        if harm == "swapped":
            return [next((other for r, other in self._previous.items() if r != rank), answer[::-1])]
        if harm == "corrupted":
            return [answer[:-1] + bytes([answer[-1] ^ 1])]
        if harm == "forged":
            return [seal(answer[16:], "no token")]
        if harm in _VALUES:
            return [with_upload(answer, self.token(rank), lambda upload: tree.map_tree(_filled(_VALUES[harm]), upload))]
        return [answer]


def tampering_engine(kind: type[P], plan: Faults) -> type[P]:
    """Return an engine of processes with `TamperedWires`."""

    class Harmed(kind):  # type: ignore[misc,valid-type]
        @cached_property
        def wires(self) -> Wires:
            return TamperedWires(super().wires, plan)

    return Harmed


def tamper_with(fleet: RankFleet, plan: Faults) -> RankFleet:
    """Give a fleet `TamperedWires`, and return it."""

    def token(rank: int) -> str | None:
        return next((fleet.tokens[name] for name, its in fleet.ranks.items() if its == rank), None)

    fleet.manager = TamperedWires(fleet.manager, plan, token)
    return fleet


def with_upload(message: bytes | memoryview, token: str | None, change: Callable[[Any], Any]) -> bytes:
    """Return an answer with another upload, sealed with the token."""
    whole = unpack(message if token is None else unseal(message, token, _LIMIT))
    message_bytes = pack(whole.head, {**whole.parts, "upload": change(whole.parts["upload"])})
    return message_bytes if token is None else seal(message_bytes, token)


def with_weight(message: bytes | memoryview, token: str, weight: Any) -> bytes:
    """Return an answer with another weight in the mean, sealed with the token."""

    def heavier(node: Any) -> Any:
        if not isinstance(node, Weighted):
            return node
        return dataclasses.replace(node, weight=torch.full_like(node.weight, weight))

    def change(upload: Any) -> Any:
        nodes, spec = tree.flatten(upload, is_leaf=lambda node: isinstance(node, Weighted))
        return tree.unflatten([heavier(node) for node in nodes], spec)

    return with_upload(message, token, change)


def _filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.full_like(t, value) if t.is_floating_point() else t
