"""Devices over NATS: what is checked, said and started on both sides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedloom.core.errors import EngineWarning, RankError, SettingError, warn
from fedloom.deploy import certificates
from fedloom.deploy.device_names import INVITED, SERVER, check_name
from fedloom.deploy.invitations import Enrolment
from fedloom.deploy.nats.door import Door
from fedloom.deploy.nats.nats_server import NatsServer, make_key
from fedloom.deploy.nats.over_nats import NatsManager
from fedloom.deploy.participation import JoinsAnew, take_part
from fedloom.deploy.reachable import address_of, authority_of, sigterm_interrupts, wait_for_server
from fedloom.deploy.transport import DevicePlace, Member, ServerPlace, Transport
from fedloom.deploy.watched_keys import Once, WatchedKeys

_PAUSE = 2.0  # seconds between two tries to connect


class OverNats(Transport):
    """A nats-server beside the server, to which all connect."""

    name, label = "nats", "NATS"
    flags = frozenset({"server", "authority", "certs", "port", "host", "watch_data"})
    invites = nkeys = True

    def new_key(self, folder: Path) -> tuple[Path, str]:
        path = folder / "nats.nk"
        return path, make_key(path)

    @contextmanager
    def serve(self, place: ServerPlace) -> Iterator[NatsManager]:
        if place.certs is None:
            raise SettingError(
                "over NATS a server has certificates, and devices have keys: give --certs DIR, which fedloom certs "
                "authority DIR and fedloom certs server DIR --name NAME make"
            )
        (authority, *own), warning = certificates.server_files(place.certs)
        if warning:
            warn(warning, EngineWarning)
        place.say(certificates.who_may_connect(place.certs))
        its = WatchedKeys(place.certs, place.say, nkeys=True)

        with ExitStack() as stack, sigterm_interrupts():
            server = NatsServer(
                place.out / "nats", place.host, place.port, its, (own[0], own[1]), place.refused, place.say
            )
            stack.callback(server.close)
            here = "127.0.0.1" if place.host == "0.0.0.0" else place.host
            certified = certificates.name_of_server(place.certs)
            connections = NatsManager(Door(f"tls://{here}:{place.port}", SERVER, server.key, authority, certified))
            stack.callback(connections.end)
            connections.registered, connections.flooded, connections.told = its, server.shut_out, Once(place.say)
            place.say(
                f"waiting for {place.least or 1} devices at {place.host}:{place.port}, {place.wait:g} s at most "
                "(--wait)"
            )
            yield connections

    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        host, port = address_of(place.server, self.label)
        authority, own, joining = authority_of(place), member(), place.joining
        check_name(own.name, remedy="give the one by which it is registered (--name)")
        url, (key, public) = f"tls://{host}:{port}", self.new_key(place.state)
        place.say(f"key of this device: {public}")
        said = set[str]()

        def connected(door: Door) -> NatsManager:
            while True:
                wait_for_server(host, port, authority, place.say)
                try:
                    return NatsManager(door)
                except RankError as error:
                    if str(error) not in said:
                        said.add(str(error))
                        place.say(f"{error}; trying again")
                    time.sleep(_PAUSE)

        while joining is not None and joining.key is not None:
            place.say(joining.begins)
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
            place.say(joining.ends())
            time.sleep(_PAUSE)  # nats-server reads the new key
            break
        while True:
            manager = connected(Door(url, own.name, key, authority))
            place.say(own.waits_at(place.server or ""))
            try:
                return take_part(manager, own, own.changed)
            except JoinsAnew:
                place.say("the examples have changed: joining again with them")
                own = member()
            except RankError:
                place.say("the server is gone: joining again once it is there")
                own = member()
            finally:
                manager.end()
