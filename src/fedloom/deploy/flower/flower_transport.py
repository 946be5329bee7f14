"""Devices over Flower: what is checked, said and started on both sides."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedloom.core.errors import EngineWarning, RankError, SettingError, warn
from fedloom.deploy import certificates
from fedloom.deploy.flower.flower_processes import SuperLink, SuperNode, check_installed, private_folder
from fedloom.deploy.flower.over_flower import FlowerConnections, RelayedServer
from fedloom.deploy.invitations import Enrolment
from fedloom.deploy.participation import take_part
from fedloom.deploy.reachable import address_of, authority_of, sigterm_interrupts, wait_for_server
from fedloom.deploy.transport import DevicePlace, Member, ServerPlace, Transport
from fedloom.deploy.watched_keys import WatchedKeys

INSECURE = (
    "--insecure: nothing is encrypted, and anyone who can reach the port can join, or read and change what is sent; "
    "for a trial on one host"
)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LAST = 5.0  # seconds for Flower to carry the last receipt


class OverFlower(Transport):
    """Flower's SuperLink beside the server, a SuperNode beside each device."""

    name, label = "flower", "Flower"
    flags = frozenset({"server", "authority", "certs", "port", "insecure", "insecure_anywhere"})
    invites = named_by_keys = True

    def new_key(self, folder: Path) -> tuple[Path, str]:
        return certificates.device_key(folder)

    @contextmanager
    def serve(self, place: ServerPlace) -> Iterator[FlowerConnections]:
        check_installed()
        tls = None
        keys: Callable[[], dict[str, str]] = dict
        if place.insecure:
            place.say(INSECURE)
        else:
            if place.certs is None:
                raise SettingError(
                    "over Flower a server has certificates: give --certs DIR, which fedloom certs authority DIR and "
                    "fedloom certs server DIR --name NAME make, or --insecure for a trial on one host"
                )
            tls, warning = certificates.server_files(place.certs)
            if warning:
                warn(warning, EngineWarning)
            place.say(certificates.who_may_connect(place.certs))
            keys = WatchedKeys(place.certs, place.say)
        with ExitStack() as stack, sigterm_interrupts():
            folder = private_folder()
            stack.callback(_remove, folder)
            connections = FlowerConnections(folder)
            stack.callback(connections.close)
            link = SuperLink(
                place.out / "flower.log", place.port, connections.path, lambda: connections.is_carried, tls, keys,
                place.refused,
            )  # fmt: skip
            stack.callback(link.close)
            if tls is not None:
                connections.registered = lambda: link.registered
            place.say(
                f"waiting for {place.least or 1} devices at 127.0.0.1:{place.port}, {place.wait:g} s at most (--wait); "
                "devices on other hosts reach it through a proxy (docs/flower.md)"
            )
            yield connections

    def join(self, place: DevicePlace, member: Callable[[], Member]) -> bool:
        check_installed()
        host, port = address_of(place.server, self.label)
        authority = key = None
        public = ""
        if place.insecure or place.insecure_anywhere:
            if host not in _LOOPBACK and not place.insecure_anywhere:
                raise SettingError(
                    f"--insecure is for a server on this host, got {host}: give it certificates (docs/flower.md), or "
                    "--insecure-anywhere where everybody on the way may read and change all"
                )
            place.say(INSECURE)
        else:
            authority = authority_of(place)
            key, public = certificates.device_key(place.state)
            place.say(f"key of this device: {public}")
            place.say(f"fingerprint: {certificates.fingerprint(public)}")
        wait_for_server(host, port, authority, place.say)
        with ExitStack() as stack:
            folder = private_folder()
            stack.callback(_remove, folder)
            said = set[str]()

            def say(text: str) -> None:
                if text not in said:
                    said.add(text)
                    place.say(text)

            def connect(name: str, key: Path | None, stack: ExitStack) -> RelayedServer:
                server = RelayedServer(folder / name)
                stack.callback(server.close)
                node = SuperNode(place.state / "flower.log", f"{host}:{port}", server.path, authority, key, say)
                stack.callback(node.close)
                return server

            own, joining = member(), place.joining
            if joining is not None and joining.key is not None:
                place.say(joining.begins)
                with ExitStack() as once:
                    if take_part(connect("invited", joining.key, once), enrolment := Enrolment(public)):
                        return True
                    if not enrolment.is_done:
                        return False
                place.say(joining.ends())
            server = connect("device", key, stack)
            place.say(own.waits_at(place.server or ""))
            while True:
                try:
                    left = take_part(server, own)
                    if not left:
                        time.sleep(_LAST)
                    return left
                except RankError:
                    if not server.reopen():
                        raise
                    place.say("the server begins anew: joining again")
                    own = member()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
