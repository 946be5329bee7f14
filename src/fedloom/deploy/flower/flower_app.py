"""Flower's ends of a run, which relay bytes: the ServerApp beside `fedloom serve`, the ClientApp on a device.

A device runs no code that comes over Flower. Flower's own `flwr-clientapp` installs the app that the server sends, and
imports what it names; the one that `fedloom join` puts in its place (`run_client_app`) does neither.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Mapping
from multiprocessing.connection import Client

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedloom.deploy.flower.flower_relay import SOCKET, TTL, pump, relay
from fedloom.wording import install

_NAME = "fedloom"


def record_of(data: bytes) -> RecordDict:
    """Return bytes as a record; large arrays travel in pieces."""
    return RecordDict({_NAME: ArrayRecord({_NAME: Array("uint8", (len(data),), "bytes", data)})})


def bytes_of(record: RecordDict) -> bytes:
    """Return the bytes of an untrusted record; none if it has no others."""
    arrays = record.get(_NAME)
    array = arrays.get(_NAME) if isinstance(arrays, ArrayRecord) else None
    return bytes(array.data) if isinstance(array, Array) else b""


class FlowerGrid:
    """Flower's grid, for bytes."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> Collection[int]:
        """Return the connected devices."""
        return list(self.grid.get_node_ids())

    def push(self, node: int, data: bytes) -> str | None:
        """Send a message, and return its id; None: it cannot be sent."""
        ids = list(self.grid.push_messages([Message(record_of(data), node, "train", ttl=TTL)]))
        return ids[0] if ids else None

    def pull(self, ids: Collection[str]) -> Mapping[str, bytes | str]:
        """Return the answers to messages as far as there are any; instead of one that never comes, the reason."""
        return {
            reply.metadata.reply_to_message_id: f"Flower says: {reply.error.reason} ({reply.error.code})"
            if reply.has_error()
            else bytes_of(reply.content)
            for reply in self.grid.pull_messages(ids)
        }


server = ServerApp()  # Flower finds it by this line


def relay_run(grid: Grid, context: Context) -> None:
    """Carry the messages of `fedloom serve` until it ends."""
    with Client(os.environ[SOCKET], "AF_UNIX") as pipe:
        pump(FlowerGrid(grid), pipe)


server.main()(relay_run)

client = ClientApp()


def relay_message(message: Message, context: Context) -> Message:
    """Return what the process of `fedloom join` answers."""
    answer = relay(bytes_of(message.content), os.environ[SOCKET])
    return Message(record_of(answer), reply_to=message)


client.train()(relay_message)


def run_client_app() -> None:
    """Answer one message as Flower's process for it, with the ClientApp of this module whatever the server names."""
    command = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    process = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("install_from_fab", "get_load_client_app_fn"):
        if not hasattr(process, name):  # else the app of the server would run
            raise SystemExit(f"this version of Flower has no {name}: {install('flower')} brings the right one")
    vars(process)["install_from_fab"] = lambda *args, **more: None
    vars(process)["get_load_client_app_fn"] = lambda *args, **more: lambda *names: client
    command.flwr_clientapp()


if __name__ == "__main__":
    run_client_app()
