"""Engine for tests whose clients live in another process, reached by bytes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.core.errors import ClientError, CodecError
from fedloom.deploy.server.answer_shapes import AnswerShapes
from fedloom.engines.child import Child
from fedloom.engines.engine import Engine
from fedloom.engines.message import EVALUATING, Answer, Call, Request
from fedloom.engines.message_bytes import Part, part, unpack
from fedloom.engines.runtime import Runtime
from fedloom.engines.server_side import Send
from fedloom.engines.service import LIMIT, Service, answer_of, request_bytes


class Messages(Engine):
    """One child, forked at the first exchange, which holds the clients' rows without the server's test set.

    Every byte is checked as if it came from a stranger. The child checks arguments by the annotations of methods. The
    server checks answers by a rehearsal. States travel with the messages.
    """

    name = "messages"
    limit = LIMIT

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.child: Child | None = None
        self.shapes = AnswerShapes(self.population, self.algorithm, self.options.encoders)
        self.num_broadcasts = 0

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        broadcast: Part | None = part(call.sent)
        self.num_broadcasts += 1
        for k in clients:
            request = self.request(call, [k], send)
            yield request, *self.accept(self.exchange(request, broadcast), request)
            broadcast = None

    def exchange(self, request: Request, broadcast: Part | None) -> memoryview:
        """Return the bytes that answer a request."""
        if self.child is None:
            self.child = Child(self.service())
        (k,) = request.clients
        try:
            self.child.send(
                request_bytes(request, self.num_broadcasts, (self.num_broadcasts, broadcast), self.stack([k]))
            )
            return self.child.receive()
        except EOFError:
            what = f"the process of the clients died ({self.child.exit_reason})"
            raise ClientError(what, client=k, round=request.call.round + 1) from None

    def accept(self, data: bytes | memoryview, request: Request) -> tuple[Any, Answer]:
        """Return (new states, answer) from untrusted bytes."""
        message = unpack(data, check=lambda _, name, like: self.shapes.check(request, name, like), limit=self.limit)
        states, answer = answer_of(message, request)
        if ("state" in message.parts) == (request.call.exchange == EVALUATING):
            raise CodecError("a state comes with the answer to a request that brought one, and only then")
        return states, answer

    def service(self) -> Service:
        """Return the service at the child's end."""
        federation = self.population.federation
        if federation.test is None:
            population = self.population
        else:
            population = dataclasses.replace(self.population, federation=dataclasses.replace(federation, test=None))
        return Service(
            Runtime(
                population, self.algorithm, compilation=self.options.compilation, bf16=self.options.bf16,
                encoders=self.options.encoders, gradients=self.options.gradients,
            ),
            limit=self.limit,
        )  # fmt: skip

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None
