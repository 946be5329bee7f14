"""A wire that loses, delays, repeats, swaps, damages and forges answers of devices, for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, get_args

import torch

from fedloom.core import tree
from fedloom.core.types import Weighted
from fedloom.engines.engine import Faults
from fedloom.engines.fleet import Fleet, Lost
from fedloom.engines.message import JUDGING
from fedloom.engines.transport import head_of, pack, sealed, unpack, unsealed

Harm = Literal["lost", "slow", "duplicated", "reordered", "replayed", "swapped", "corrupted", "malicious", "forged"]
HARMS: tuple[Harm, ...] = get_args(Harm)
HARMLESS: tuple[Harm, ...] = ("duplicated", "reordered")  # the true answer comes as well
_LIMIT = 1 << 40


class Tampered(Fleet):
    """`fleet`, with what `plan(round, exchange, client)` names done to answers in training; None: nothing.

    lost: there is none. slow: the deadline was before. duplicated: it comes twice. reordered: all come in the opposite
    order. replayed: one to an earlier request comes in its place. swapped: that of another device. corrupted: a bit is
    changed. malicious: it is the device's own, with an upload that is not finite. forged: of somebody without a token.
    """

    def __init__(self, fleet: Fleet, plan: Faults) -> None:
        self.fleet, self.plan = fleet, plan
        self.names, self.tokens, self.audit = fleet.names, fleet.tokens, fleet.audit
        self._before: dict[str, memoryview] = {}

    def there(self) -> Collection[str]:
        return self.fleet.there()

    def ask(self, requests: Mapping[str, bytes], deadline: float | None) -> Iterator[tuple[str, memoryview | Lost]]:
        found, out, turned = dict(self.fleet.ask(requests, deadline)), list[tuple[str, memoryview | Lost]](), False
        for name, answer in found.items():
            head = head_of(unsealed(requests[name], self.tokens[name], _LIMIT))
            judging = head["exchange"] == JUDGING
            harm = None if judging else self.plan(head["round"], head["exchange"], self.names.index(name))
            turned |= harm == "reordered"
            other = next((a for n, a in found.items() if n != name and isinstance(a, memoryview)), answer)
            out += [(name, came) for came in self._harmed(harm, name, answer, other)]
            if isinstance(answer, memoryview):
                self._before[name] = answer
        yield from reversed(out) if turned else out

    def _harmed(
        self, harm: str | None, name: str, answer: memoryview | Lost, other: memoryview | Lost
    ) -> list[memoryview | Lost]:
        if isinstance(answer, Lost) or harm in (None, "reordered"):
            return [answer]
        if harm == "duplicated":
            return [answer, answer]
        if harm == "replayed":
            return [self._before.get(name, Lost("there was none before"))]
        if harm == "swapped":
            return [other]
        if harm == "corrupted":
            return [memoryview(bytes(answer[:-1]) + bytes([answer[-1] ^ 1]))]
        if harm == "forged":
            return [memoryview(sealed(bytes(answer[16:]), "no token"))]
        if harm == "malicious":
            message = unpack(unsealed(answer, self.tokens[name], _LIMIT))
            parts = {**message.parts, "upload": tree.map_tree(_absurd, message.parts["upload"])}
            return [memoryview(sealed(pack(message.head, parts), self.tokens[name]))]
        return [Lost("no answer" if harm == "lost" else "no answer within 0 s")]


def _absurd(t: torch.Tensor) -> torch.Tensor:
    return torch.full_like(t, float("inf")) if t.is_floating_point() else t


def overweight(message: bytes | memoryview, token: str, weight: Any) -> bytes:
    """An answer that claims another weight in the mean."""
    whole = unpack(unsealed(message, token, _LIMIT))

    def heavier(node: Any) -> Any:
        if not isinstance(node, Weighted):
            return node
        return dataclasses.replace(node, weight=torch.full_like(node.weight, weight))

    nodes, spec = tree.flatten(whole.parts["upload"], is_leaf=lambda node: isinstance(node, Weighted))
    parts = {**whole.parts, "upload": tree.unflatten([heavier(node) for node in nodes], spec)}
    return sealed(pack(whole.head, parts), token)
