"""An engine for tests: its clients live in another process, and nothing but bytes passes between."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.core import tree
from fedloom.core.errors import ClientError, CodecError
from fedloom.engines.child import Child
from fedloom.engines.engine import Engine, Send
from fedloom.engines.message import JUDGING, Answer, Call, Request
from fedloom.engines.rehearsal import Rehearsals
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import FETCH, LIMIT, Service, answer_of, request_bytes
from fedloom.engines.store import Elsewhere
from fedloom.engines.transport import Part, part, same_shapes, unpack


class Messages(Engine):
    """One child, forked at the first exchange, which holds its clients' rows and no test set of the server's.

    Every byte is checked as if it came from a stranger: the child checks arguments by the types that methods are
    annotated with, the server answers by a rehearsal. `stateless`: states travel with the messages; otherwise the child
    keeps them, and is told with each request which of its exchanges was accepted last.
    """

    name = "messages"
    stateless = True
    limit = LIMIT

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.child: Child | None = None
        self.rehearsals = Rehearsals(self.population, self.algorithm)
        self.sent = 0

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        broadcast: Part | None = part(call.broadcast)
        self.sent += 1
        self.states.fetch = self.fetch
        for k in clients:
            request = self.request(call, [k], send)
            yield request, *self.accept(self.exchange(request, broadcast), request)
            broadcast = None

    def exchange(self, request: Request, broadcast: Part | None) -> memoryview:
        """The bytes that answer a request."""
        if self.child is None:
            self.child = Child(self.service())
        (k,) = request.clients
        there = k in self.states.elsewhere or k not in self.states
        state = None if not self.stateless and there else self.stack([k])
        try:
            self.child.send(request_bytes(request, self.sent, broadcast, state, keep=not self.stateless))
            return self.child.receive()
        except EOFError:
            what = f"the process of the clients died ({self.child.epitaph})"
            raise ClientError(what, client=k, round=request.call.round + 1) from None

    def accept(self, data: bytes | memoryview, request: Request) -> tuple[Any, Answer]:
        """(new states, answer) from bytes that may be anybody's."""
        message = unpack(data, check=lambda _, name, like: self.rehearsals.check(request, name, like), limit=self.limit)
        states, answer = answer_of(message, request)
        travels = self.stateless and request.call.exchange != JUDGING
        if ("state" in message.parts) != travels:
            raise CodecError("a state comes with the answer to a request that brought one, and only then")
        kept = not self.stateless and tree.leaves(self.runtime.fresh(request.clients[0]))
        return Elsewhere() if kept else states, answer

    def fetch(self, client: int) -> Any:
        """The state that a client keeps."""
        self.sent += 1
        call = Call(FETCH, (), max(0, self.states.version - 1), JUDGING, 0.0)
        request = self.request(call, [client], lambda ids: ())
        want = tree.stack([self.runtime.fresh(client)])
        check = lambda _, name, like: same_shapes(want if name == "upload" else [], name, like)  # noqa: E731
        return tree.take(answer_of(unpack(self.exchange(request, part(())), check=check), request)[1].upload, 0)

    def service(self) -> Service:
        """The child's end."""
        federation = self.population.federation
        if federation.test is None:
            mine = self.population
        else:
            mine = dataclasses.replace(self.population, federation=dataclasses.replace(federation, test=None))
        return Service(Runtime(mine, self.algorithm, compilation=self.compilation, bf16=self.bf16), limit=self.limit)

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None


class Keeping(Messages):
    """The same with clients that keep their states."""

    stateless = False
