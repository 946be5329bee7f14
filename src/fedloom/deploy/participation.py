"""Part of a device in a run: messages of the server come in one thread, and another one decides when it leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from fedloom.core.errors import RankError
from fedloom.core.fold.execution import threads
from fedloom.deploy.transport import Participant
from fedloom.engines.service import LIMIT
from fedloom.ranks.communication import ServerConnection

FIRST = 1 << 20  # bytes of the server's settings


class JoinsAnew(Exception):  # noqa: N818  # no error
    """Signal that a device leaves its server to join it again."""


def take_part(manager: ServerConnection, member: Participant, anew: Callable[[], bool] = lambda: False) -> bool:
    """Answer the server until the server closes the run or this process gets SIGTERM; return True for SIGTERM.

    Python handles a signal between two of its calls, so another thread waits for messages. A request that is being
    answered at that time is aborted; the results of earlier ones are on disk.

    Args:
        manager: the device's end.
        member: what answers.
        anew: asked again and again whether the device joins anew; it does once no request is being answered.

    Raises:
        RankError: the server is gone.
        JoinsAnew: the device joins anew.
    """
    problems: list[BaseException] = []
    ended, idle = threading.Event(), threading.Event()

    def work() -> None:
        try:
            manager.limit = FIRST
            with threads(1):
                while not member.is_over:
                    idle.set()
                    message = bytes(manager.receive())
                    idle.clear()
                    manager.limit = LIMIT  # requests may come once the first message is answered
                    manager.answer(member(message))
        except BaseException as error:
            problems.append(error)
        ended.set()

    def stop(*_: object) -> None:
        member.leave_reason = "it leaves"

    before = signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=work, daemon=True).start()
    try:
        is_due = False
        while not ended.wait(0.1) and not ((member.leave_reason or is_due) and idle.is_set()):
            is_due = is_due or anew()
    finally:
        signal.signal(signal.SIGTERM, before)
    if is_due and not member.leave_reason and not ended.is_set():
        raise JoinsAnew
    if problems and not member.leave_reason:
        if isinstance(problems[0], EOFError):
            if member.is_over:  # it ended right after its last message
                return False
            raise RankError(
                "the server is gone: start it with --resume, and start this device again, which waits for it"
            ) from None
        raise problems[0]
    return member.leave_reason is not None
