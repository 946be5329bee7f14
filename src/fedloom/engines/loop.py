"""One plain call per client: the reference, and the debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.engines.engine import Engine
from fedloom.engines.message import Answer, Call, Request
from fedloom.engines.server_side import Send


class Loop(Engine):
    """One client after the other."""

    name = "loop"

    def answers(self, call: Call, clients: Sequence[int], send: Send) -> Iterator[tuple[Request, Any, Answer]]:
        for k in clients:
            yield self.ask(call, [k], send)
