"""The server's half of secure aggregation: four messages to devices, of which it learns the sum of their uploads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedloom.core import tree
from fedloom.core.errors import NobodyAnswered, RefusedError
from fedloom.deploy.registration import MASKED
from fedloom.engines.message import EVALUATING, Answer, Call, Request
from fedloom.engines.message_bytes import head_of
from fedloom.engines.non_finite import at_batch, not_finite
from fedloom.engines.server_side import Send
from fedloom.privacy import masked_server
from fedloom.privacy.fixed_point import Words
from fedloom.privacy.masked_terms import LEAST, Terms
from fedloom.privacy.secure_sums import MaskedMean

_Asked = tuple[Request, Any, Answer]


class MaskedExchange:
    """One exchange of devices whose uploads are added up under masks.

    `engine`: `Devices`, which imports this where a run asks for it. `mean`: where the sum goes.
    """

    def __init__(self, engine: Any, mean: MaskedMean, call: Call, clients: Sequence[int], send: Send) -> None:
        self.engine, self.mean, self.call = engine, mean, call
        self.requests: dict[int, Request] = {k: engine.request(call, [k], send) for k in clients}
        like = engine.shapes.upload(next(iter(self.requests.values())))
        count = mean.expect(tree.map_tree(lambda t: torch.zeros(t.shape, dtype=t.dtype), like))
        self.up = mean.fixed.sent(engine.bill(call.method), like, 1)
        self.terms: Terms | None = None
        if len(clients) >= LEAST:
            self.terms = Terms.of(os.urandom(16), count, mean.fixed.point.bits, len(clients), least=mean.least)
        self.words = torch.empty((1, count), dtype=mean.fixed.dtype, device="meta")

    def answers(self) -> Iterator[_Asked]:
        """Yield the answers of those whose uploads are in the sum, once there is one; their uploads are empty."""
        lost = self.engine.lost
        try:
            taken, total = self._sum()
            self.mean.give(total)
        except (NobodyAnswered, RefusedError) as error:
            lost.update({k: f"lost: there is no sum: {error}" for k in self.requests if k not in lost})
            return
        left_out = "lost: its masked messages cannot be read, or too few of its neighbours are there"
        lost.update({k: left_out for k in self.requests if k not in lost and k not in taken})
        for k in taken:  # who was lost at the last message is in the sum
            lost.pop(k, None)
        yield from (taken[k] for k in self.requests if k in taken)

    def _sum(self) -> tuple[dict[int, _Asked], Words]:
        """Return the answers of those whose uploads are in the sum, and the sum.

        Raises:
            NobodyAnswered: too few are left for a sum.
            RefusedError: a device has sent a share that is none.
        """
        if (terms := self.terms) is None:
            raise NobodyAnswered(f"a masked sum is of {LEAST} devices or more, got {len(self.requests)}")
        said = {name: getattr(terms, name) for name in ("words", "bits", "neighbours", "threshold")}
        begin = {"session": terms.session.hex(), **said}
        introduced, sent = masked_server.introduce(
            terms, self._ask("advertise", dict.fromkeys(self.requests, b""), **begin)
        )
        forwarded = masked_server.forward(introduced, self._ask("share", sent))
        taken = self._train(forwarded)
        numbers = {k: np.ascontiguousarray(answer.upload[0].numpy()).tobytes() for k, (_, _, answer) in taken.items()}
        collected, named = masked_server.collect(introduced, forwarded, numbers)
        if (there := len(collected.there)) < self.mean.least:
            raise NobodyAnswered(f"a sum is shown of {self.mean.least} devices or more, and {there} have sent numbers")
        total = masked_server.finish(collected, self._ask("unmask", named))
        return {
            k: (request, states, replace(answer, upload=(), up=self.up))
            for k, (request, states, answer) in taken.items()
        }, total

    def _ask(self, stage: str, messages: Mapping[int, bytes], **more: Any) -> dict[int, bytes]:
        """Send devices a message of the protocol, and return what they answer."""
        call = Call(MASKED, (), self.call.round, EVALUATING, 0.0)
        requests = {k: Request.to(call, [k], self.engine.population.seed) for k in messages}
        fields = {k: {"masked": {"stage": stage, "message": m.hex(), **more}} for k, m in messages.items()}

        def read(request: Request, data: memoryview) -> bytes:
            try:
                return bytes.fromhex(head_of(data, self.engine.limit).get("masked"))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                raise RefusedError("an answer to a masked message is hexadecimal digits, got something else") from None

        return dict(self.engine.taken(requests, None, read, fields))

    def _train(self, messages: Mapping[int, bytes]) -> dict[int, _Asked]:
        """Have devices train, and return their answers with masked words as uploads."""
        fixed = self.mean.fixed
        limits = self.mean.asked.weights(self.engine, self.call.round, [*messages])
        fields = {
            k: {"masked": {"message": m.hex(), "whole": int(fixed.whole), "clients": fixed.clients, "most": int(most)}}
            for (k, m), most in zip(messages.items(), limits, strict=True)
        }
        requests = {k: self.requests[k] for k in messages}

        def read(request: Request, data: memoryview) -> _Asked:
            states, answer = self.engine.read_answer(request, data, self.words)
            for where, what in not_finite(request, (), answer).values():  # a liar's, since devices look themselves
                raise RefusedError(at_batch(what, where))
            return request, states, answer

        return dict(self.engine.taken(requests, self.call.sent, read, fields))
