"""Relays of bytes between fedloom's processes and Flower's, which import neither Flower nor PyTorch.

    fedloom serve = socket = ServerApp, `pump` -- SuperLink -- SuperNode -- ClientApp, `relay` = socket = fedloom join

The sockets are of `multiprocessing.connection`, in folders that only this user can open; whole messages go through
them, and nothing is unpickled. Over Flower a message to a device, and the answer to it, are

    link, 16 bytes | 1 for the first of this link, else 0 | messages
    status, 1 byte | link | number of the device's process, 16 bytes | answers, one for each message

Each message is its length, 8 bytes, and its bytes. A link is a connection of a server to a device's process, which a
SuperNode or a SuperLink that starts again does not end. What messages say, and their seals, is not looked at here.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import NamedTuple, Protocol

PAUSE = 0.1  # seconds between two looks for answers
LOOK_FOR_NODES = 1.0  # seconds between two looks for devices
TTL = 12 * 3600.0  # seconds after which a message that no device fetched is deleted; a round has its own deadline
MOST = 1024  # messages to a device at once
ID = 16  # bytes of a link, and of a process
SOCKET = "FEDLOOM_FLOWER_SOCKET"  # variable with the path of the socket of `fedloom serve` or `fedloom join`
ANSWERED, UNKNOWN, ABSENT = b"a", b"u", b"x"  # the link is not of this process; no process is there
SEND, ANSWER, FAILED, NODES = b"s", b"a", b"f", b"n"  # between the server and its pump
_COMMAND = struct.Struct("<cQQQ")  # kind, number, node, bytes of the answer at most
_LENGTH = struct.Struct("<Q")
_REASON = 300  # characters of a reason


class Grid(Protocol):
    """Way of bytes to devices by their numbers at Flower."""

    def nodes(self) -> Collection[int]:
        """Return the connected devices."""

    def push(self, node: int, data: bytes) -> str | None:
        """Send a message, and return its id; None: it cannot be sent."""

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | str]:
        """Return the answers to messages as far as there are any; instead of one that never comes, the reason."""


def pump(grid: Grid, pipe: Connection, pause: float = PAUSE, look: float = LOOK_FOR_NODES) -> None:
    """Carry messages of the server to the grid, and answers back, until the server closes the pipe."""
    sent = dict[str, tuple[int, int]]()  # number and largest answer of each message without an answer, by its id
    known, looked = None, float("-inf")
    with contextlib.suppress(EOFError, OSError):
        while True:
            if time.monotonic() - looked >= look:
                looked, before, known = time.monotonic(), known, sorted(grid.nodes())
                if known != before:
                    pipe.send_bytes(_COMMAND.pack(NODES, 0, 0, 0) + b"".join(map(_LENGTH.pack, known)))
            is_waiting = pipe.poll(pause)
            while is_waiting:
                data = pipe.recv_bytes()
                _, number, node, most = _COMMAND.unpack_from(data)
                id = grid.push(node, data[_COMMAND.size :])
                if id is None:
                    pipe.send_bytes(_COMMAND.pack(FAILED, number, 0, 0) + b"Flower does not take a message to it")
                else:
                    sent[id] = number, most
                is_waiting = pipe.poll(0)
            for id, answer in grid.pull(list(sent)).items() if sent else ():
                number, most = sent.pop(id)
                kind, data = (ANSWER, answer) if isinstance(answer, bytes) else (FAILED, answer[:_REASON].encode())
                if len(data) > most:
                    kind, data = FAILED, f"it sent {len(data)} bytes, and at most {most} are taken".encode()
                pipe.send_bytes(_COMMAND.pack(kind, number, 0, 0) + data)


def command(number: int, node: int, most: int, data: bytes) -> bytes:
    """Return the order to send `data` to a node, for an answer of at most `most` bytes."""
    return _COMMAND.pack(SEND, number, node, most) + data


def report_of(data: bytes) -> tuple[bytes, int, memoryview]:
    """Return (kind, number, rest) of what a pump sends; raise `ValueError` if it is no report."""
    if len(data) < _COMMAND.size:
        raise ValueError("a report is cut")
    kind, number, _, _ = _COMMAND.unpack_from(data)
    if kind not in (ANSWER, FAILED, NODES) or (kind == NODES and (len(data) - _COMMAND.size) % _LENGTH.size):
        raise ValueError("not a report of a pump")
    return kind, number, memoryview(data)[_COMMAND.size :]


def nodes_of(rest: memoryview) -> list[int]:
    """Return the devices that a pump names."""
    return [node for (node,) in _LENGTH.iter_unpack(rest)]


def relay(data: bytes, path: str | Path) -> bytes:
    """Return what the device's own process answers, or ABSENT if none is there."""
    try:
        with Client(str(path), "AF_UNIX") as pipe:
            pipe.send_bytes(data)
            return pipe.recv_bytes()
    except (EOFError, OSError):
        return ABSENT


class Envelope(NamedTuple):
    """Message to a device."""

    link: bytes
    is_first: bool
    messages: list[memoryview]

    def __bytes__(self) -> bytes:
        """Return the bytes."""
        return self.link + bytes([self.is_first]) + joined(self.messages)

    @classmethod
    def read(cls, data: bytes) -> Envelope:
        """Return the envelope in untrusted bytes; raise `ValueError` if there is none."""
        if len(data) <= ID or data[ID] > 1:
            raise ValueError("not a message of a fedloom server")
        return cls(data[:ID], data[ID] == 1, split(memoryview(data)[ID + 1 :], MOST))


class Reply(NamedTuple):
    """Answer of a device to an envelope."""

    status: bytes
    link: bytes
    process: bytes
    answers: list[memoryview]

    def __bytes__(self) -> bytes:
        """Return the bytes."""
        return self.status + self.link + self.process + joined(self.answers)

    @classmethod
    def read(cls, data: bytes | memoryview, most: int) -> Reply:
        """Return the reply of at most so many answers in untrusted bytes; raise `ValueError` if there is none."""
        status, view = bytes(data[:1]), memoryview(data)
        if status not in (ANSWERED, UNKNOWN) or len(data) < 1 + 2 * ID:
            raise ValueError("no process of a device is there" if status == ABSENT else "not an answer of a device")
        return cls(status, bytes(view[1 : 1 + ID]), bytes(view[1 + ID : 1 + 2 * ID]), split(view[1 + 2 * ID :], most))


def joined(messages: Sequence[bytes | memoryview]) -> bytes:
    """Return messages as bytes, each after its length."""
    return b"".join(part for message in messages for part in (_LENGTH.pack(len(message)), message))


def split(data: memoryview, most: int) -> list[memoryview]:
    """Return the messages in untrusted bytes; raise `ValueError` for more of them, or if they are cut."""
    out = list[memoryview]()
    while data:
        if len(out) == most:
            raise ValueError(f"it has more than {most} messages")
        if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] > len(data) - _LENGTH.size:
            raise ValueError("a message is shorter than it says")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        out.append(data[_LENGTH.size : end])
        data = data[end:]
    return out
