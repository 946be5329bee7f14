"""`fedloom serve` and `fedloom join` over NATS: what is checked, said and started on both sides."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedloom.cli.certs import who_may_connect
from fedloom.cli.flower_command import authority_of, sigterm_interrupts, wait_for_server
from fedloom.core.errors import EngineWarning, RankError, SettingError, warn
from fedloom.deploy import certificates
from fedloom.deploy.device import Membership, take_part
from fedloom.deploy.device_names import INVITED, SERVER, check_name
from fedloom.deploy.invitations import Enrolment, Joining, address_of
from fedloom.deploy.nats.nats_server import NatsServer, make_key
from fedloom.deploy.nats.over_nats import Door, NatsManager
from fedloom.deploy.server.fleet import Audit
from fedloom.deploy.watched_keys import WatchedKeys
from fedloom.display.terminal import Terminal

_PAUSE = 2.0  # seconds between two tries to connect


@contextmanager
def nats_connections(args: argparse.Namespace, out: Path, console: Terminal, audit: Audit) -> Iterator[NatsManager]:
    """Start nats-server beside the server, and end it."""
    if args.certs is None:
        raise SettingError(
            "over NATS a server has certificates, and devices have keys: give --certs DIR, which fedloom certs "
            "authority DIR and fedloom certs server DIR --name NAME make"
        )
    folder = Path(args.certs)
    (authority, *own), warning = certificates.server_files(folder)
    if warning:
        warn(warning, EngineWarning)
    console.print(who_may_connect(folder))
    its = WatchedKeys(folder, console.print, over_nats=True)

    def refused(who: str, why: str) -> None:
        audit("refused", who, why)
        console.print(f"refused: {who}: {why}", highlight=False)

    with ExitStack() as stack, sigterm_interrupts():
        server = NatsServer(out / "nats", args.host, args.port, its, (own[0], own[1]), refused, console.print)
        stack.callback(server.close)
        here = "127.0.0.1" if args.host == "0.0.0.0" else args.host
        certified = certificates.name_of_server(folder)
        connections = NatsManager(Door(f"tls://{here}:{args.port}", SERVER, server.key, authority, certified))
        stack.callback(connections.end)
        connections.registered, connections.flooded = its, server.shut_out
        console.print(
            f"waiting for {args.least or 1} devices at {args.host}:{args.port}, {args.wait:g} s at most (--wait)",
        )
        yield connections


def join_over_nats(
    args: argparse.Namespace, member: Callable[[], Membership], console: Terminal, joining: Joining | None = None
) -> bool:
    """Take part over NATS until the run is over; return True if the device leaves before (SIGTERM)."""
    host, port = address_of(args.server, args.transport)
    authority, key, own = authority_of(args), Path(args.state) / "nats.nk", member()
    check_name(own.name, remedy="give the one by which it is registered (--name)")
    url, public = f"tls://{host}:{port}", make_key(key)
    console.print(f"key of this device: {public}")
    said = set[str]()

    def connected(door: Door) -> NatsManager:
        while True:
            wait_for_server(host, port, authority, console)
            try:
                return NatsManager(door)
            except RankError as error:
                if str(error) not in said:
                    said.add(str(error))
                    console.print(f"{error}; trying again", highlight=False)
                time.sleep(_PAUSE)

    while joining is not None and joining.key is not None:
        console.print(joining.begins)
        manager = connected(Door(url, INVITED + joining.name, joining.key, authority))
        enrolment = Enrolment(public)
        try:
            left = take_part(manager, enrolment)
        except RankError:
            continue  # the server was ended meanwhile
        finally:
            manager.end()
        if left or not enrolment.is_done:
            return left
        console.print(joining.ends())
        time.sleep(_PAUSE)  # nats-server reads the new key
        break
    while True:
        manager = connected(Door(url, own.name, key, authority))
        console.print(own.waits_at(args.server))
        try:
            return take_part(manager, own)
        except RankError:
            console.print("the server is gone: joining again once it is there")
            own = member()
        finally:
            manager.end()
