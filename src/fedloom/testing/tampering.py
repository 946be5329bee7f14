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
from fedloom.engines.faults import Faults
from fedloom.engines.message import JUDGING
from fedloom.wire.communication import CommunicationManager, Wires
from fedloom.wire.fleet import RankFleet
from fedloom.wire.processes import Processes
from fedloom.wire.transport import head_of, pack, sealed, unpack, unsealed

Harm = Literal[
    "lost", "slow", "duplicated", "reordered", "replayed", "swapped", "corrupted", "malicious", "absurd", "forged"
]
HARMS: tuple[Harm, ...] = get_args(Harm)
HARMLESS: tuple[Harm, ...] = ("duplicated", "reordered")  # the true answer comes as well
_LIMIT = 1 << 40
_VALUES = {"malicious": float("inf"), "absurd": 1e30}
P = TypeVar("P", bound=Processes)


class Tampered(CommunicationManager):
    """`wires`, with what `plan(round, exchange, client)` names done to answers in training; None: nothing.

    lost: there is none. slow: it comes after the deadline. duplicated: it comes twice. reordered: it comes after the
    next one. replayed: one to an earlier request comes in its place. swapped: that of another process. corrupted: a bit
    is changed. malicious: it is the client's own, with an upload that is not finite; absurd: with one of 1e30. forged:
    of somebody without the `token` that devices have.
    """

    def __init__(self, wires: Wires, plan: Faults, token: Callable[[int], str | None] = lambda rank: None) -> None:
        self.wires, self.plan, self.token = wires, plan, token
        self.rank, self.size = 0, getattr(wires, "size", 0)
        self._harms: defaultdict[int, deque[str | None]] = defaultdict(deque)  # of the answers that are to come
        self._came: list[tuple[int, bytes | None]] = []  # in the order in which they may be taken; None: it is gone
        self._behind: list[tuple[int, bytes | None]] = []  # after the next one
        self._slow: list[tuple[int, bytes | None]] = []
        self._before: dict[int, bytes] = {}

    def came(self) -> list[int]:
        return self.wires.came() if isinstance(self.wires, CommunicationManager) else []

    def post(self, rank: int, message: bytes) -> None:
        self._harms[rank].append(self._harm(rank, message))
        self.wires.post(rank, message)

    def wait(self, ranks: Collection[int], timeout: float | None) -> list[int]:
        end = None if timeout is None else time.monotonic() + timeout
        while not (ready := [rank for rank in dict.fromkeys(r for r, _ in self._came) if rank in ranks]):
            there = self.wires.wait(ranks, None if end is None else max(0.0, end - time.monotonic()))
            if not there and self._behind:
                self._came, self._behind = self._came + self._behind, []
            elif not there:
                time.sleep(0.0 if end is None else max(0.0, end - time.monotonic()))  # some wires do not
                self._came, self._slow = self._came + self._slow, []
                return []
            for rank in there:
                self._hear(rank)
        return ready

    def take(self, rank: int) -> memoryview:
        index = next(i for i, (r, _) in enumerate(self._came) if r == rank)
        _, data = self._came.pop(index)
        if data is None:
            raise EOFError
        return memoryview(data)

    def receive(self) -> memoryview:
        raise NotImplementedError("only rank 0's wires are tampered with")

    def answer(self, message: bytes) -> None:
        raise NotImplementedError("only rank 0's wires are tampered with")

    @property
    def at_work(self) -> bool:
        """As of the wires."""
        return getattr(self.wires, "at_work", False)

    @at_work.setter
    def at_work(self, value: bool) -> None:
        self.wires.at_work = value  # type: ignore[attr-defined]

    def _harm(self, rank: int, message: bytes) -> str | None:
        """Choose what happens to the answer to a message."""
        token = self.token(rank)
        try:
            head = head_of(message if token is None else unsealed(message, token, _LIMIT))
        except CodecError:
            return None  # no request
        training = head["exchange"] != JUDGING
        return self.plan(head["round"], head["exchange"], head["clients"][0]) if training else None

    def _hear(self, rank: int) -> None:
        """Note that an answer has come."""
        try:
            data = bytes(self.wires.take(rank))
        except EOFError:
            self._came.append((rank, None))
            return
        harm = self._harms[rank].popleft() if self._harms[rank] else None  # of somebody who asked before
        came = [(rank, each) for each in self._harmed(harm, rank, data)]
        self._before[rank] = data
        if harm == "slow":
            self._slow += came
        elif harm == "reordered" and any(waiting for r, waiting in self._harms.items() if r != rank):
            self._behind += came
        else:
            self._came += came + self._behind
            self._behind = []

    def _harmed(self, harm: str | None, rank: int, answer: bytes) -> list[bytes]:
        """Return what comes in the place of an answer."""
        if harm == "lost" or (harm == "replayed" and rank not in self._before):
            return []
        if harm == "duplicated":
            return [answer, answer]
        if harm == "replayed":
            return [self._before[rank]]
        if harm == "swapped":
            return [next((other for r, other in self._before.items() if r != rank), answer[::-1])]
        if harm == "corrupted":
            return [answer[:-1] + bytes([answer[-1] ^ 1])]
        if harm == "forged":
            return [sealed(answer[16:], "no token")]
        if harm in _VALUES:
            return [changed(answer, self.token(rank), lambda upload: tree.map_tree(_filled(_VALUES[harm]), upload))]
        return [answer]


def tampered(kind: type[P], plan: Faults) -> type[P]:
    """Return an engine of processes whose wires are tampered with."""

    class Harmed(kind):  # type: ignore[misc,valid-type]
        @cached_property
        def wires(self) -> Wires:
            return Tampered(super().wires, plan)

    return Harmed


def tampered_fleet(fleet: RankFleet, plan: Faults) -> RankFleet:
    """Return the fleet, with its wires tampered with."""

    def token(rank: int) -> str | None:
        return next((fleet.tokens[name] for name, its in fleet.ranks.items() if its == rank), None)

    fleet.manager = Tampered(fleet.manager, plan, token)
    return fleet


def changed(message: bytes | memoryview, token: str | None, change: Callable[[Any], Any]) -> bytes:
    """Return an answer with another upload, by somebody who has the token."""
    whole = unpack(message if token is None else unsealed(message, token, _LIMIT))
    made = pack(whole.head, {**whole.parts, "upload": change(whole.parts["upload"])})
    return made if token is None else sealed(made, token)


def overweight(message: bytes | memoryview, token: str, weight: Any) -> bytes:
    """Return an answer that claims another weight in the mean."""

    def heavier(node: Any) -> Any:
        if not isinstance(node, Weighted):
            return node
        return dataclasses.replace(node, weight=torch.full_like(node.weight, weight))

    def change(upload: Any) -> Any:
        nodes, spec = tree.flatten(upload, is_leaf=lambda node: isinstance(node, Weighted))
        return tree.unflatten([heavier(node) for node in nodes], spec)

    return changed(message, token, change)


def _filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: torch.full_like(t, value) if t.is_floating_point() else t
