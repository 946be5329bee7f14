"""Flower in this process: a grid that calls relays, and devices behind their sockets."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from fedloom.deploy.flower.flower_relay import pump, relay
from fedloom.deploy.flower.over_flower import FlowerConnections, RelayedServer
from fedloom.deploy.server.audit_log import Audit
from fedloom.deploy.server.fleet import RankFleet
from fedloom.ranks.communication import CLOSED
from fedloom.testing.in_process import DevicesInProcess, token_of

_ALONE = threading.Lock()  # devices of this process share their networks


class MemoryGrid:
    """Nodes with the functions that answer their messages, in the place of ClientApps."""

    def __init__(self) -> None:
        self.clients: dict[int, Callable[[bytes], bytes | str]] = {}
        self.answers: dict[str, bytes | str] = {}
        self._ids = itertools.count()

    def nodes(self) -> Collection[int]:
        return list(self.clients)

    def push(self, node: int, data: bytes) -> str | None:
        if node not in self.clients:
            return None
        id, client = f"message {next(self._ids)}", self.clients[node]

        def run() -> None:
            self.answers[id] = client(data)

        threading.Thread(target=run, daemon=True).start()
        return id

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | str]:
        return {id: self.answers.pop(id) for id in ids if id in self.answers}


def short_folder() -> Path:
    """A folder whose sockets have short names."""
    return Path(tempfile.mkdtemp(prefix="fl"))


class Flower:
    """A server's connections, its pump, and nodes."""

    def __init__(self, nodes: int = 0) -> None:
        self.folder, self.grid = short_folder(), MemoryGrid()
        self._end = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.servers: dict[int, RelayedServer] = {}
        for node in range(nodes):
            self.add(node)
        self.connections = FlowerConnections(self.folder)
        self.start_pump()

    def start_pump(self) -> None:
        pipe = Client(str(self.connections.path), "AF_UNIX")
        self.pipe = pipe
        threading.Thread(target=pump, args=(self.grid, pipe, 0.001, 0.01), daemon=True).start()

    def add(self, node: int, server: RelayedServer | None = None) -> RelayedServer:
        """A device at a node; its process, where it has none yet."""
        path = self.folder / f"device {node}"
        self.servers[node] = server = server or RelayedServer(path)
        self.grid.clients[node] = lambda data: relay(data, server.path)
        return server

    def close(self) -> None:
        self.connections.close()
        for server in self.servers.values():
            server.close()
        self._end()


def serve(server: RelayedServer, answer: Callable[[bytes], bytes]) -> threading.Thread:
    """Answer what comes at a device's process until it ends or the server says so."""

    def run() -> None:
        try:
            while message := bytes(server.receive()):
                server.answer(answer(message))
            server.answer(CLOSED)
        except EOFError:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class DevicesOverFlower(DevicesInProcess):
    """Devices of this process, whose messages go over Flower's grid and their relays."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        names = self.fleet.names  # type: ignore[union-attr]
        self.flower = Flower(len(names))
        fleet = RankFleet(self.flower.connections, Audit())
        fleet.names, fleet.tokens = names, {name: token_of(name) for name in names}
        for k, name in enumerate(names):
            serve(self.flower.servers[k], lambda data, k=k, name=name: self._answer(k, name, data))
        answers = fleet.handshake(b"hello", 10, lambda got: len(got) == len(names))
        fleet.ranks = {name.decode(): rank for rank, name in answers.items()}
        self.fleet = fleet

    def _answer(self, client: int, name: str, data: bytes) -> bytes:
        if data == b"hello":
            return name.encode()
        with _ALONE:
            return self._device(client)(data)

    def close(self) -> None:
        super().close()
        self.flower.close()
